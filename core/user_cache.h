// The folder for files that a program can make again.
#pragma once

#include <cstdlib>
#include <string>

namespace rg {

/// Returns the path $XDG_CACHE_HOME/ringgrad, or without that variable $HOME/.cache/ringgrad, or "" without both.
inline std::string user_cache() {
    const char *const cache = std::getenv("XDG_CACHE_HOME"), *const home = std::getenv("HOME");
    if (cache && *cache) return std::string(cache) + "/ringgrad";
    return home && *home ? std::string(home) + "/.cache/ringgrad" : "";
}

} // namespace rg
