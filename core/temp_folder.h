// A folder for temporary files.
#pragma once

#include "ringgrad/core/base.h"

#include <cstdlib>
#include <filesystem>

namespace rg {

/// A new folder that only this user can open, below std::filesystem::temp_directory_path(): $TMPDIR if that is set,
/// usually /tmp otherwise. The destructor removes the folder with its contents.
class TempFolder {
public:
    TempFolder() : path_((std::filesystem::temp_directory_path() / "ringgrad-XXXXXX").string()) {
        RG_CHECK(::mkdtemp(path_.data()), "temporary folder: expected to create ", path_,
                 ", got an error; set TMPDIR to a folder with free space");
    }
    ~TempFolder() {
        std::error_code ignored;
        std::filesystem::remove_all(path_, ignored);
    }
    TempFolder(const TempFolder&) = delete;
    TempFolder& operator=(const TempFolder&) = delete;
    const std::string& path() const { return path_; }

private:
    std::string path_;
};

} // namespace rg
