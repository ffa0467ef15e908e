// Drawn digits: grey images of 28 x 28 with a digit each, turned by a known angle. Needs no file and no network.
//
// The set stands in for the well-known one of 10,000 synthetic digits: 1000 images per class, turned by up to 45
// degrees either way, in the set's targets. Digits are strokes in two or three common ways to write each; an image's
// way, proportions, slant, pen, size, place and a slight warp are random. 6 and 9 differ by 180 degrees, twice the
// range of angles, so they stay apart.
#pragma once

#include "data/augment.h"
#include "data/dataset.h"

namespace rg::data {

constexpr int64_t kDigitSide = 28;
constexpr float kMaxDigitAngle = 45;

/// `per_class` images of each digit, ordered by class, with their angles in degrees, counter-clockwise, in steps of
/// 0.01, as targets. An image depends on the seed, its class and its number in it alone.
ImageSet draw_digits(int64_t per_class, uint64_t seed);

/// Writes a set with targets as class folders of PNGs, DIR/0/0000.png..., and DIR/angles.csv; what read_image_folder
/// reads back is the set. Error: DIR exists and is not empty; a file cannot be written.
void write_digits(const std::string& dir, const ImageSet& set);

/// Of the images that MNIST trains on; the drawn ones are close to it.
constexpr Normalise kDigits{{0.1307f, 0, 0, 0}, {0.3081f, 1, 1, 1}};

} // namespace rg::data
