// Reads folders of images. layout.h says which images are for training and for testing, and which labels they have.
//
// Images are the PNGs and JPEGs anywhere below the folder, sorted, so the set does not depend on the file system. All
// must have the same size, unless a Conversion (decode.h) resizes them.
//
// An image that cannot be used is an error, unless the caller asks to skip such images. There are two kinds: an image
// in another format (GIF, WebP, TIFF, BMP, HEIF, AVIF, PNM, JPEG 2000, JPEG XL) and an image beside the class folders.
// In most formats, a file is recognised by its first bytes, whatever its name: a PNG may be named 1.jpg or 1.
// Otherwise, the end of its name tells the format. Hidden files and folders (.DS_Store, ._1.png), __MACOSX, @eaDir, and
// other files (README.md, angles.csv) are ignored. Links are followed. A broken link is an error even if images are
// skipped, unless it is hidden.
#pragma once

#include "ringgrad/data/bytes.h"
#include "ringgrad/data/decode.h"
#include "ringgrad/data/layout.h"

#include <filesystem>
#include <map>

namespace rg::data {

/// A file beside images with a number for each: the heading "file,angle", and then one line per image with its path
/// below the folder of the table and its number. The numbers become targets.
constexpr const char* kAnglesFile = "angles.csv";

using Angles = std::map<std::string, float, std::less<>>;

class ImageFolder {
public:
    /// Lists the folder. Throws Error if there is none, for a broken link, a wrong line of kAnglesFile and, unless
    /// `skip_other_images`, for images of other formats.
    ImageFolder(const std::string& folder, bool skip_other_images);

    const Layout& layout() const { return layout_; }
    /// Returns the path of an image for opening it.
    std::string path(const Layout::Image& image) const { return folder_ + "/" + image.path; }
    /// Returns the number of an image in the table that is nearest above it, or NAN if none has a line for it.
    float angle(const Layout::Image& image) const;
    bool has_angles() const { return !angles_.empty(); }

    /// Reads all images. With `unlabelled`, an image beside the class folders has the name of the folder itself as its
    /// class, an image without a line in kAnglesFile has the target NAN, and sets may differ in classes. Throws Error
    /// if there are no class folders, a class folder has no images, test images have another class than the training
    /// images, an image is damaged, images differ in size, an image has no line in an existing kAnglesFile or, unless
    /// images of the wrong kind are skipped, an image lies beside the class folders.
    TrainTest read(Conversion& conversion, bool unlabelled = false) const;

private:
    const std::string folder_;
    const bool skip_other_images_;
    Layout layout_;
    std::vector<std::string> empty_folders_;
    std::map<std::string, Angles, std::less<>> angles_; // by the folder of the table, such as "train/"
};

/// Returns the number of each image path in the text of an angles.csv, after its heading. Throws Error, with `name`,
/// for a wrong line or a second line for an image.
Angles parse_angles(const std::string& text, const std::string& name);

/// Returns true for names of files and folders that systems put beside the user's: hidden ones, and previews.
bool is_hidden(const std::string& name);

/// Returns the format of an image, such as "JPEG", or "" if the file does not look like an image. `begin` is the
/// beginning of the file; kFormatBytes bytes are enough. If these do not tell the format, the end of the name does.
constexpr size_t kFormatBytes = 16;
std::string image_format(const std::string& name, Bytes begin);

/// Decodes a PNG or a JPEG. Throws Error if the file is neither, or is damaged.
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
