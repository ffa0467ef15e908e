// Decides which images of a folder are for training and for testing, and which classes they have, from their names
// alone. Every program decides by this function, wherever the folder comes from.
//
//     photos/cat/1.png              class folders: the label is the name of the outermost folder
//     set/train/cat/1.png           sets: Train, training, test, testing, val, valid, validation ..., which hold class
//     set/valid/cat/2.png           folders; with test and val, test is the test set, and val is left out
//     download/photos/cat/1.png     outer folders that hold everything are skipped
//     set/train/1.png               any of these with labels.csv (image_folder.h): the table has the labels
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace rg::data {

struct Layout {
    struct Image {
        std::string path;    // below the folder, with a folder that is named after the class
        std::string file;    // where the image lies below the folder
        size_t position = 0; // where the name of the class folder begins in `path`
        size_t length = 0;   // length of that name; 0: the image is in no class folder
        std::string_view label() const { return std::string_view(path).substr(position, length); }
    };
    std::vector<Image> train, test;    // sorted by label, and then by path, folder by folder
    std::vector<std::string> warnings; // for users: images that are left out, and folders that may be mistaken

    /// Returns the sorted labels of the training images, or without training images those of the test images.
    std::vector<std::string> classes() const;
};

/// Returns the path of an image with a folder of this name in it, which becomes its class folder: the first folder
/// below `root`, the beginning of the path, and below a folder such as train. It must be able to name a folder.
std::string with_class(const std::string& path, size_t root, const std::string& label);

/// Returns the layout of images with these paths, each below a folder and with '/' between its parts. `files` says
/// where the images lie, if with_class() has changed paths; empty: at their paths. Throws Error if there are folders
/// such as train and test, but not all of them hold class folders, or if two are for training. `folder` is for error
/// texts.
Layout layout_of(const std::vector<std::string>& paths, const std::string& folder,
                 const std::vector<std::string>& files = {});

} // namespace rg::data
