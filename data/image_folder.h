// Reads folders of images. layout.h says which images are for training and for testing, and which labels they have.
//
// Images are the PNGs and JPEGs anywhere below the folder, sorted, so the set does not depend on the file system. All
// must have the same size, unless a Conversion (decode.h) resizes them.
//
// An image that cannot be used is an error, unless the caller asks to skip such images. There are two kinds: an image
// in another format (GIF, WebP, TIFF, BMP, HEIF, AVIF, PNM, JPEG 2000, JPEG XL) and an image beside the class folders.
// In most formats, a file is recognised by its first bytes, whatever its name: a PNG may be named 1.jpg or 1.
// Otherwise, the end of its name tells the format. Hidden files and folders (.DS_Store, ._1.png), __MACOSX, @eaDir, and
// other files (README.md) are ignored. Links are followed. A broken link is an error even if images are
// skipped, unless it is hidden.
#pragma once

#include "ringgrad/data/bytes.h"
#include "ringgrad/data/decode.h"
#include "ringgrad/data/layout.h"

#include <filesystem>
#include <map>

namespace rg::data {

/// Tables beside images: CSV with a line per image, its path below the folder of the table, and its values. kLabelsFile
/// has what LoadOptions::labels says: a class, which replaces the class folder; one or more numbers, which become its
/// targets; or any number of classes, separated by spaces or |, which become targets of 0 or 1. It may have a heading,
/// which names the numbers. kAnglesFile has one number, the angle, and a heading.
inline constexpr const char *kAnglesFile = "angles.csv", *kLabelsFile = "labels.csv";

struct Table {
    std::string first;                // file in the first line, which may be the heading
    std::vector<std::string> heading; // values in the first line
    std::map<std::string, std::vector<std::string>, std::less<>> values; // by file
};
using Tables = std::map<std::string, Table, std::less<>>; // by the folder of the table, such as "train/"

/// Reads a table. Throws Error, with `name` and the line, for a wrong line or a second line for a file. The first line
/// tells how many numbers there are; classes are one field. The fields before are the file, which may have commas.
Table parse_table(const std::string& text, Labels labels, const std::string& name);

class ImageFolder {
public:
    /// Lists the folder. Throws Error if there is none, for a broken link, a wrong table, an image without a line in
    /// kLabelsFile, if this exists or LoadOptions::labels needs it, or a line without an image and, unless images are
    /// skipped, for images of other formats.
    ImageFolder(const std::string& folder, const LoadOptions& options);

    const Layout& layout() const { return layout_; }
    /// Returns the path of an image for opening it.
    std::string path(const Layout::Image& image) const { return folder_ + "/" + image.file; }
    /// Reads all images. With LoadOptions::unlabelled, an image beside the class folders has the name of the folder
    /// itself as its class, an image without a line in a table has the targets NAN, and sets may differ in classes.
    /// Throws Error if there are no class folders, a class folder has no images, test images have another class than
    /// the training images, an image is damaged, images differ in size, an image has no line in an existing kAnglesFile
    /// or, unless images of the wrong kind are skipped, an image lies beside the class folders.
    TrainTest read(Conversion& conversion) const;

private:
    /// Returns the paths of images with their class folders.
    std::vector<std::string> class_paths(const std::vector<std::string>& images, const Tables& labels,
                                         const LoadOptions& options) const;
    /// Adds the targets of an image to `to`, from the table that is nearest above it.
    void add_targets(const Layout::Image& image, std::vector<float>& to) const;

    const std::string folder_;
    const bool skip_other_images_, unlabelled_;
    Layout layout_;
    std::vector<std::string> empty_folders_;
    const Labels labels_;
    Tables targets_;                        // the tables with the targets, without headings
    std::vector<std::string> target_names_; // sorted, if they are classes
};

/// Returns true for names of files and folders that systems put beside the user's: hidden ones, and previews.
bool is_hidden(const std::string& name);

/// Returns the format of an image, such as "JPEG", or "" if the file does not look like an image. `begin` is the
/// beginning of the file; kFormatBytes bytes are enough. If these do not tell the format, the end of the name does.
constexpr size_t kFormatBytes = 16;
std::string image_format(const std::string& name, Bytes begin);

/// Decode a PNG or a JPEG, from the bytes of a file or from the file. Throw Error if it is neither, or is damaged.
/// `name` is for error texts.
Image decode_image(Bytes bytes, const std::string& name);
Image read_image(const std::string& path);

/// Advice for error texts about images in other formats.
constexpr const char* kHowToConvert = "convert it to PNG, e.g. with ImageMagick: mogrify -format png *.webp";

/// Counts the images of a data set that cannot be used.
struct OtherImages {
    int64_t count = 0;
    std::string first, format; // name and format of the first one
    void add(const std::string& name, const std::string& format_name);
    /// Throws Error if there are any.
    void check() const;
};

} // namespace rg::data
