// A fresh folder for one test case, removed with all that is in it at the end of the scope.
//
// It lies under TMPDIR or /tmp. Tests never write anywhere else.
#pragma once

#include "core/base.h"

#include <cstdlib>
#include <filesystem>

namespace rg {

class TempDir {
public:
    TempDir() : path_((std::filesystem::temp_directory_path() / "ringgrad-XXXXXX").string()) {
        RG_CHECK(::mkdtemp(path_.data()), "test: cannot create ", path_);
    }
    ~TempDir() {
        std::error_code ignored;
        std::filesystem::remove_all(path_, ignored);
    }
    TempDir(const TempDir&) = delete;
    TempDir& operator=(const TempDir&) = delete;

    const std::string& path() const { return path_; }
    std::string operator/(const std::string& name) const { return path_ + "/" + name; }

private:
    std::string path_;
};

/// The text of the Error that `f` throws; an empty string when it throws none.
template <class F>
std::string error_of(F&& f) {
    try {
        f();
    } catch (const Error& error) {
        return error.what();
    }
    return {};
}

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

} // namespace rg
