// Precompiles the headers of the standard library that most files need. This saves a quarter of the compile time. Every
// file still includes all headers that it uses: the build with clang++ in tools/test.sh has no precompiled headers.
#include <algorithm>
#include <array>
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
