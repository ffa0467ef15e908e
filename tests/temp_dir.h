// Defines a new folder for one test case, and functions that test errors.
//
// The folder is in TMPDIR or /tmp, and the end of the scope removes it. Tests never write anywhere else.
#pragma once

#include "core/base.h"

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <ostream>
#include <sys/resource.h>
#include <vector>

namespace rg {

/// A new folder that only this user can open, below std::filesystem::temp_directory_path(). The destructor removes the
/// folder with its contents.
class TempDir {
public:
    TempDir() : path_((std::filesystem::temp_directory_path() / "ringgrad-XXXXXX").string()) {
        RG_CHECK(::mkdtemp(path_.data()), "temporary folder: expected to create ", path_,
                 ", got an error; set TMPDIR to a folder with free space");
    }
    ~TempDir() {
        std::error_code ignored;
        std::filesystem::remove_all(path_, ignored);
    }
    TempDir(const TempDir&) = delete;
    TempDir& operator=(const TempDir&) = delete;
    const std::string& path() const { return path_; }
    std::string operator/(const std::string& name) const { return path() + "/" + name; }

private:
    std::string path_;
};

/// Until the end of its scope, sets a variable of the environment. Use it where no other thread runs.
class EnvironmentVariable {
public:
    EnvironmentVariable(const char* name, const char* value) : name_(name) {
        if (const char* const before = std::getenv(name)) before_ = before;
        ::setenv(name, value, 1);
    }
    ~EnvironmentVariable() { before_ ? ::setenv(name_, before_->c_str(), 1) : ::unsetenv(name_); }
    EnvironmentVariable(const EnvironmentVariable&) = delete;
    EnvironmentVariable& operator=(const EnvironmentVariable&) = delete;

private:
    const char* name_;
    std::optional<std::string> before_;
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

/// Returns the text of the Error that `f` throws while files cannot grow beyond `bytes` bytes, as on a full disk.
template <class F>
std::string error_on_full_disk(size_t bytes, F&& f) {
    rlimit before{};
    RG_CHECK(::getrlimit(RLIMIT_FSIZE, &before) == 0, "getrlimit");
    rlimit small = before;
    small.rlim_cur = bytes;
    const auto handler = std::signal(SIGXFSZ, SIG_IGN);
    RG_CHECK(::setrlimit(RLIMIT_FSIZE, &small) == 0, "setrlimit");
    const std::string error = error_of(f);
    ::setrlimit(RLIMIT_FSIZE, &before);
    std::signal(SIGXFSZ, handler);
    return error;
}

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// Equals each text that contains all of these parts. If a check fails, doctest prints the text and the parts.
struct Containing {
    std::vector<std::string> parts;
    Containing(std::initializer_list<std::string> all_parts) : parts(all_parts) {}
    bool operator==(const std::string& text) const {
        return std::ranges::all_of(parts, [&](const std::string& part) { return contains(text, part); });
    }
    friend std::ostream& operator<<(std::ostream& out, const Containing& c) {
        for (const std::string& part : c.parts) out << "... " << part << " ";
        return out << "...";
    }
};

/// Checks that a call throws an Error whose text contains `part`. The call comes last, since it may have commas.
#define CHECK_ERROR(part, ...) CHECK(error_of([&] { __VA_ARGS__; }) == Containing{part})

} // namespace rg
