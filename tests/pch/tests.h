// Precompiles the headers that most test files need.
#include "core/pch/standard.h"

#include <doctest/doctest.h>
