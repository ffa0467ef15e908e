// Precompiles the headers that most files with loops over elements need.
#include "ringgrad/core/context.h"
#include "ringgrad/core/op_table.h"
#include "ringgrad/core/ops.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <optional>
#include <vector>
