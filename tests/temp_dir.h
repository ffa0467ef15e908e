// Defines a new folder for one test case, and functions that test errors.
//
// The folder is in TMPDIR or /tmp, and the end of the scope removes it. Tests never write anywhere else.
#pragma once

#include "ringgrad/core/base.h"
#include "ringgrad/core/temp_folder.h"

namespace rg {

class TempDir : public TempFolder {
public:
    std::string operator/(const std::string& name) const { return path() + "/" + name; }
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
