// Strokes are polylines in a box of x from about -0.6 to 0.6, and y from about -1 (top) to 1. For each image, their
// points are transformed. Then every pixel gets ink according to its distance to the nearest stroke, as from a round
// pen with an edge one pixel wide.
#include "data/digits.h"

#include "core/rng.h"

#include <algorithm>
#include <cmath>

namespace rg::data {

namespace {

constexpr double kPi = 3.14159265358979323846;

struct Point {
    double x, y;
};
using Stroke = std::vector<Point>;
using Glyph = std::vector<Stroke>;

/// Returns the part of an ellipse between two angles in degrees: 0 is on the right, 90 at the bottom. 0 to 360 is the
/// full ellipse.
Stroke arc(double x, double y, double rx, double ry, double from, double to) {
    const int segments = std::max(2, int(std::abs(to - from) / 18));
    Stroke points;
    for (int i = 0; i <= segments; ++i) {
        const double t = (from + (to - from) * i / segments) * kPi / 180;
        points.push_back({x + rx * std::cos(t), y + ry * std::sin(t)});
    }
    return points;
}


/// Concatenates strokes into one.
Stroke join(std::initializer_list<Stroke> parts) {
    Stroke all;
    for (const Stroke& part : parts) all.insert(all.end(), part.begin(), part.end());
    return all;
}

/// Returns the ways to write each digit.
std::vector<std::vector<Glyph>> digit_glyphs() {
    const Stroke stem = Stroke{{0, -1}, {0, 1}};
    const Stroke bowl3 = arc(0, 0.45, 0.58, 0.55, -90, 155), bowl6 = arc(0, 0.45, 0.54, 0.55, 0, 360);
    const Stroke ring9 = arc(0, -0.45, 0.54, 0.55, 0, 360);
    return {
        {{arc(0, 0, 0.6, 1, 0, 360)}, {arc(0, 0, 0.42, 1, -90, 270)}, {arc(0, 0, 0.55, 0.95, -110, 275)}},
        {{stem},
         {join({Stroke{{-0.3, -0.65}}, stem})},
         {join({Stroke{{-0.3, -0.65}}, stem}), Stroke{{-0.4, 1}, {0.4, 1}}}},
        {{join({arc(0, -0.45, 0.55, 0.55, -170, 35), Stroke{{-0.55, 1}, {0.6, 1}}})},
         {Stroke{{-0.5, -0.75}, {-0.15, -1}, {0.25, -0.98}, {0.5, -0.65}, {0.4, -0.2}, {-0.55, 1}, {0.6, 0.95}}},
         {join({arc(0, -0.48, 0.5, 0.52, -180, 50), arc(-0.3, 0.78, 0.22, 0.2, -30, -270), Stroke{{0.6, 1}}})}},
        {{join({arc(0, -0.5, 0.5, 0.5, -155, 90)}), bowl3},
         {join({Stroke{{-0.5, -1}, {0.45, -1}, {-0.05, -0.25}}, arc(-0.02, 0.37, 0.56, 0.63, -85, 150)})}},
        {{Stroke{{-0.3, -1}, {-0.55, 0.25}, {0.58, 0.25}}, Stroke{{0.25, -0.35}, {0.2, 1}}},
         {Stroke{{0.3, 1}, {0.3, -1}, {-0.58, 0.4}, {0.6, 0.4}}},
         {Stroke{{-0.45, -0.9}, {-0.5, 0.05}, {0.5, 0.05}}, Stroke{{0.45, -1}, {0.45, 1}}}},
        {{join({Stroke{{0.5, -1}, {-0.4, -1}, {-0.45, -0.1}}, arc(0, 0.37, 0.58, 0.63, -140, 145)})},
         {join({Stroke{{-0.35, -0.95}, {-0.5, -0.15}}, arc(-0.05, 0.4, 0.58, 0.6, -125, 125)}),
          Stroke{{-0.35, -0.95}, {0.55, -1}}}},
        {{arc(0.35, 0.3, 0.9, 1.28, -85, -188), bowl6}, {Stroke{{0.3, -1}, {-0.2, -0.4}, {-0.52, 0.35}}, bowl6}},
        {{Stroke{{-0.55, -1}, {0.55, -1}, {-0.15, 1}}},
         {Stroke{{-0.55, -1}, {0.55, -1}, {-0.1, 1}}, Stroke{{-0.3, 0}, {0.5, 0}}},
         {join({Stroke{{-0.55, -0.75}, {-0.55, -1}, {0.55, -1}}, arc(0.75, 1.05, 0.75, 1.6, -135, -180)})}},
        {{arc(0, -0.5, 0.44, 0.5, 90, 450), arc(0, 0.5, 0.56, 0.5, -90, 270)}, {[] {
             Stroke eight; // one line that crosses itself
             for (int i = 0; i <= 40; ++i)
                 eight.push_back({0.52 * std::sin(4 * kPi * i / 40), -std::cos(2 * kPi * i / 40)});
             return eight;
         }()}},
        {{ring9, arc(-0.35, -0.3, 0.9, 1.28, 95, -8)},
         {ring9, Stroke{{0.54, -0.45}, {0.4, 1}}},
         {ring9, join({Stroke{{0.54, -0.45}, {0.54, 0.45}}, arc(0, 0.45, 0.54, 0.55, 0, 140)})}},
    };
}

/// Maps the points of a glyph to the image: warps them in the glyph's box, applies size and proportions, slants them,
/// rotates them and shifts them.
class Placement {
public:
    Placement(Rng& rng, double angle) {
        const auto uniform = [&](double low, double high) { return low + (high - low) * double(rng.uniform()); };
        half_height_ = uniform(7, 9.5);
        half_width_ = half_height_ * uniform(0.8, 1.1);
        slant_ = uniform(-0.08, 0.08);
        warp_ = uniform(0, 0.05);
        phase_x_ = uniform(0, 2 * kPi), phase_y_ = uniform(0, 2 * kPi);
        cos_ = std::cos(angle * kPi / 180), sin_ = std::sin(angle * kPi / 180);
        shift_x_ = uniform(-1.5, 1.5), shift_y_ = uniform(-1.5, 1.5);
    }
    Point operator()(Point p) const {
        const double y = half_height_ * (p.y + warp_ * std::sin(3 * p.x + phase_y_));
        const double x = half_width_ * (p.x + warp_ * std::sin(3 * p.y + phase_x_)) - slant_ * y;
        constexpr double kMiddle = (kDigitSide - 1) / 2.0; // pixel centres are integers; y points down
        return {kMiddle + shift_x_ + cos_ * x + sin_ * y, kMiddle + shift_y_ - sin_ * x + cos_ * y};
    }

private:
    double half_height_, half_width_, slant_, warp_, phase_x_, phase_y_, cos_, sin_, shift_x_, shift_y_;
};

double distance(Point p, Point a, Point b) {
    const double dx = b.x - a.x, dy = b.y - a.y, length2 = dx * dx + dy * dy;
    const double t = length2 > 0 ? std::clamp(((p.x - a.x) * dx + (p.y - a.y) * dy) / length2, 0.0, 1.0) : 0;
    return std::hypot(p.x - a.x - t * dx, p.y - a.y - t * dy);
}

/// Draws the segment from a to b with a round pen. A pixel that several segments reach keeps the largest amount of ink.
void draw(std::span<double> ink, Point a, Point b, double radius) {
    const double reach = radius + 0.5;
    const auto first = [&](double u, double v) { return std::max(0, int(std::ceil(std::min(u, v) - reach))); };
    const auto last = [&](double u, double v) {
        return std::min(int(kDigitSide) - 1, int(std::floor(std::max(u, v) + reach)));
    };
    for (int y = first(a.y, b.y); y <= last(a.y, b.y); ++y)
        for (int x = first(a.x, b.x); x <= last(a.x, b.x); ++x) {
            double& pixel = ink[size_t(y * kDigitSide + x)];
            pixel = std::max(pixel, std::clamp(reach - distance({double(x), double(y)}, a, b), 0.0, 1.0));
        }
}

} // namespace

ImageSet draw_digits(int64_t per_class, uint64_t seed) {
    RG_CHECK(per_class >= 1 && per_class <= 100000, "digits: expected 1 to 100000 images per class, got ", per_class);
    const std::vector<std::vector<Glyph>> glyphs = digit_glyphs();
    ImageSet set{10 * per_class, kDigitSide, kDigitSide, 1, {}, {}, {}};
    std::vector<uint8_t> pixels;
    pixels.reserve(size_t(set.count * set.image_bytes()));
    for (int32_t digit = 0; digit < 10; ++digit) {
        set.classes.push_back(std::to_string(digit));
        const std::vector<Glyph>& styles = glyphs[size_t(digit)];
        for (int64_t i = 0; i < per_class; ++i) {
            Rng rng(seed, Purpose::synthetic, uint32_t(digit), uint64_t(i));
            const double hundredths = double(rng.uniform_below(uint32_t(200 * kMaxDigitAngle + 1)));
            const double angle = (hundredths - 100 * kMaxDigitAngle) / 100;
            const Placement place(rng, angle);
            const double radius = 0.6 + 0.9 * double(rng.uniform()), ink_of_pen = 180 + 75 * double(rng.uniform());
            double ink[kDigitSide * kDigitSide] = {};
            for (const Stroke& stroke : styles[rng.uniform_below(uint32_t(styles.size()))])
                for (size_t p = 1; p < stroke.size(); ++p) draw(ink, place(stroke[p - 1]), place(stroke[p]), radius);
            for (const double value : ink) pixels.push_back(uint8_t(std::lround(ink_of_pen * value)));
            set.labels.push_back(digit);
            set.targets.push_back(float(angle));
        }
    }
    set.pixels = std::move(pixels), set.target_names = {"angle"};
    return set;
}

} // namespace rg::data
