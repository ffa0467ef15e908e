// Precompiles the headers that most test files need.
#include "ringgrad/core/pch/library.h"

#include <doctest/doctest.h>
