// Draws digits: grey images of 28 x 28, each with one digit rotated by a known angle. Drawing needs no file.
//
// A set of 1000 images per class can take the place of the synthetic digits in MATLAB's Deep Learning Toolbox: like
// these, it has rotations by up to 45 degrees in both directions, with the angles as targets. Each digit has two or
// three common ways to write it. For each image, the way to write, proportions, slant, pen, size, angle, position and a
// slight warp are random. A 9 looks like a 6 rotated by 180 degrees, but angles differ by at most 90 degrees.
#pragma once

#include "data/augment.h"
#include "data/dataset.h"

namespace rg::data {

constexpr int64_t kDigitSide = 28;
constexpr float kMaxDigitAngle = 45;

/// Returns `per_class` images of each digit, ordered by class. The targets are their angles in degrees,
/// counter-clockwise, in steps of 0.01. An image depends only on the seed, its class and its index in the class. Throws
/// Error unless `per_class` is 1 to 100000.
ImageSet draw_digits(int64_t per_class, uint64_t seed);

/// Mean and standard deviation of byte / 255 in MNIST's training images. Programs use them for the drawn digits, too.
constexpr Normalise kDigits{{0.1307f}, {0.3081f}};

} // namespace rg::data
