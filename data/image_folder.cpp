// Reads folders of images. Lists all files first, to report missing and unusable images before minutes of decoding.
#include "data/image_folder.h"

#include "core/atomic_file.h"
#include "core/stop.h"
#include "core/text.h"
#include "data/jpeg.h"
#include "data/layout.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

namespace rg::data {

namespace {

namespace fs = std::filesystem;
using namespace std::string_view_literals;

/// An image format: its file name endings, each between spaces, and its identifying bytes at `offset`, if it has any.
struct ImageFormat {
    std::string_view name, endings, bytes;
    size_t offset = 0;
};
constexpr ImageFormat kFormats[] = {
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

/// Returns advice for error texts about an image in another format.
std::string how_to_convert(const fs::path& path) {
    const fs::path ending = path.extension();
    return cat("convert it to PNG, e.g. with ImageMagick: mogrify -format png ",
               ending.empty() ? path.filename().string() : "*" + ending.string());
}

/// Returns the format of an image, such as "JPEG", or "" if the file does not look like an image. `begin` is the
/// beginning of the file; kFormatBytes bytes are enough. If these do not tell the format, the end of the name does.
constexpr size_t kFormatBytes = 16;
std::string image_format(const std::string& name, Bytes begin) {
    const std::string_view bytes = as_text(begin.first(std::min(begin.size(), kFormatBytes)));
    for (const ImageFormat& format : kFormats)
        if (!format.bytes.empty() && bytes.size() > format.offset &&
            bytes.substr(format.offset).starts_with(format.bytes))
            return std::string(format.name);
    if (const std::string ending = lower(fs::path(name).extension().string()); !ending.empty())
        for (const ImageFormat& format : kFormats)
            if (format.endings.find(cat(" ", ending, " ")) != format.endings.npos) return std::string(format.name);
    return {};
}

/// The reason to leave out an image that no class folder holds.
constexpr const char* kBeside = "an image beside the class folders";

std::string first_bytes(const fs::path& path) {
    std::string bytes(kFormatBytes, '\0');
    std::ifstream file(path, std::ios::binary);
    file.read(bytes.data(), std::streamsize(bytes.size()));
    bytes.resize(size_t(file.gcount()));
    return bytes;
}

/// With --skip-other-images, lists files as left out. Without it, throws Error with advice for the first, if there are
/// any. `others` are their names with the reasons.
void leave_out(const std::map<std::string, std::string>& others, const LoadOptions& options, Conversion& conversion) {
    for (const auto& [name, reason] : others) {
        const std::string text = cat(name, " (", reason, ")");
        RG_CHECK(options.skip_other_images, "image folder: expected only PNG and JPEG images in class folders, got ",
                 others.size(), " other image", others.size() == 1 ? ", " : "s, the first is ", text, "; ",
                 reason == kBeside ? "move it into one" : how_to_convert(name) + ", then remove the original",
                 "; or leave out such files with --skip-other-images");
        conversion.leave_out(text);
    }
}

/// The files of a folder, as paths below it.
struct Listing {
    std::vector<std::string> images, angles, labels, folders; // images: sorted; angles, labels: tables
    std::map<std::string, std::string> others; // formats of images that cannot be read, by path with the folder
};

/// The class of all images that have no single class.
constexpr const char* kNoClass = "images";

bool can_read(const std::string& format) { return format == "PNG" || format == "JPEG"; }

/// Returns true for names of files and folders that systems put beside the user's.
bool is_hidden(const std::string& name) {
    return name.starts_with('.') || name == "__MACOSX" || name == "@eaDir" || name == "Thumbs.db";
}

/// Lists a folder, but not the files and folders that systems put beside the user's: hidden ones, and previews. Follows
/// links. Believes names that end in .png or .jpg, so that such files are opened only once, unless images of other
/// formats are skipped. Throws Error for a broken link, since its file would be missing from the set, and for a folder
/// that cannot be read. Throws Stopped after a stop request.
Listing list(const fs::path& folder, bool skip_other_images) {
    Listing listing;
    const size_t prefix = (folder / "").string().size();
    std::error_code error;
    std::string last = folder;
    constexpr auto kFollow = fs::directory_options::follow_directory_symlink;
    for (fs::recursive_directory_iterator entry(folder, kFollow, error), end; entry != end; entry.increment(error)) {
        check_stop();
        last = entry->path();
        const std::string name = entry->path().filename();
        if (is_hidden(name)) {
            entry.disable_recursion_pending();
            continue;
        }
        RG_CHECK(!entry->is_symlink() || entry->exists(),
                 "image folder: expected a file or a folder, got a broken link (", last, ")");
        std::string below = last.substr(prefix); // lexically_relative() would take many times as long
        if (entry->is_directory()) listing.folders.push_back(below + "/");
        if (!entry->is_regular_file()) continue;
        if (name == kAnglesFile)
            listing.angles.push_back(std::move(below));
        else if (name == kLabelsFile)
            listing.labels.push_back(std::move(below));
        else if (!skip_other_images && can_read(image_format(last, {})))
            listing.images.push_back(std::move(below));
        else if (const std::string format = image_format(last, as_bytes(first_bytes(last))); can_read(format))
            listing.images.push_back(std::move(below));
        else if (!format.empty())
            listing.others.emplace(last, format);
    }
    RG_CHECK(!error, "image folder: cannot read ", last, ": ", error.message());
    std::sort(listing.images.begin(), listing.images.end());
    return listing;
}

/// Returns the folders with no image anywhere below them.
std::vector<std::string> without_images(const Listing& listing) {
    std::set<std::string_view> with_images;
    for (const std::string& image : listing.images)
        for (size_t slash = image.rfind('/'); slash != image.npos;
             slash = slash == 0 ? image.npos : image.rfind('/', slash - 1))
            if (!with_images.insert(std::string_view(image).substr(0, slash + 1)).second) break;
    std::vector<std::string> empty;
    for (const std::string& folder : listing.folders)
        if (!with_images.contains(folder)) empty.push_back(folder);
    std::sort(empty.begin(), empty.end());
    return empty;
}

struct CsvTable {
    std::vector<std::string> heading; // names of the values; empty: the table has no heading
    size_t columns = 0;               // number of values in each line
    std::map<std::string, std::vector<std::string>, std::less<>> values; // values of each file
};
using CsvTables = std::map<std::string, CsvTable, std::less<>>; // the table of each folder, such as "train/"

/// A table with more bytes is refused; ten million images need fewer.
constexpr uintmax_t kMostTableBytes = uintmax_t{1} << 30;

/// Reads a finite number, which may begin with +. Returns false if the text is none.
bool read_value(std::string_view text, float& value) {
    double wide = 0;
    const bool plus = text.starts_with('+') && !text.starts_with("+-");
    const bool good = read_number(text.substr(plus), wide);
    value = float(wide);
    return good && std::isfinite(value);
}
bool is_number(const std::string& text) {
    float value = 0;
    return read_value(text, value);
}

/// Returns advice for a line whose file is not among the images, or "".
std::string advice_for(const std::vector<std::string>& images, const std::string& where, const std::string& file,
                       const std::vector<std::string>& fields) {
    const auto known = [&](const std::string& name) { return std::ranges::binary_search(images, where + name); };
    const auto longer = std::ranges::lower_bound(images, where + file + ".");
    if (longer != images.end() && longer->starts_with(where + file + "."))
        return cat("; write the ending of its name too: ", longer->substr(where.size()));
    if (fields.size() > 2 && std::ranges::any_of(fields, known))
        return "; a table has files and classes, or files and numbers, so remove the other columns";
    return known(fields.back()) ? "; the first column has the files" : "";
}

/// Reads a table below a folder as spreadsheets and people write it: blank lines, and spaces around fields, do not
/// count. Throws Error, with the table and the line, for a wrong line, a second line for a file, or in labels.csv a
/// line without an image. The first line tells how many numbers there are; classes are one field. The fields before are
/// the file, which may have commas. The first line is a heading if its file is no image; in a table of numbers, if its
/// values are no numbers, too.
CsvTable read_table(const std::string& folder, const std::string& name, const std::vector<std::string>& images,
                    Labels labels, bool skip_other_images) {
    const std::string path = folder + "/" + name, where = name.substr(0, name.rfind('/') + 1);
    const bool of_numbers = labels == Labels::numbers;
    RG_CHECK(fs::file_size(path) <= kMostTableBytes, "image folder: expected a table of at most ",
             kMostTableBytes >> 20, " MiB, got ", fs::file_size(path) >> 20, " (", path, ")");
    const std::string whole = read_file(path);
    std::string_view text = whole;
    constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF"; // spreadsheets begin a table in UTF-8 with it
    if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
    const char line_break = text.find('\n') == text.npos ? '\r' : '\n'; // old spreadsheets write \r alone
    CsvTable table;
    for (int64_t number = 1; !text.empty(); ++number) {
        check_stop();
        const size_t end = std::min(text.find(line_break), text.size());
        const std::string_view line = trimmed(text.substr(0, end));
        text.remove_prefix(std::min(end + 1, text.size()));
        const std::string at = cat(path, ", line ", number);
        RG_CHECK(line.find('\0') == line.npos, "image folder: expected UTF-8, got zero bytes (", at,
                 "); save the table as UTF-8");
        std::vector<std::string> fields = csv_fields(line, at);
        for (std::string& field : fields) field = trimmed(field);
        if (std::ranges::all_of(fields, &std::string::empty)) continue;
        const bool first = table.columns == 0;
        if (first) table.columns = of_numbers ? std::max<size_t>(1, fields.size() - 1) : 1;
        const auto end_of_file = fields.end() - std::ptrdiff_t(std::min(table.columns, fields.size()));
        const std::vector<std::string> values(end_of_file, fields.end());
        std::string file; // may have commas
        for (auto field = fields.begin(); field != end_of_file; ++field) file += (file.empty() ? "" : ",") + *field;
        while (file.starts_with("./")) file.erase(0, 2);
        const bool numbers = of_numbers && std::ranges::all_of(values, is_number);
        const bool known = std::ranges::binary_search(images, where + file);
        const bool heading = first && !known && !numbers && !can_read(image_format(file, {}));
        RG_CHECK(!file.empty() && (!of_numbers || numbers || heading), "image folder: expected a file and ",
                 of_numbers ? cat(table.columns, table.columns == 1 ? " number" : " numbers") : "a label", ", got ",
                 line, " (", at, ")",
                 line.find_first_of(";\t") == line.npos ? "" : "; separate them by a comma, not by ; or a tab");
        RG_CHECK(std::ranges::all_of(values, is_utf8), "image folder: expected UTF-8, got other bytes in ", line, " (",
                 at, "); save the table as UTF-8");
        if (heading) {
            table.heading = values;
            continue;
        }
        RG_CHECK(
            known || name.ends_with(kAnglesFile) || (skip_other_images && fs::exists(cat(folder, "/", where, file))),
            "image folder: expected an image ", file, ", got none (", at, ")", advice_for(images, where, file, fields));
        const std::string& label = values.front();
        RG_CHECK(labels != Labels::one_class ||
                     (!label.empty() && label.find('/') == label.npos && label != "." && label != ".."),
                 "image folder: expected a label that can name a folder, got \"", label, "\" (", at, ")");
        RG_CHECK(table.values.emplace(file, values).second, "image folder: expected one line for ", file,
                 ", got a second one (", at, ")");
    }
    RG_CHECK(table.columns > 0, "image folder: expected a table with lines, got none (", path, ")");
    return table;
}

/// Returns the values for a path from the nearest table above it that has a line for it, or nullptr.
const std::vector<std::string>* find_values(const CsvTables& tables, std::string_view path) {
    for (size_t end = path.rfind('/') + 1;; end = path.rfind('/', end - 2) + 1) {
        if (const auto table = tables.find(path.substr(0, end)); table != tables.end())
            if (const auto line = table->second.values.find(path.substr(end)); line != table->second.values.end())
                return &line->second;
        if (end < 2) return nullptr;
    }
}

/// Returns the classes in a field, which are separated by spaces, tabs, |, commas or semicolons.
std::vector<std::string> classes_in(std::string field) {
    std::ranges::replace_if(
        field, [](char c) { return std::string_view("|,;\t").find(c) != std::string_view::npos; }, ' ');
    std::vector<std::string> classes = split(field, ' ');
    std::erase(classes, "");
    return classes;
}

/// The targets of images, from tables of numbers or of several classes.
class TargetReader {
public:
    TargetReader(CsvTables tables, Labels labels)
        : tables_(std::move(tables)), several_(labels == Labels::several_classes) {
        std::set<std::string> classes;
        for (const auto& [where, table] : tables_) {
            if (several_) {
                for (const auto& [file, values] : table.values)
                    for (const std::string& name : classes_in(values.front())) classes.insert(name);
                continue;
            }
            std::vector<std::string> own = table.heading;
            while (own.size() < table.columns) own.push_back(cat("value", own.size() + 1));
            RG_CHECK(names.empty() || names == own, "image folder: expected tables with the same columns, got others (",
                     where, ")");
            names = own;
        }
        if (several_) names.assign(classes.begin(), classes.end());
    }
    /// Appends the targets of an image to `to`, or NAN if it has none.
    void add(const std::string& file, std::vector<float>& to) const {
        const std::vector<std::string>* const values = find_values(tables_, file);
        to.resize(to.size() + names.size(), values && several_ ? 0.0f : NAN);
        const std::span<float> own = std::span(to).last(names.size());
        if (values && several_)
            for (const std::string& name : classes_in(values->front()))
                own[size_t(std::ranges::lower_bound(names, name) - names.begin())] = 1;
        else if (values)
            for (size_t i = 0; i < own.size(); ++i) read_value((*values)[i], own[i]);
    }
    std::vector<std::string> names; // sorted, if they are classes

private:
    CsvTables tables_;
    const bool several_;
};

/// Returns the argument `labels` of layout_of(): a label for each image, or "" if its class folder gives it. Returns
/// none if the class folders give all.
std::vector<std::string> given_labels(const std::string& folder, const std::vector<std::string>& images,
                                      const CsvTables& tables, const LoadOptions& options) {
    const bool of_classes = options.labels == Labels::one_class, of_parents = options.label_from == LabelFrom::parent;
    const bool from_folders = tables.empty() && of_classes;
    if (from_folders && !of_parents) return {};
    std::vector<std::string> labels;
    for (const std::string& image : images) {
        const std::vector<std::string>* const values = find_values(tables, image);
        RG_CHECK(values || options.labels == Labels::none || from_folders || options.unlabelled,
                 "image folder: expected a line for ", image, " in ", kLabelsFile, ", got none (", folder, ")");
        const bool no_class = !of_classes && (values || options.labels == Labels::none);
        labels.push_back(no_class     ? kNoClass
                         : values     ? values->front()
                         : of_parents ? fs::path(image).parent_path().filename().string()
                                      : "");
    }
    return labels;
}

} // namespace

Image decode_image(Bytes bytes, const std::string& name) {
    if (is_jpeg(bytes)) return decode_jpeg(bytes, name);
    const std::string format = image_format(name, bytes);
    RG_CHECK(is_png(bytes) || name.ends_with(".png") || format == "PNG", "expected a PNG or a JPEG, got ",
             format.empty() || can_read(format) ? "another file" : format, " (", name, ")",
             format.empty() || can_read(format) ? "" : cat("; ", how_to_convert(name)));
    return decode_png(bytes, name);
}

std::vector<std::string> image_parts(const std::string& folder) {
    const Listing listing = list(folder, false);
    std::vector<std::string> paths;
    for (const auto* const below : {&listing.images, &listing.angles, &listing.labels, &listing.folders})
        for (const std::string& path : *below) paths.push_back(folder + "/" + path);
    for (const auto& [path, format] : listing.others) paths.push_back(path);
    return paths;
}

Image read_image(const std::string& path) { return decode_image(as_bytes(read_file(path)), path); }

TrainTest read_images(const std::string& folder, const LoadOptions& options, Conversion& conversion) try {
    const Listing listing = list(folder, options.skip_other_images);
    leave_out(listing.others, options, conversion);
    const auto read_tables = [&](const std::vector<std::string>& files, Labels labels) {
        CsvTables tables;
        for (const std::string& file : files)
            tables[file.substr(0, file.rfind('/') + 1)] =
                read_table(folder, file, listing.images, labels, options.skip_other_images);
        return tables;
    };
    const CsvTables labels = options.labels == Labels::none ? CsvTables() : read_tables(listing.labels, options.labels);
    Layout layout = layout_of(listing.images, folder, given_labels(folder, listing.images, labels, options));
    const bool of_classes = options.labels == Labels::one_class;
    const TargetReader targets = of_classes
                                     ? TargetReader(read_tables(listing.angles, Labels::numbers), Labels::numbers)
                                     : TargetReader(labels, options.labels);
    const std::vector<std::string> empty_folders = without_images(listing);
    const std::string own_name = fs::canonical(folder).filename().string();
    if (options.unlabelled)
        for (std::vector<Layout::ListedImage>* const images : {&layout.train, &layout.test})
            for (Layout::ListedImage& image : *images)
                if (image.label().empty()) image.given = own_name;
    const std::vector<std::string> classes = layout.classes(options.unlabelled);
    RG_CHECK(!classes.empty(), "image folder: expected class folders of images, got ",
             listing.images.empty() ? "none" : cat("only images without a folder, such as ", listing.images.front()),
             " (", folder, "); put the images of each class into a folder of its name, or add ", kLabelsFile,
             " with lines file,label");
    ImageSet all{.classes = classes, .target_names = targets.names};
    int64_t train = 0; // number of images for training; they come first
    std::map<std::string, std::string> beside;
    for (const std::vector<Layout::ListedImage>* images : {&layout.train, &layout.test})
        for (const Layout::ListedImage& image : *images) {
            if (image.label().empty()) {
                beside.emplace(folder + "/" + image.file, kBeside);
                continue;
            }
            for (const std::string& empty : empty_folders) // a folder beside a class folder is one, too
                RG_CHECK(options.unlabelled || !image.given.empty() ||
                             empty.rfind('/', empty.size() - 2) + 1 != image.position ||
                             !empty.starts_with(std::string_view(image.file).substr(0, image.position)),
                         "image folder: expected images, got none (", folder, "/", empty.substr(0, empty.size() - 1),
                         "); remove the folder, or add images");
            const std::string_view label = image.label();
            const auto match = std::lower_bound(classes.begin(), classes.end(), label);
            RG_CHECK(match != classes.end() && *match == label, "image folder: expected the ", classes.size(),
                     " classes of the training set, got ", label, " (", folder, ")");
            all.labels.push_back(int32_t(match - classes.begin()));
            all.names.push_back(image.file);
            train += images == &layout.train;
            targets.add(image.file, all.targets);
            RG_CHECK(options.unlabelled || targets.names.empty() || !std::isnan(all.targets.back()),
                     "image folder: expected a line for ", image.file, " in ", kAnglesFile, ", got none (", folder,
                     ")");
        }
    leave_out(beside, options, conversion);
    const auto file = [&](int64_t i) { return folder + "/" + all.names[size_t(i)]; };
    const auto [pixels, kept] =
        conversion.read(std::ssize(all.labels), file, [&](int64_t i) { return read_image(file(i)); });
    all.count = pixels.count, all.height = pixels.height, all.width = pixels.width, all.channels = pixels.channels;
    all.pixels = pixels.pixels;
    const std::span<const int64_t> good = kept;
    const size_t split = size_t(std::lower_bound(good.begin(), good.end(), train) - good.begin());
    return {subset(all, good.first(split)), subset(all, good.subspan(split)), "", layout.warnings};
} catch (const fs::filesystem_error& error) {
    fail("image folder: cannot read ", error.path1().string(), ": ", error.code().message());
}

Tensor read_masks(const ImageSet& images, const std::string& folder, int64_t labels) {
    const auto [height, width] = images.input_size();
    RG_CHECK(height == images.height && width == images.width,
             "masks: expected images of the input's size, got windows ",
             "of larger ones, which have no masks; omit --store-size");
    const Tensor masks = Tensor::empty_on_host({images.count, height, width}, DType::i32);
    int32_t* out = masks.data<int32_t>();
    for (int64_t i = 0; i < images.count; ++i) {
        const std::string& name = images.name(i);
        const std::string path = folder + "/" + fs::path(name).replace_extension(".png").string();
        const Image mask = decode_png(as_bytes(read_file(path)), path, PngSamples::stored);
        RG_CHECK(mask.damage.empty(), "masks: expected an undamaged file, got: ", mask.damage);
        RG_CHECK(mask.height == height && mask.width == width, "masks: expected ", height, " x ", width,
                 " pixels, got ", mask.height, " x ", mask.width, " (", path, ")");
        const int64_t bytes = mask.bit_depth / 8, colours = mask.channels < 3 ? 1 : 3;
        const uint8_t* sample = mask.pixels.data();
        for (int64_t pixel = 0; pixel < height * width; ++pixel, sample += mask.channels * bytes) {
            const int32_t label = bytes == 2 ? sample[0] << 8 | sample[1] : sample[0];
            RG_CHECK(label < labels, "masks: expected labels below ", labels, ", got ", label, " (", path, ")");
            RG_CHECK(std::equal(sample, sample + (colours - 1) * bytes, sample + bytes),
                     "masks: expected grey values or a palette, got colours (", path, ")");
            *out++ = label;
        }
    }
    return masks;
}

} // namespace rg::data
