// Precompiles the headers of the standard library that most files need, which saves a twelfth of the compile time.
//
// It includes no header of this tree: a compiler cache ignores comments, and so could return a precompiled header that
// no longer matches a header whose comments have changed. Every file still includes all headers that it uses: the
// build with clang++ in tools/test.sh has no precompiled headers.
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>
