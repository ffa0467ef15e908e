// Tests the changes of images beyond their position: colours, erased boxes, mixup and cutmix, each against its paper or
// torchvision, and the draws and weights of classes.
#include "data/loader.h"
#include "tests/image_sets.h"
#include "tests/op_check.h"
#include "tests/temp_dir.h"

#include <array>
#include <cmath>
#include <doctest/doctest.h>
#include <map>
#include <set>

namespace rg::data {
namespace {

using doctest::Approx;

/// `count` images of random bytes, the labels 0 1 2 0 1 2 ... and two targets for each.
ImageSet noise(int64_t count, int64_t h, int64_t w, int64_t c) {
    ImageSet set = random_set(count, h, w, c);
    Rng rng(uint64_t(count), Purpose::test);
    for (int64_t i = 0; i < count; ++i) {
        set.labels[size_t(i)] = int32_t(i % 3);
        set.targets.insert(set.targets.end(), {float(i), rng.normal()});
    }
    set.target_names = {"number", "normal"};
    return set;
}

constexpr Normalise kBytes{{}, {1 / 255.0f, 1 / 255.0f, 1 / 255.0f}}; // results are the bytes, up to rounding

std::vector<float> shown(const Augmenter& a, std::span<const uint8_t> image, const View& view,
                         std::span<const uint8_t> second = {}, const View& second_view = {}) {
    std::vector<float> out(image.size() + 2, -99.0f); // the window has the size of the image
    a.apply(image, view, out.data() + 1, second, second_view);
    CHECK((out.front() == -99.0f && out.back() == -99.0f)); // nothing outside of the image is written
    return {out.begin() + 1, out.end() - 1};
}

/// The places of images in the set, in the order of an epoch, found by the number that is their first target.
std::vector<int64_t> order_of(const Epoch& epoch) {
    std::vector<int64_t> order;
    for (size_t i = 0; i < epoch.targets.size(); i += 2) order.push_back(std::lround(epoch.targets[i]));
    return order;
}

constexpr Augment kAll{.flip = true, .translate_x = 2, .translate_y = 1, .jitter = {0.4, 0.4, 0.4}, .erase = 0.5,
                       .mixup = 0.4, .cutmix = 1};

TEST_SUITE("data") {
    TEST_CASE("augment: keeps the random numbers of positions, whatever else changes") {
        // A run that is resumed, or repeated with a newer version, must get the same images. These are the views that
        // seed 7 has always given.
        const Augment positions{.flip = true, .flip_vertical = true, .translate_x = 3, .translate_y = 2, .rotate = 20,
                                .scale = {0.8, 1.25}, .crop_area = {0.3, 1}};
        Augment all = positions;
        all.jitter = {0.4, 0.4, 0.4}, all.erase = 0.5, all.mixup = 0.2, all.cutmix = 1;
        const std::array<View, 4> expected{{{397981, 42620, 16249, 224533, -11585, 59778},
                                            {1376994, -45906, 4107, 743357, 3594, 52464},
                                            {302290, 61256, -10196, 2627856, -11249, -55523},
                                            {2534274, -67352, 1260, 2235893, -1103, -76974}}};
        for (int64_t i = 0; i < 4; ++i) {
            CHECK(Augmenter(40, 36, 3, positions, {}, {32, 28}).view(7, i / 2, 1000 * i) == expected[size_t(i)]);
            View view = Augmenter(40, 36, 3, all, {}, {32, 28}).view(7, i / 2, 1000 * i);
            view = {view.y0, view.y_per_row, view.y_per_column, view.x0, view.x_per_row, view.x_per_column};
            CHECK(view == expected[size_t(i)]);
        }
    }

    TEST_CASE("augment: erases boxes as torchvision's RandomErasing does") {
        const ImageSet set = noise(1, 40, 30, 3);
        const Augmenter plain(40, 30, 3, {.flip = true}, kBytes), a(40, 30, 3, {.flip = true, .erase = 0.4}, kBytes);
        int erased = 0, rows = 0, columns = 0;
        double least = 1, most = 0, flattest = 9, highest = 0, log_ratios = 0, areas = 0;
        constexpr int kImages = 4000;
        for (int64_t i = 0; i < kImages; ++i) {
            const View view = a.view(3, 1, i);
            const Box& box = view.erased;
            if (i < 20) { // 0 in the box, and elsewhere the same bits
                const std::vector<float> got = shown(a, set.image(0), view),
                                         before = shown(plain, set.image(0), plain.view(3, 1, i));
                for (size_t k = 0; k < got.size(); ++k)
                    CHECK(got[k] == (box.has(int64_t(k) / 90, int64_t(k) / 3 % 30) ? 0 : before[k]));
            }
            if (box.empty()) continue;
            const double h = box.bottom - box.top, w = box.right - box.left, area = h * w / 1200;
            CHECK((box.top >= 0 && box.left >= 0 && h < 40 && w < 30 && box.bottom <= 40 && box.right <= 30));
            // Each side was rounded to a pixel.
            CHECK(((h + 0.5) * (w + 0.5) >= 0.02 * 1200 && (h - 0.5) * (w - 0.5) <= 0.33 * 1200));
            CHECK(((h + 0.5) / (w - 0.5) >= 0.3 && (h - 0.5) / (w + 0.5) <= 3.3));
            ++erased, rows += box.top + box.bottom, columns += box.left + box.right;
            areas += area, log_ratios += std::log(h / w);
            least = std::min(least, area), most = std::max(most, area);
            flattest = std::min(flattest, h / w), highest = std::max(highest, h / w);
        }
        // A few boxes do not fit in any of 10 trials, or not in the first ones, so that large ones are rarer.
        CHECK(std::abs(erased - 0.4 * kImages) < 5 * std::sqrt(0.24 * kImages));
        CHECK(std::abs(rows / 2.0 / erased - 20) < 5 * 10 / std::sqrt(erased));
        CHECK(std::abs(columns / 2.0 / erased - 15) < 5 * 8 / std::sqrt(erased));
        CHECK((least < 0.03 && most > 0.3 && flattest < 0.35 && highest > 2.9));
        CHECK(std::abs(areas / erased - 0.17) < 0.01); // uniform in [0.02, 0.33], fewer large ones
        CHECK(std::abs(log_ratios / erased) < 0.1);
        CHECK(Augmenter(40, 30, 3, {.erase = 1}, kBytes).view(0, 0, 0).erased.empty() == false);
        CHECK(Augmenter(1, 1, 3, {.erase = 1}, kBytes).view(0, 0, 0).erased.empty()); // no smaller box exists
    }

    TEST_CASE("augment: brightness, contrast and saturation change as in torchvision") {
        const Augmenter one(1, 1, 3, {}, kBytes);
        const auto factors = [](double b, double c, double s) {
            View view;
            view.brightness = int32_t(std::lround(b * 65536)), view.contrast = int32_t(std::lround(c * 65536));
            view.saturation = int32_t(std::lround(s * 65536));
            return view;
        };
        const auto changed = [&](std::array<uint8_t, 3> pixel, const View& view) {
            std::vector<float> bytes = shown(one, pixel, view);
            for (float& byte : bytes) byte = std::round(byte);
            return bytes;
        };
        using List = std::vector<float>;
        CHECK(changed({100, 150, 200}, factors(1, 1, 1)) == List{100, 150, 200});
        CHECK(changed({100, 150, 200}, factors(0, 1, 1)) == List{0, 0, 0});
        CHECK(changed({100, 150, 200}, factors(1.5, 1, 1)) == List{150, 225, 255}); // clamped
        // The grey of 150, 225, 255 is 206.0. So 206 + (150 - 206) / 2 = 178, 215.5 and 230.5, which are rounded up.
        CHECK(changed({100, 150, 200}, factors(1.5, 0.5, 1)) == List{178, 216, 231});
        // The grey of these is 206.3. So 206 - 2 * 28 = 150, 206 + 2 * 10, and 206 + 2 * 25, which is clamped.
        CHECK(changed({100, 150, 200}, factors(1.5, 0.5, 2)) == List{150, 226, 255});
        CHECK(changed({100, 150, 200}, factors(1, 1, 0)) == List{141, 141, 141}); // 140.75

        // The formulas of torchvision.transforms.functional for float images, whose grey has the weight 0.2989 of red.
        const ImageSet set = noise(1, 9, 7, 3);
        const Augmenter a(9, 7, 3, {.jitter = {0.4, 0.5, 1.5}}, kBytes);
        std::array<double, 3> least{9, 9, 9}, most{};
        for (int64_t i = 0; i < 500; ++i) {
            const View view = a.view(5, 2, i);
            const std::array<double, 3> f{view.brightness / 65536.0, view.contrast / 65536.0, view.saturation / 65536.0};
            for (size_t k = 0; k < 3; ++k) least[k] = std::min(least[k], f[k]), most[k] = std::max(most[k], f[k]);
            if (i >= 20) continue;
            std::vector<double> x;
            for (const uint8_t byte : set.image(0)) x.push_back(byte / 255.0);
            const auto grey = [&](size_t at) { return 0.2989 * x[at] + 0.587 * x[at + 1] + 0.114 * x[at + 2]; };
            const auto blend = [](double from, double to, double factor) {
                return std::clamp(factor * to + (1 - factor) * from, 0.0, 1.0);
            };
            for (double& v : x) v = blend(0, v, f[0]);
            double mean = 0;
            for (size_t at = 0; at < x.size(); at += 3) mean += grey(at) / 63;
            for (double& v : x) v = blend(mean, v, f[1]);
            for (size_t at = 0; at < x.size(); at += 3) {
                const double of_pixel = grey(at);
                for (size_t c = at; c < at + 3; ++c) x[c] = blend(of_pixel, x[c], f[2]);
            }
            const std::vector<float> got = shown(a, set.image(0), view);
            // Three roundings to bytes, and that of the mean: 0.5 each, times the factors that follow (1.5 and 2.5).
            for (size_t k = 0; k < x.size(); ++k) CHECK(std::abs(double(got[k]) - 255 * x[k]) < 6);
        }
        const std::array<double, 3> low{0.6, 0.5, 0}, high{1.4, 1.5, 2.5};
        for (size_t k = 0; k < 3; ++k) { // 500 numbers leave out 2 % at an end with a probability of e^-10
            CHECK((least[k] >= low[k] && least[k] < low[k] + 0.02 * (high[k] - low[k])));
            CHECK((most[k] <= high[k] && most[k] > high[k] - 0.02 * (high[k] - low[k])));
        }
        const Augmenter grey(9, 7, 1, {.jitter = {0, 0, 1}}, kBytes); // grey images have no saturation
        const ImageSet dark = noise(1, 9, 7, 1);
        CHECK(shown(grey, dark.image(0), grey.view(0, 0, 0)) == shown(grey, dark.image(0), View{}));
    }

    TEST_CASE("augment: the shares of mixup have the distribution Beta(A, A)") {
        for (const double a : {0.01, 0.2, 1.0, 4.0}) {
            const Augmenter augmenter(8, 8, 3, {.mixup = a}, kBytes);
            double sum = 0, squares = 0;
            constexpr int kImages = 4000;
            for (int64_t i = 0; i < kImages; ++i) {
                const View view = augmenter.view(1, 1, i);
                CHECK(view.mixed == Box{0, 0, 8, 8});
                const double share = augmenter.second_share(view);
                CHECK((share >= 0 && share <= 1));
                sum += share - 0.5, squares += (share - 0.5) * (share - 0.5);
            }
            CAPTURE(a);
            const double variance = 1 / (4 * (2 * a + 1));
            CHECK(std::abs(sum / kImages) < 5 * std::sqrt(variance / kImages));
            CHECK(std::abs(squares / kImages - variance) < 5 * variance / std::sqrt(kImages));
        }
    }

    TEST_CASE("augment: mixup adds images, cutmix replaces a box, and both choose one of them") {
        const ImageSet set = noise(2, 20, 16, 3);
        const auto first = set.image(0), second = set.image(1);
        int mixed = 0, cut = 0;
        double areas = 0;
        const Augmenter both(20, 16, 3, {.mixup = 1, .cutmix = 1}, kBytes);
        constexpr int kImages = 2000;
        for (int64_t i = 0; i < kImages; ++i) {
            const View view = both.view(2, 3, i);
            const double share = view.mixed_share / 65536.0;
            const bool cuts = view.mixed != Box{0, 0, 20, 16};
            (cuts ? cut : mixed) += 1;
            if (cuts) areas += both.second_share(view);
            if (i >= 50) continue;
            if (cuts) CHECK(share == 1);
            int inside = 0;
            const std::vector<float> got = shown(both, first, view, second);
            for (size_t k = 0; k < got.size(); ++k) {
                const bool in = view.mixed.has(int64_t(k) / 48, int64_t(k) / 3 % 16);
                inside += in;
                const double expected = in ? (1 - share) * first[k] + share * second[k] : first[k];
                CHECK(std::abs(double(got[k]) - expected) < 0.501); // rounded to a byte
            }
            CHECK(both.second_share(view) == Approx(share * inside / double(got.size())));
        }
        CHECK(std::abs(mixed - cut) < 5 * std::sqrt(kImages));
        // The area is uniform in [0, 1] for A = 1. Sides are rounded down to an even number, and the part beyond the
        // image is left out: at a uniform place, a side s of 1 keeps s - s^2 / 4, so the mean is near 0.25.
        CHECK(std::abs(areas / cut - 0.25) < 0.05);
        const View unchanged;
        CHECK(shown(both, first, unchanged, second) == shown(both, first, unchanged));
    }

    TEST_CASE("augment: rejects impossible erasing, jitter and mixing") {
        const auto error = [](int64_t channels, const Augment& augment) {
            return error_of([&] { Augmenter(8, 6, channels, augment, {}); });
        };
        CHECK(error(3, kAll).empty());
        CHECK(contains(error(3, {.erase = 1.5}), "a probability of erasing of 0 to 1, got 1.5"));
        CHECK(contains(error(3, {.erase = NAN}), "got nan"));
        CHECK(contains(error(3, {.jitter = {0, -1, 0}}), "changes of colours of 0 to 10, got -1"));
        CHECK(contains(error(2, {.jitter = {0, 0, 0.1}}), "1 or 3 channels for jitter, got 2; omit --jitter"));
        CHECK(contains(error(3, {.mixup = -1}), "a parameter of mixup of 0 to 100, got -1"));
        CHECK(contains(error(3, {.cutmix = INFINITY}), "a parameter of cutmix of 0 to 100, got inf"));
        const ImageSet set = noise(1, 4, 4, 3);
        const Augmenter a(4, 4, 3, {}, {});
        float out[48];
        CHECK_ERROR("48 bytes, got 5", a.apply(set.image(0), {}, out, set.image(0).first(5)));
    }

    TEST_CASE("loader: mixes images, labels and targets with the image at the mirrored place of the mini-batch") {
        const ImageSet set = noise(23, 6, 5, 3);
        LoaderOptions options{.batch_size = 8, .keep_partial = true, .seed = 4, .normalise = kBytes};
        const std::vector<int64_t> order = order_of(epoch_of(set, options, 2, 1));
        options.augment = kAll;
        const Epoch got = epoch_of(set, options, 2, 1);
        const Augmenter a(6, 5, 3, kAll, kBytes);
        REQUIRE(got.images.size() == 23);
        for (size_t i = 0; i < 23; ++i) {
            const size_t first = i / 8 * 8, end = std::min<size_t>(first + 8, 23);
            const int64_t one = order[i], two = order[first + end - 1 - i];
            const View view = a.view(4, 2, one);
            CHECK(got.images[i] == shown(a, set.image(one), view, set.image(two), a.view(4, 2, two)));
            CHECK((got.labels[i] == one % 3 && got.second_labels[i] == two % 3));
            const double share = a.second_share(view);
            CHECK(double(got.weights[i]) == Approx(1 - share));
            CHECK(double(got.second_weights[i]) == Approx(share));
            CHECK(double(got.targets[2 * i]) == Approx((1 - share) * double(one) + share * double(two)));
        }
    }

    TEST_CASE("loader: mixed and balanced batches are the same for any number of ranks and threads") {
        ImageSet set = noise(41, 6, 5, 3);
        for (size_t i = 0; i < 30; ++i) set.labels[i] = 0;
        LoaderOptions options{.batch_size = 12, .keep_partial = true, .seed = 4, .augment = kAll, .normalise = kBytes};
        options.threads = 0;
        for (const bool balanced : {false, true}) {
            options.balanced = balanced, options.class_weights = {1, 2, 0.5};
            const Epoch one = epoch_of(set, options, 3, 1);
            CHECK(one.images.size() == 41);
            for (const int ranks : {2, 3, 5})
                for (const int threads : {0, 2}) {
                    LoaderOptions several = options;
                    several.threads = threads, several.depth = 3;
                    CHECK(epoch_of(set, several, 3, ranks) == one);
                }
        }
    }

    TEST_CASE("loader: class weights have the mean 1 over the labels of each whole mini-batch") {
        const ImageSet set = noise(20, 2, 2, 1);
        LoaderOptions options{.batch_size = 8, .keep_partial = true, .seed = 4, .class_weights = {3, 1, 0.5}};
        for (const int ranks : {1, 3}) {
            const Epoch got = epoch_of(set, options, 1, ranks);
            CHECK(got.second_labels.empty());
            for (size_t first = 0; first < 20; first += 8) {
                const size_t end = std::min<size_t>(first + 8, 20);
                double sum = 0;
                for (size_t i = first; i < end; ++i) sum += double(options.class_weights[size_t(got.labels[i])]);
                for (size_t i = first; i < end; ++i)
                    CHECK(double(got.weights[i]) ==
                          Approx(double(options.class_weights[size_t(got.labels[i])]) * double(end - first) / sum));
            }
        }
        options.class_weights = {};
        CHECK(epoch_of(set, options, 1, 1).weights.empty());
    }

    TEST_CASE("balanced: every class is drawn equally often, and no image again before the others of its class") {
        ImageSet set{264, 1, 1, 1, std::vector<uint8_t>(264), {}, {"a", "b", "c", "d", "never"}};
        const std::array<int64_t, 4> counts{120, 12, 12, 120};
        for (int32_t label = 0; label < 4; ++label) set.labels.insert(set.labels.end(), size_t(counts[size_t(label)]), label);
        const std::vector<float> weights = balanced_weights(set); // 264 / (4 * count), as scikit-learn has it
        CHECK(weights == std::vector<float>{0.55f, 5.5f, 5.5f, 0.55f, 1});
        std::set<int64_t> majority;
        for (const int64_t epoch : {1, 2, 3, 4}) {
            const std::vector<Draw> draws = balanced_draws(set, 7, epoch);
            CHECK(draws == balanced_draws(set, 7, epoch));
            CHECK(draws != balanced_draws(set, 7, epoch + 1));
            CHECK(draws != balanced_draws(set, 8, epoch));
            REQUIRE(draws.size() == 264);
            std::map<int64_t, std::set<int64_t>> repeats; // of each image
            std::array<int, 4> drawn{};
            for (const Draw& draw : draws) {
                ++drawn[size_t(set.labels[size_t(draw.index)])];
                CHECK(repeats[draw.index].insert(draw.repeat).second);
                if (draw.index < 120) majority.insert(draw.index);
            }
            CHECK(drawn == std::array<int, 4>{66, 66, 66, 66});
            for (const auto& [image, of_image] : repeats) { // 66 draws of 12 images: 5 or 6 of each
                const bool rare = image >= 120 && image < 144;
                CHECK((of_image.size() == 1 || (rare && (of_image.size() == 5 || of_image.size() == 6))));
                CHECK(*of_image.rbegin() == int64_t(of_image.size()) - 1);
            }
            CHECK(std::count_if(repeats.begin(), repeats.end(), [](const auto& r) { return r.second.size() > 1; }) == 24);
        }
        CHECK(majority.size() > 110); // each epoch draws another half: 120 / 2^4 are missing after four
        // If the classes do not divide the images, the one that is drawn more often changes from epoch to epoch.
        const ImageSet five{5, 1, 1, 1, std::vector<uint8_t>(5), {0, 0, 0, 1, 1}, {"a", "b"}};
        for (const int64_t epoch : {0, 1}) {
            int ones = 0;
            for (const Draw& draw : balanced_draws(five, 1, epoch)) ones += five.labels[size_t(draw.index)];
            CHECK(ones == (epoch == 0 ? 2 : 3));
        }
    }

    TEST_CASE("loader: an image that is drawn again in an epoch has another view, and other random numbers") {
        ImageSet set = noise(24, 8, 8, 3);
        for (size_t i = 0; i < 24; ++i) set.labels[i] = i < 20;
        LoaderOptions options{.batch_size = 24, .balanced = true, .augment = {.translate_x = 3, .translate_y = 3}};
        options.threads = 0;
        Loader loader(set, options, {computed({1}, [](const Sample& sample, std::span<float> out) {
                          out[0] = sample.random().uniform();
                      })});
        loader.start(1);
        const Batch batch = loader.next();
        std::map<int64_t, std::set<float>> numbers;
        std::map<int64_t, std::set<std::vector<float>>> images;
        for (int64_t i = 0; i < 24; ++i) {
            const int64_t index = std::lround(batch.targets.data<float>()[2 * i]);
            numbers[index].insert(batch.columns[0].data<float>()[i]);
            images[index].insert({batch.x.data<float>() + i * 192, batch.x.data<float>() + (i + 1) * 192});
        }
        for (int64_t rare = 20; rare < 24; ++rare) {
            CHECK(numbers[rare].size() == 3);
            CHECK(images[rare].size() >= 2); // of 49 views
        }
        CHECK(numbers[3].size() <= 1);
    }

    TEST_CASE("loader: rejects class weights, balanced classes and mixing that do not fit") {
        const ImageSet set = noise(6, 2, 2, 1);
        const auto error = [&](const LoaderOptions& o) { return error_of([&] { Loader(set, o); }); };
        CHECK(error({.class_weights = {1, 2, 3}}).empty());
        CHECK(contains(error({.class_weights = {1, 2}}), "3 class weights, one for each class, got 2"));
        CHECK(contains(error({.class_weights = {1, 0, 3}}), "class weights above 0, got 0"));
        CHECK(contains(error({.class_weights = {1, NAN, 3}}), "got nan"));
        CHECK(contains(error({.shuffle = Shuffle::never, .balanced = true}), "a random order with balanced classes"));
        const Column column = rows(Tensor::zeros({6, 1}));
        CHECK_ERROR("no columns with mixup or cutmix, got 1", Loader(set, {.augment = {.cutmix = 1}}, {column}));
        CHECK_ERROR("got columns alone", Loader({column}, {.balanced = true}));
        CHECK_ERROR("got columns alone", Loader({column}, {.class_weights = {1}}));
    }
}

} // namespace
} // namespace rg::data
