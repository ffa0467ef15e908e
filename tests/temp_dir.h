// Defines a new folder for one test case, and functions that test errors.
//
// The folder is in TMPDIR or /tmp, and the end of the scope removes it. Tests never write anywhere else.
#pragma once

#include "ringgrad/core/base.h"

#include <cstdlib>
#include <filesystem>

namespace rg {

class TempDir {
public:
    TempDir() : path_((std::filesystem::temp_directory_path() / "ringgrad-XXXXXX").string()) {
        RG_CHECK(::mkdtemp(path_.data()), "test: expected to create ", path_, ", got an error; check TMPDIR");
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

/// Returns the text of the Error that `f` throws, or an empty string if it throws none.
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
