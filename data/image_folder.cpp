// Reads class folders of PNGs. Lists all files first, to report missing and unusable images before minutes of decoding.
#include "ringgrad/data/image_folder.h"

#include "ringgrad/core/atomic_file.h"
#include "ringgrad/core/stop.h"
#include "ringgrad/core/text.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

namespace rg::data {

namespace {

namespace fs = std::filesystem;
using namespace std::string_view_literals;

/// An image format: its file name endings, each between spaces, and its identifying bytes at `offset`, if it has any.
struct Format {
    std::string_view name, endings, bytes;
    size_t offset = 0;
};
constexpr Format kFormats[] = {
    {"JPEG", " .jpg .jpeg .jpe .jfif ", "\xFF\xD8\xFF"},
    {"PNG", " .png ", "\x89PNG\r\n\x1A\n"},
    {"GIF", " .gif ", "GIF8"},
    {"WebP", " .webp ", "WEBP", 8},
    {"TIFF", " .tif .tiff ", "II*\0"sv},
    {"TIFF", "", "MM\0*"sv},
    {"BMP", " .bmp .dib ", ""},
    {"HEIF", " .heic .heif ", "ftyphei", 4},
    {"AVIF", " .avif ", "ftypavi", 4},
    {"PNM", " .pnm .ppm .pgm .pbm ", ""},
    {"JPEG 2000", " .jp2 .j2k ", "jP  \r\n", 4},
    {"JPEG XL", " .jxl ", "JXL \r\n", 4},
};

std::string first_bytes(const fs::path& path) {
    std::string bytes(kFormatBytes, '\0');
    std::ifstream file(path, std::ios::binary);
    file.read(bytes.data(), std::streamsize(bytes.size()));
    bytes.resize(size_t(file.gcount()));
    return bytes;
}

/// Throws Error for a broken link, because its file would be missing from the set.
void check_link(const fs::directory_entry& entry) {
    RG_CHECK(!entry.is_symlink() || entry.exists(), "image folder: expected a file or a folder, got a broken link (",
             entry.path().string(), ")");
}

/// Adds the images among these files to `others`.
void add_images(OtherImages& others, std::vector<fs::path> files, const char* where) {
    std::sort(files.begin(), files.end());
    for (const fs::path& file : files)
        if (const std::string format = image_format(file.string(), as_bytes(first_bytes(file))); !format.empty())
            others.add(file.string(), format + where);
}

/// Returns the class folders. Adds images beside them to `others`.
std::vector<fs::path> class_folders(const std::string& path, OtherImages& others) {
    std::vector<fs::path> folders, files;
    for (const fs::directory_entry& entry : fs::directory_iterator(path)) {
        if (is_hidden(entry.path().filename())) continue;
        check_link(entry);
        if (entry.is_directory())
            folders.push_back(entry.path());
        else if (entry.is_regular_file())
            files.push_back(entry.path());
    }
    std::sort(folders.begin(), folders.end());
    RG_CHECK(!folders.empty(), "image folder: expected class folders of PNG images, got none (", path, ")");
    add_images(others, std::move(files), " beside the class folders");
    return folders;
}

/// Returns true if a file is a PNG. Without `by_content`, believes the name .png, so that the file is opened only once.
bool is_png_file(const fs::path& file, bool by_content) {
    if (!by_content && lower(file.extension().string()) == ".png") return true;
    return image_format(file.string(), as_bytes(first_bytes(file))) == "PNG";
}

/// Returns the PNGs anywhere below a folder. Adds other images to `others`. A file that is only named like a PNG is one
/// of these if it will be skipped; otherwise the decoder refuses it.
std::vector<fs::path> images_below(const fs::path& folder, OtherImages& others, bool skip_other_images) {
    std::vector<fs::path> pngs, files;
    constexpr auto kFollow = fs::directory_options::follow_directory_symlink;
    for (auto entry = fs::recursive_directory_iterator(folder, kFollow); entry != fs::end(entry); ++entry) {
        check_stop();
        if (is_hidden(entry->path().filename())) {
            entry.disable_recursion_pending();
            continue;
        }
        check_link(*entry);
        if (entry->is_regular_file())
            (is_png_file(entry->path(), skip_other_images) ? pngs : files).push_back(entry->path());
    }
    std::sort(pngs.begin(), pngs.end());
    add_images(others, std::move(files), "");
    return pngs;
}

struct Listed {
    std::string path;
    int32_t label;
};

/// Returns every PNG and its label. Fills `classes` if it is empty.
std::vector<Listed> list(const std::string& path, std::vector<std::string>& classes, bool skip_other_images) {
    const bool given = !classes.empty();
    std::vector<Listed> files;
    std::vector<std::string> empty;
    OtherImages others;
    for (const fs::path& folder : class_folders(path, others)) {
        const std::string name = folder.filename().string();
        if (!given) classes.push_back(name);
        const auto match = std::find(classes.begin(), classes.end(), name);
        RG_CHECK(match != classes.end(), "image folder: expected the ", classes.size(),
                 " classes of the training set, got ", name, " (", path, ")");
        const std::vector<fs::path> images = images_below(folder, others, skip_other_images);
        if (images.empty()) empty.push_back(folder.string());
        for (const fs::path& image : images) files.push_back({image.string(), int32_t(match - classes.begin())});
    }
    if (!skip_other_images) others.check(); // the error below would not mention the JPEGs in a folder without PNGs
    RG_CHECK(empty.empty(), "image folder: expected PNG images, got none (", empty[0], ")");
    return files;
}

std::vector<float> targets_of(const std::vector<Listed>& files, const std::string& folder) {
    const std::string table = folder + "/" + kAnglesFile;
    std::vector<float> targets;
    if (!fs::exists(table)) return targets;
    const Angles numbers = parse_angles(read_file(table), table);
    for (const Listed& file : files) {
        const std::string name = fs::path(file.path).lexically_relative(folder).generic_string();
        const auto number = numbers.find(name);
        RG_CHECK(number != numbers.end(), "image folder: expected a line for ", name, ", got none (", table, ")");
        targets.push_back(number->second);
    }
    return targets;
}

} // namespace

std::string lower(std::string text) {
    for (char& c : text)
        if (c >= 'A' && c <= 'Z') c = char(c | 32);
    return text;
}

bool is_hidden(const fs::path& path) {
    return std::any_of(path.begin(), path.end(),
                       [](const fs::path& name) { return name != "." && name != ".." && name.string()[0] == '.'; });
}

std::string image_format(const std::string& name, Bytes begin) {
    const std::string_view bytes = as_text(begin.first(std::min(begin.size(), kFormatBytes)));
    for (const Format& format : kFormats)
        if (!format.bytes.empty() && bytes.size() > format.offset &&
            bytes.substr(format.offset).starts_with(format.bytes))
            return std::string(format.name);
    if (const std::string ending = lower(fs::path(name).extension().string()); !ending.empty())
        for (const Format& format : kFormats)
            if (format.endings.find(cat(" ", ending, " ")) != format.endings.npos) return std::string(format.name);
    return {};
}

void OtherImages::add(const std::string& name, const std::string& format_name) {
    if (count++ == 0) first = name, format = format_name;
}

void OtherImages::check() const {
    if (count == 0) return;
    fail("image folder: expected only PNG images in class folders, got ", count, " other image",
         count == 1 ? ", " : "s, the first is ", first, " (", format, "); ", kHowToConvert,
         ", then remove the original; or leave out such files with --skip-other-images");
}

std::vector<fs::path> png_files(const fs::path& folder, bool skip_other_images) {
    RG_CHECK(fs::is_directory(folder), "expected a folder of PNG images, got none (", folder.string(),
             "); check the path");
    OtherImages others;
    std::vector<fs::path> pngs = images_below(folder, others, skip_other_images);
    if (!skip_other_images) others.check();
    return pngs;
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
        RG_CHECK(comma > 0 && comma < line.size() && read_number(line.substr(comma + 1), number),
                 "image folder: expected file,angle, got ", line, " (", name, ", line ", line_number, ")");
        RG_CHECK(numbers.emplace(line.substr(0, comma), number).second, "image folder: expected one line for ",
                 line.substr(0, comma), ", got a second one (", name, ", line ", line_number, ")");
    }
    return numbers;
}

ImageSet read_image_folder(const std::string& path, int channels, std::vector<std::string> classes,
                           bool skip_other_images) {
    Conversion conversion({.channels = channels});
    return read_image_folder(path, conversion, std::move(classes), skip_other_images);
}

ImageSet read_image_folder(const std::string& path, Conversion& conversion, std::vector<std::string> classes,
                           bool skip_other_images) try {
    RG_CHECK(fs::is_directory(path), "image folder: expected a folder, got ", fs::exists(path) ? "a file" : "nothing",
             " (", path, ")");
    const std::vector<Listed> files = list(path, classes, skip_other_images);
    ImageSet set;
    set.classes = std::move(classes);
    set.targets = targets_of(files, path);
    for (const Listed& file : files) set.labels.push_back(file.label);
    conversion.append(
        set, int64_t(files.size()), [&](int64_t i) { return files[size_t(i)].path; },
        [&](int64_t i) { return read_png(files[size_t(i)].path); });
    return set;
} catch (const fs::filesystem_error& error) {
    fail("image folder: cannot read ", error.path1().string(), ": ", error.code().message());
}

} // namespace rg::data
