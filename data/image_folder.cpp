// Class folders of PNGs: list everything first, so that missing images are told before minutes of decoding.
#include "data/image_folder.h"

#include "core/atomic_file.h"
#include "data/png.h"

#include <algorithm>
#include <charconv>
#include <filesystem>

namespace rg::data {

namespace {

namespace fs = std::filesystem;

bool hidden(const fs::path& path) { return path.filename().string().starts_with('.'); }

bool is_png_name(const fs::path& path) {
    std::string ending = path.extension().string();
    std::transform(ending.begin(), ending.end(), ending.begin(), [](unsigned char c) { return char(c | 32); });
    return ending == ".png";
}

std::vector<fs::path> class_folders(const std::string& path) {
    std::vector<fs::path> folders;
    for (const fs::directory_entry& entry : fs::directory_iterator(path))
        if (entry.is_directory() && !hidden(entry.path())) folders.push_back(entry.path());
    std::sort(folders.begin(), folders.end());
    RG_CHECK(!folders.empty(), "image folder: expected class folders of PNG images, got none (", path, ")");
    return folders;
}

struct Listed {
    std::string path;
    int32_t label;
};

/// Every file and its label; fills `classes` if it is empty.
std::vector<Listed> list(const std::string& path, std::vector<std::string>& classes) {
    const bool given = !classes.empty();
    std::vector<Listed> files;
    for (const fs::path& folder : class_folders(path)) {
        const std::string name = folder.filename().string();
        if (!given) classes.push_back(name);
        const auto found = std::find(classes.begin(), classes.end(), name);
        RG_CHECK(found != classes.end(), "image folder: expected the ", classes.size(),
                 " classes of the training set, got ", name, " (", path, ")");
        const std::vector<fs::path> images = png_files(folder);
        RG_CHECK(!images.empty(), "image folder: expected PNG images, got none (", folder.string(), ")");
        for (const fs::path& image : images) files.push_back({image.string(), int32_t(found - classes.begin())});
    }
    return files;
}

std::vector<float> targets_of(const std::vector<Listed>& files, const std::string& folder) {
    const std::string table = folder + "/" + kAnglesFile;
    std::vector<float> targets;
    if (!fs::exists(table)) return targets;
    const Angles numbers = parse_angles(read_file(table), table);
    for (const Listed& file : files) {
        const std::string name = fs::path(file.path).lexically_relative(folder).generic_string();
        const auto found = numbers.find(name);
        RG_CHECK(found != numbers.end(), "image folder: expected a line for ", name, ", got none (", table, ")");
        targets.push_back(found->second);
    }
    return targets;
}

} // namespace

std::vector<fs::path> png_files(const fs::path& folder) {
    std::vector<fs::path> files;
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder))
        if (entry.is_regular_file() && !hidden(entry.path()) && is_png_name(entry.path()))
            files.push_back(entry.path());
    std::sort(files.begin(), files.end());
    return files;
}

Angles parse_angles(const std::string& text, const std::string& name) {
    Angles numbers;
    int64_t line_number = 0;
    for (size_t begin = 0, end; begin < text.size(); begin = end + 1) {
        end = std::min(text.find('\n', begin), text.size());
        std::string_view line = std::string_view(text).substr(begin, end - begin);
        if (line.ends_with('\r')) line.remove_suffix(1);
        const size_t comma = std::min(line.rfind(','), line.size());
        if (++line_number == 1) continue;
        float number = 0;
        const auto [stop, error] =
            std::from_chars(line.data() + std::min(comma + 1, line.size()), line.data() + line.size(), number);
        RG_CHECK(comma > 0 && comma < line.size() && error == std::errc() && stop == line.data() + line.size(),
                 "image folder: expected file,angle, got ", line, " (", name, ", line ", line_number, ")");
        RG_CHECK(numbers.emplace(line.substr(0, comma), number).second, "image folder: expected one line for ",
                 line.substr(0, comma), ", got a second one (", name, ", line ", line_number, ")");
    }
    return numbers;
}

ImageSet read_image_folder(const std::string& path, int channels, std::vector<std::string> classes) try {
    RG_CHECK(channels == 1 || channels == 3, "image folder: expected 1 or 3 channels, got ", channels);
    RG_CHECK(fs::is_directory(path), "image folder: expected a folder, got ", fs::exists(path) ? "a file" : "nothing",
             " (", path, ")");
    const std::vector<Listed> files = list(path, classes);
    ImageSet set{int64_t(files.size()), 0, 0, channels, {}, {}, std::move(classes), targets_of(files, path)};
    set.labels.reserve(files.size());
    for (const Listed& file : files) {
        const Image image = to_u8(read_png(file.path), channels);
        if (set.labels.empty()) {
            set.height = image.height;
            set.width = image.width;
            set.pixels.reserve(files.size() * image.pixels.size());
        }
        RG_CHECK(image.height == set.height && image.width == set.width, "image folder: expected images of one size, ",
                 set.width, " x ", set.height, " as in ", files[0].path, ", got ", image.width, " x ", image.height,
                 " (", file.path, ")");
        set.pixels.insert(set.pixels.end(), image.pixels.begin(), image.pixels.end());
        set.labels.push_back(file.label);
    }
    return set;
} catch (const fs::filesystem_error& error) {
    fail("image folder: cannot read ", error.path1().string(), ": ", error.code().message());
}

} // namespace rg::data
