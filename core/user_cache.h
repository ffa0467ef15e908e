// The folder for files that a program can make again.
#pragma once

#include <cstdlib>
#include <string>

namespace rg {

/// Returns ringgrad in $XDG_CACHE_HOME or in ~/.cache, or an empty text if neither variable is set.
inline std::string user_cache() {
    const char *const cache = std::getenv("XDG_CACHE_HOME"), *const home = std::getenv("HOME");
    if (cache && *cache) return std::string(cache) + "/ringgrad";
    return home && *home ? std::string(home) + "/.cache/ringgrad" : "";
}

} // namespace rg
