// Draws digits: grey images of 28 x 28, each with one digit rotated by a known angle. Needs no file and no network.
//
// The set can take the place of the synthetic digits in MATLAB's Deep Learning Toolbox. Like these, it has 1000 images
// per class, rotated by up to 45 degrees in both directions, with the angles as targets. Each digit has two or three
// common ways to write it. For each image, the way, proportions, slant, pen, size, position and a slight warp are
// random. 6 and 9 differ by 180 degrees, twice the range of angles, so they cannot be confused.
#pragma once

#include "ringgrad/data/augment.h"
#include "ringgrad/data/dataset.h"

namespace rg::data {

constexpr int64_t kDigitSide = 28;
constexpr float kMaxDigitAngle = 45;

/// Returns `per_class` images of each digit, ordered by class. The targets are their angles in degrees,
/// counter-clockwise, in steps of 0.01. An image depends only on the seed, its class and its index in the class.
ImageSet draw_digits(int64_t per_class, uint64_t seed);

/// Writes a set with targets as class folders of PNGs (DIR/0/0000.png ...) and DIR/angles.csv, which
/// read_image_folder() reads back. Throws Error if DIR exists and is not empty, or if a file cannot be written.
void write_digits(const std::string& dir, const ImageSet& set);

/// Mean and deviation of MNIST's training images; those of the drawn digits are close to them.
constexpr Normalise kDigits{{0.1307f}, {0.3081f}};

} // namespace rg::data
