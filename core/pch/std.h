// Headers of the standard library that most files need, precompiled: a quarter of the compile time. Every file includes
// what it uses all the same, and the build with clang++ in tools/test.sh does without this.
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
