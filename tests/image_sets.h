// Helpers for tests that compare sets of images.
#pragma once

#include "ringgrad/data/augment.h"
#include "ringgrad/data/decode.h"
#include "ringgrad/data/open.h"

namespace rg::data {

/// Returns the pixels of all images of a set, in order.
inline std::vector<uint8_t> pixels_of(const ImageSet& set) { return copy_pixels(set, 0, set.count); }

/// Returns all images of a folder.
inline ImageSet read_image_folder(const std::string& folder, int channels, bool skip_other_images = false) {
    return load(folder, {.channels = channels, .test_fraction = 0, .skip_other_images = skip_other_images}).train;
}

} // namespace rg::data
