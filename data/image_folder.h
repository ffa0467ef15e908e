// Reads class folders of PNGs: the name of the class folder is the label.
//
// By default, classes are the sorted names of the sub-folders. Images are the PNGs anywhere below them, sorted, so the
// set does not depend on the file system. All must have the same size, unless a Conversion (decode.h) resizes them.
//
// An image that cannot be used is an error, unless the caller asks to skip such images. There are two kinds: an image
// in another format (JPEG, GIF, WebP, TIFF, BMP, HEIF, AVIF, PNM, JPEG 2000, JPEG XL) and an image beside the class
// folders. In most formats, a file is recognised by its first bytes, whatever its name: a PNG may be named 1.jpg or 1.
// Otherwise, the end of its name tells the format. Hidden files and folders (.DS_Store, ._1.png) and other files
// (README.md, angles.csv) are ignored. Links are followed. A broken link is an error even if images are skipped, unless
// it is hidden.
#pragma once

#include "ringgrad/data/bytes.h"
#include "ringgrad/data/decode.h"

#include <filesystem>
#include <map>

namespace rg::data {

constexpr const char* kAnglesFile = "angles.csv";
/// Reads all images, and converts them to 1 (grey) or 3 (RGB) channels of 8 bits. If `classes` is not empty, labels are
/// indices into it. Then another class is an error, but the folder of a class may be missing (for a test set that
/// belongs to a training set). If the folder has a file kAnglesFile, its numbers become the targets. That file has the
/// heading "file,angle", and then one line per image with its path below the folder and its number. Throws Error if
/// there are no class folders, a class folder has no PNGs, a PNG cannot be decoded, or images differ in size. Also
/// throws if a line of kAnglesFile is wrong or missing, and, unless `skip_other_images`, if an image cannot be used.
ImageSet read_image_folder(const std::string& path, int channels, std::vector<std::string> classes = {},
                           bool skip_other_images = false);
/// Does the same with a Conversion, which may also resize images, and counts the changed images of several folders.
ImageSet read_image_folder(const std::string& path, Conversion& conversion, std::vector<std::string> classes,
                           bool skip_other_images);

/// Returns the number of each image path in the text of an angles.csv, after its heading. Throws Error, with `name`,
/// for a wrong line or a second line for an image.
using Angles = std::map<std::string, float, std::less<>>;
Angles parse_angles(const std::string& text, const std::string& name);

/// Returns the PNGs anywhere below a folder, sorted, except hidden ones; possibly none. Throws Error if there is no
/// such folder, for a broken link and, unless `skip_other_images`, for an image of another kind.
std::vector<std::filesystem::path> png_files(const std::filesystem::path& folder, bool skip_other_images = false);

/// Returns the format of an image, such as "JPEG", or "" if the file does not look like an image. `begin` is the
/// beginning of the file; kFormatBytes bytes are enough. If these do not tell the format, the end of the name does.
constexpr size_t kFormatBytes = 16;
std::string image_format(const std::string& name, Bytes begin);

/// Advice for error texts about images in other formats.
constexpr const char* kHowToConvert = "convert it to PNG, e.g. with ImageMagick: mogrify -format png *.jpg";

/// Counts the images of a data set that cannot be used.
struct OtherImages {
    int64_t count = 0;
    std::string first, format; // name and format of the first one
    void add(const std::string& name, const std::string& format_name);
    /// Throws Error if there are any.
    void check() const;
};

/// Returns the text with the letters A to Z in lower case.
std::string lower(std::string text);

/// Returns true if the name of the file, or of a folder in its path, begins with a dot. Ignores "." and "..".
bool is_hidden(const std::filesystem::path& path);

} // namespace rg::data
