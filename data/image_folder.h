// Reads folders of images. layout.h says which images are for training and for testing, and which labels they have.
//
// Images are the PNGs and JPEGs anywhere below the folder, sorted, so the set does not depend on the file system. All
// must have the same size, unless a Conversion (decode.h) resizes them.
//
// An image that cannot be used is an error, unless the caller asks to skip such images. These are images in other
// formats (GIF, WebP, TIFF, BMP, HEIF, AVIF, PNM, JPEG 2000, JPEG XL), beside the class folders, damaged, or of another
// size than the first good one. In most formats, a file is recognised by its first bytes, whatever its name: a PNG may
// be named 1.jpg or 1. Otherwise, the end of its name tells the format. Hidden files and folders (.DS_Store, ._1.png),
// __MACOSX, @eaDir, and other files such as README.md are ignored. Links are followed. A broken link is an error even
// if images are skipped, unless it is hidden.
#pragma once

#include "data/decode.h"

namespace rg::data {

/// Tables beside images: CSV with a line per image, its path below the folder of the table, and its values. An image
/// has its line in the nearest table above it that has one for it. kLabelsFile has the kind of values that
/// LoadOptions::labels names: a class, which replaces the class folder; one or more numbers, which become its targets;
/// or any number of classes, separated by spaces, |, or commas in quotes, which become targets of 0 or 1. kAnglesFile
/// gives numbers, such as an angle, to images with classes. A table may have a heading, which names the numbers.
inline constexpr const char *kAnglesFile = "angles.csv", *kLabelsFile = "labels.csv";

/// Reads all images of a folder. With LoadOptions::unlabelled, an image beside the class folders has the name of the
/// folder itself as its class, an image without a line in an existing table has no label of its own and the target NAN,
/// and sets may differ in classes.
///
/// Throws Error if there is no such folder, for a broken link, or for a wrong table: one with wrong lines or a second
/// line for an image, or with labels for images that are missing. Throws Error if neither folders nor a table give
/// classes or targets. Without LoadOptions::unlabelled, throws Error if a class folder has no images, test images have
/// another class than the training images, or an image has no line in an existing table, or in one that
/// LoadOptions::labels needs. Throws Error for an image that cannot be used; if such images are skipped, only if no
/// image of the class folders is left.
TrainTest read_images(const std::string& folder, const LoadOptions& options, Conversion& conversion);

/// Returns the paths of all files and folders that read_images() depends on: folders, images, also of formats that are
/// left out, and tables. Throws Error for a broken link, and if a folder cannot be read.
std::vector<std::string> image_parts(const std::string& folder);

/// Decodes a PNG or a JPEG. `name` is the name of the file, for error texts. Throws Error if the file is neither, or
/// cannot be decoded (see Image::damage).
Image decode_image(Bytes bytes, const std::string& name);
/// Reads the file and decodes it.
Image read_image(const std::string& path);

/// Reads a mask for each image of a folder: that of NAME.jpg is FOLDER/NAME.png, a grey PNG of any depth or one with a
/// palette, of the input's size. Its stored samples or palette indices are labels below `labels`. Returns i32 [n h w].
/// Throws Error if a mask is missing, damaged or of another kind, if the images come from no folder, or if inputs are
/// windows of larger images.
Tensor read_masks(const ImageSet& images, const std::string& folder, int64_t labels);

} // namespace rg::data
