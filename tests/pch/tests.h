// Precompiles the headers that most test files need.
#include "ringgrad/core/pch/standard.h"

#include <doctest/doctest.h>
