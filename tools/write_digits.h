// The files of drawn digits, for make_digits and tests.
#pragma once

#include "core/atomic_file.h"
#include "core/formatted.h"
#include "data/dataset.h"
#include "data/image_folder.h"
#include "data/png.h"

#include <filesystem>
#include <fstream>

namespace rg::data {

/// Writes a set with targets as class folders of PNGs (DIR/0/0000.png ...) and DIR/angles.csv, the targets with two
/// decimals. Throws Error if DIR exists and is not an empty folder, or if a file cannot be written.
inline void write_digits(const std::string& dir, const ImageSet& set) try {
    namespace fs = std::filesystem;
    RG_CHECK(!fs::exists(dir) || (fs::is_directory(dir) && fs::is_empty(dir)),
             "digits: expected a folder that is new or empty, got ", dir);
    const int digits = int(std::to_string(set.count - 1).size());
    std::string angles = "file,angle\n";
    std::vector<int64_t> written(set.classes.size());
    for (const std::string& name : set.classes) fs::create_directories(dir + "/" + name);
    for (int64_t i = 0; i < set.count; ++i) {
        const size_t label = size_t(set.labels[size_t(i)]);
        const std::string number = formatted("%0*lld", digits, static_cast<long long>(written[label]++));
        const std::string file = cat(set.classes[label], "/", number, ".png");
        angles += cat(file, ",", formatted("%.2f", double(set.targets[size_t(i)])), "\n");
        // Does not sync each file to disk: that would take minutes for ten thousand files.
        const std::vector<uint8_t> png = encode_png(set.width, set.height, int(set.channels), set.image(i));
        std::ofstream out(dir + "/" + file, std::ios::binary);
        out << as_text(png) << std::flush;
        RG_CHECK(out, "digits: cannot write ", dir, "/", file);
    }
    write_file_atomic(dir + "/" + kAnglesFile, angles); // last: a program killed before leaves no table
} catch (const std::filesystem::filesystem_error& error) {
    fail("digits: cannot write ", error.path1().string(), ": ", error.code().message());
}

} // namespace rg::data
