// A folder of class folders of PNGs: the name of the class folder is the label.
//
// Classes are the sorted names of the sub-folders, images the PNGs anywhere below them in sorted order, so the set
// does not depend on how a file system lists. Hidden files and other file types are passed over. No resizing: the
// images must have one size.
#pragma once

#include "data/dataset.h"

#include <filesystem>
#include <map>

namespace rg::data {

/// All images as 1 (grey) or 3 (RGB) channels of 8 bits. When `classes` are given, labels are indices into those:
/// another class is an error, and one may lack images (a test set that goes with a training set). Errors: no class
/// folders, a class without images, a bad PNG, an image of another size (with both files and sizes). If the folder has
/// a file kAnglesFile, its numbers become the targets: a line "file,angle", then one such line per image, with the path
/// below the folder. Errors: another line, or an image that has none; with the line or the image.
constexpr const char* kAnglesFile = "angles.csv";
ImageSet read_image_folder(const std::string& path, int channels, std::vector<std::string> classes = {});

/// The numbers in the text of such a file, by image. `name` is for errors.
using Angles = std::map<std::string, float, std::less<>>;
Angles parse_angles(const std::string& text, const std::string& name);

/// The PNGs anywhere below a folder, by name, in sorted order.
std::vector<std::filesystem::path> png_files(const std::filesystem::path& folder);

} // namespace rg::data
