// Decides which images of a folder are for training and for testing, and which classes they have, from their names
// alone. Every program decides by this function, wherever the folder comes from.
//
//     photos/cat/1.png              class folders: the label is the name of the outermost folder
//     set/train_set/cat/1.png       sets: folders that hold the same class folders, and whose names tell their use
//     download/photos/cat/1.png     outer folders that hold everything are skipped
//     set/train/1.png               any of these with given labels, such as those of labels.csv (image_folder.h)
//
// The rule for sets, for names of sets in any case of letters:
// 1. A word in a name tells its use: train, learn, fit; test, eval, holdout; val, dev. Words end at 1, _, aA and so on.
// 2. Names with different uses make sets if all folders have one, or if these hold mostly the same class folders.
// 3. Of two folders that hold the same, one name is enough. Plain names, such as train, need not hold the same.
// 4. Numbered folds and parts are an error that says how to choose one, unless they are two, and one is twice as large.
// 5. Other folders that hold the same are classes, with a warning. With test and val, val is left out.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace rg::data {

struct Layout {
    struct ListedImage {
        std::string file;    // where the image lies below the folder
        std::string given;   // label that does not come from a folder, or ""
        size_t position = 0; // where the name of the class folder begins in `file`
        /// Returns the name of the class folder, or "" if the image is in none.
        std::string_view folder() const {
            const size_t slash = file.find('/', position);
            return std::string_view(file).substr(position, slash == file.npos ? 0 : slash - position);
        }
        std::string_view label() const { return given.empty() ? folder() : given; }
    };
    std::vector<ListedImage> train, test; // sorted by label, and then by path, folder by folder
    std::vector<std::string> warnings;    // for users: which folders are sets, left out, or may be mistaken

    /// Returns the sorted labels of the training images, or those of all images if there are none or with `all`.
    std::vector<std::string> classes(bool all = false) const;
};

/// Returns the layout of images with these paths, each below a folder and with '/' between its parts. `labels` has a
/// label for each image, where "" stands for the name of its class folder; or it is empty. Throws Error if there are
/// folders such as train and test, but not all of them hold class folders, if two have the same use and equally plain
/// names, or if there are folds (rule 4). `folder` is for error texts.
Layout layout_of(const std::vector<std::string>& files, const std::string& folder,
                 const std::vector<std::string>& labels = {});

} // namespace rg::data
