// A folder of class folders of PNGs: the name of the class folder is the label.
//
// Classes are the sorted names of the sub-folders, images the PNGs anywhere below them in sorted order, so the set
// does not depend on how a file system lists. No resizing: the images must have one size.
//
// Every image counts, so one that is not read is an error, unless the caller skips them: an image in another format
// (JPEG, GIF, WebP, TIFF, BMP, HEIF, AVIF, PNM, JPEG 2000, JPEG XL), a PNG whose name does not end in .png, an image
// beside the class folders. A file is an image if its name ends like one or its first bytes are those of one. Hidden
// files and folders (.DS_Store, ._1.png) and all other files (README.md, angles.csv, Thumbs.db) are ignored. Links are
// followed; a link to nothing is always an error.
#pragma once

#include "data/bytes.h"
#include "data/dataset.h"

#include <filesystem>
#include <map>

namespace rg::data {

/// All images as 1 (grey) or 3 (RGB) channels of 8 bits. When `classes` are given, labels are indices into those:
/// another class is an error, and one may lack images (a test set that goes with a training set). Errors: no class
/// folders, a class without images, a bad PNG, an image of another size (with both files and sizes), and, unless
/// `skip_other_images`, an image that is not read. If the folder has a file kAnglesFile, its numbers become the
/// targets: a line "file,angle", then one such line per image, with the path below the folder. Errors: another line, or
/// an image that has none; with the line or the image.
constexpr const char* kAnglesFile = "angles.csv";
ImageSet read_image_folder(const std::string& path, int channels, std::vector<std::string> classes = {},
                           bool skip_other_images = false);

/// The numbers in the text of such a file, by image. `name` is for errors.
using Angles = std::map<std::string, float, std::less<>>;
Angles parse_angles(const std::string& text, const std::string& name);

/// The PNGs anywhere below a folder, by name, in sorted order. Error: as of read_image_folder().
std::vector<std::filesystem::path> png_files(const std::filesystem::path& folder, bool skip_other_images = false);

/// The format of an image, such as "JPEG", by its first kFormatBytes bytes (or all, if it has fewer), else by the
/// ending of its name; empty if it does not look like an image.
constexpr size_t kFormatBytes = 16;
std::string image_format(const std::string& name, Bytes begin);

/// The end of messages about images in other formats.
constexpr const char* kHowToConvert = "convert it to PNG, e.g. with ImageMagick: mogrify -format png *.jpg";

/// The images of a data set that are not read.
struct OtherImages {
    int64_t count = 0;
    std::string first, format; // of the first
    void add(const std::string& name, const std::string& its_format);
    /// Throws if there are any.
    void check() const;
};

/// True for a path with a hidden file or folder in it.
bool is_hidden(const std::filesystem::path& path);

} // namespace rg::data
