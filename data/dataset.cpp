// Checks, splits and selects sets of images.
#include "data/dataset.h"

#include "core/checksum.h"
#include "core/cpu/parallel.h"
#include "core/formatted.h"
#include "core/rng.h"
#include "core/text.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

namespace rg::data {

namespace {

template <class T>
void shuffle(std::vector<T>& values, Rng rng) {
    for (size_t i = values.size(); i > 1; --i) std::swap(values[i - 1], values[rng.uniform_below(uint32_t(i))]);
}

} // namespace

Pixels::Pixels(std::vector<uint8_t> bytes) : size_(std::ssize(bytes)) {
    const auto owner = std::make_shared<const std::vector<uint8_t>>(std::move(bytes));
    data_ = {owner, owner->data()};
}

Pixels::Pixels(std::shared_ptr<const PackedFile> file)
    : data_(file, file->pixels().data()), size_(std::ssize(file->pixels())), file_(file.get()) {}

std::span<const uint8_t> ImageSet::image(int64_t i) const {
    if (pixels.file()) pixels.file()->check_image(row(i));
    return {pixels.data() + row(i) * image_bytes(), size_t(image_bytes())};
}

ImageStats ImageSet::stats(int64_t i) const {
    return pixels.file() ? pixels.file()->stats(row(i)) : stats_of(image(i), channels);
}

const std::string& ImageSet::name(int64_t i) const {
    RG_CHECK(std::ssize(names) == count, "images: expected a folder of images, whose files have names, got ", count,
             " images with ", names.size(), " names; give a folder of PNGs or JPEGs");
    return names[size_t(i)];
}

void ImageSet::will_need(int64_t i) const {
    if (pixels.file()) pixels.file()->will_need(row(i));
}

void ImageSet::check(const std::string& name) const {
    RG_CHECK(count >= 0 && height > 0 && width > 0 && channels > 0 && !classes.empty(),
             "images: expected extents of at least 1 and a class, got ", count, " x ", height, " x ", width, " x ",
             channels, ", ", classes.size(), " classes (", name, ")");
    RG_CHECK(rows.empty() ? pixels.size() == count * image_bytes() : std::ssize(rows) == count, "images: expected ",
             count * image_bytes(), " bytes or ", count, " rows, got ", pixels.size(), " and ", rows.size(), " (", name,
             ")");
    for (size_t i = 0; i < rows.size(); ++i)
        RG_CHECK(rows[i] >= 0 && rows[i] < pixels.size() / image_bytes(), "images: expected rows of 0 to ",
                 pixels.size() / image_bytes() - 1, ", got ", rows[i], " (", name, ", image ", i, ")");
    RG_CHECK(int64_t(labels.size()) == count, "images: expected ", count, " labels, got ", labels.size(), " (", name,
             ")");
    for (size_t i = 0; i < labels.size(); ++i)
        RG_CHECK(labels[i] >= 0 && size_t(labels[i]) < classes.size(), "images: expected labels of 0 to ",
                 classes.size() - 1, ", got ", labels[i], " (", name, ", image ", i, ")");
    RG_CHECK(int64_t(targets.size()) == count * std::ssize(target_names), "images: expected ", target_names.size(),
             " targets for each of ", count, " images, got ", targets.size(), " (", name, ")");
    RG_CHECK(names.empty() || std::ssize(names) == count, "images: expected ", count, " names or none, got ",
             names.size(), " (", name, ")");
}

TrainTest with_source(TrainTest sets, const std::string& what, const std::string& note) {
    const ImageSet& train = sets.train;
    sets.source =
        cat(what, ": ", train.count, sets.test.count > 0 ? cat(" + ", sets.test.count) : "", " images ", train.height,
            "x", train.width, "x", train.channels, ", ", train.classes.size(), " classes", note);
    return sets;
}

TrainTest with_test_set(TrainTest sets, TrainTest other) {
    const ImageSet& train = sets.train;
    ImageSet& test = other.test.count > 0 ? other.test : other.train;
    for (const std::string& name : test.classes)
        RG_CHECK(std::find(train.classes.begin(), train.classes.end(), name) != train.classes.end(),
                 "--test-data: expected the ", train.classes.size(), " classes of --data, got another class, ", name,
                 " (", other.source, ")");
    RG_CHECK(test.height == train.height && test.width == train.width && test.channels == train.channels,
             "--test-data: expected images of ", train.height, "x", train.width, "x", train.channels,
             " as in --data, got ", test.height, "x", test.width, "x", test.channels, " (", other.source,
             "); give --size to resize all images");
    for (int32_t& label : test.labels) {
        const auto match = std::find(train.classes.begin(), train.classes.end(), test.classes[size_t(label)]);
        label = int32_t(match - train.classes.begin());
    }
    RG_CHECK(test.target_names == train.target_names, "--test-data: expected the targets of --data, got others (",
             other.source, ")");
    test.classes = train.classes;
    sets.test = std::move(test);
    sets.source += "; tested on " + other.source;
    sets.held_out.limits.clear();
    sets.warnings.insert(sets.warnings.end(), other.warnings.begin(), other.warnings.end());
    sets.left_out.insert(sets.left_out.end(), other.left_out.begin(), other.left_out.end());
    return sets;
}

std::string fingerprint(const ImageSet& set, std::span<const uint64_t> more) {
    const auto sum = [](const auto& values) {
        return checksum({reinterpret_cast<const char*>(values.data()), values.size() * sizeof values[0]});
    };
    std::vector<uint64_t> images(size_t(set.count));
    for (int64_t i = 0; i < set.count; ++i)
        images[size_t(i)] = set.pixels.file() ? set.stats(i).checksum : sum(set.image(i));
    std::vector<uint64_t> sums{sum(images), sum(set.labels), sum(set.targets)};
    sums.insert(sums.end(), more.begin(), more.end());
    for (const std::string& name : set.target_names) sums.push_back(checksum(name));
    return cat(set.count, " images ", set.height, "x", set.width, "x", set.channels, ", checksum ", hex(sum(sums)));
}

Tensor resident(const ImageSet& set) {
    set.check("resident");
    const Tensor pixels = Tensor::empty({set.count, set.height, set.width, set.channels}, DType::u8);
    constexpr int64_t kBytes = 1 << 24; // bytes copied at once: a second copy of all might not fit into memory
    const int64_t bytes = set.image_bytes(), most = std::max<int64_t>(1, kBytes / bytes);
    for (int64_t first = 0; first < set.count; first += most) {
        const int64_t n = std::min(most, set.count - first);
        const Tensor part = Tensor::empty_on_host({n, set.height, set.width, set.channels}, DType::u8);
        parallel(n, [&](int64_t i) { std::ranges::copy(set.image(first + i), part.data<uint8_t>() + i * bytes); });
        pixels.slice(first * bytes, part.shape()).copy_from(part);
    }
    return pixels;
}

std::vector<int64_t> count_per_label(const ImageSet& set) {
    std::vector<int64_t> counts(set.classes.size());
    for (const int32_t label : set.labels) ++counts[size_t(label)];
    return counts;
}

std::string class_table(const TrainTest& sets, const std::string& test) {
    const std::vector<int64_t> train_counts = count_per_label(sets.train), test_counts = count_per_label(sets.test);
    const std::vector<std::string>& classes = sets.train.classes;
    size_t width = 5;
    for (const std::string& name : classes) width = std::max(width, characters(printable(name)));
    const auto row = [&](const std::string& name, const std::string& a, const std::string& b) {
        return cat("  ", padded(name, std::ptrdiff_t(width)), padded(" " + a, -11), padded(" " + b, -11), "\n");
    };
    std::string text = row("class", "train", test);
    for (size_t i = 0; i < classes.size(); ++i)
        text += row(printable(classes[i]), cat(train_counts[i]), sets.test.count ? cat(test_counts[i]) : "-");
    return text;
}

std::string class_counts(const TrainTest& sets, const std::string& test) {
    std::string text;
    bool equal = true;
    for (const auto& [name, set] : {std::pair(std::string("training"), &sets.train), {test, &sets.test}}) {
        if (set->count == 0) continue;
        std::vector<int64_t> counts = count_per_label(*set);
        std::sort(counts.begin(), counts.end());
        const bool same = counts.front() == counts.back();
        equal &= same;
        text += cat(text.empty() ? "" : "; ", name, " images per class: ");
        text +=
            same ? cat(counts.front())
                 : cat("least ", counts.front(), ", median ", counts[counts.size() / 2], ", greatest ", counts.back());
    }
    return equal || sets.train.classes.size() > 20 ? text + "\n" : class_table(sets, test);
}

Split split_fraction(const ImageSet& set, double fraction, HoldOut rule) {
    RG_CHECK(fraction > 0 && fraction < 1, "split: expected a fraction above 0 and below 1, got ", fraction);
    std::vector<int64_t> hashes;
    std::vector<std::vector<int64_t>> of_class(set.classes.size());
    for (int64_t i = 0; i < set.count; ++i) {
        const std::string name = set.names.empty() ? cat(set.row(i)) : set.names[size_t(i)];
        hashes.push_back(int64_t(checksum(cat(rule.salt, " ", name)) >> 1));
        of_class[size_t(set.labels[size_t(i)])].push_back(hashes.back());
    }
    constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
    for (size_t label = 0; label < of_class.size(); ++label) {
        const auto [entry, is_new] = rule.limits.try_emplace(set.classes[label]);
        if (!is_new) continue;
        std::vector<int64_t>& sorted = of_class[label];
        std::sort(sorted.begin(), sorted.end());
        const int64_t n = std::ssize(sorted),
                      selected = n < 2 ? 0 : std::clamp<int64_t>(std::llround(fraction * double(n)), 1, n - 1);
        // Several limits select this number. The one nearest to the fraction is best for images that are added later.
        const int64_t least = selected > 0 ? sorted[size_t(selected - 1)] + 1 : 0,
                      most = selected < n ? sorted[size_t(selected)] : kMost;
        entry->second = std::clamp(int64_t(std::ldexp(fraction, 63)), least, most);
    }
    Split result;
    for (int64_t i = 0; i < set.count; ++i)
        (hashes[size_t(i)] < rule.limits[set.classes[size_t(set.labels[size_t(i)])]] ? result.selected : result.others)
            .push_back(i);
    result.rule = std::move(rule);
    return result;
}

std::vector<uint8_t> copy_pixels(const ImageSet& set, int64_t first, int64_t n) {
    std::vector<uint8_t> pixels;
    pixels.reserve(size_t(n * set.image_bytes()));
    for (int64_t i = first; i < first + n; ++i) {
        const std::span<const uint8_t> image = set.image(i);
        pixels.insert(pixels.end(), image.begin(), image.end());
    }
    return pixels;
}

ImageSet subset(const ImageSet& set, std::span<const int64_t> indices) {
    ImageSet part{int64_t(indices.size()), set.height, set.width, set.channels, set.pixels, {}, set.classes};
    part.target_names = set.target_names;
    part.labels.reserve(indices.size());
    part.rows.reserve(indices.size());
    for (const int64_t i : indices) {
        RG_CHECK(i >= 0 && i < set.count, "subset: expected indices of 0 to ", set.count - 1, ", got ", i);
        part.rows.push_back(int32_t(set.row(i)));
        part.labels.push_back(set.labels[size_t(i)]);
        const std::span<const float> targets = set.targets_of(i);
        part.targets.insert(part.targets.end(), targets.begin(), targets.end());
        if (!set.names.empty()) part.names.push_back(set.names[size_t(i)]);
    }
    if (indices.empty()) part.pixels = {};
    part.window = set.window;
    return part;
}

TrainTest split_sets(const ImageSet& set, double test_fraction, const HoldOut& rule, const std::string& what,
                     const std::string& note) {
    if (test_fraction == 0) return with_source({set, subset(set, {}), ""}, what, note);
    const Split parts = split_fraction(set, test_fraction, rule);
    RG_CHECK(!parts.selected.empty() && !parts.others.empty(),
             "split: expected 2 images of some class, one of them for testing, got ", set.count, " in ",
             set.classes.size(), " classes (", what, ")");
    TrainTest sets{subset(set, parts.others), subset(set, parts.selected), ""};
    sets.held_out = parts.rule;
    const std::vector<int64_t> counts = count_per_label(set);
    if (const auto single = std::ranges::find(counts, 1); single != counts.end())
        sets.warnings.push_back(
            cat("warning: classes with a single image, which no test can have: ", std::ranges::count(counts, 1),
                ", such as ", set.classes[size_t(single - counts.begin())]));
    return with_source(std::move(sets), what, note);
}

Range part_range(int64_t n, int parts, int i) {
    RG_CHECK(n >= 0 && parts >= 1 && i >= 0 && i <= parts, "part_range: expected part 0 to ", parts,
             " of n >= 0, got part ", i, " of ", n);
    const int64_t each = n / parts, remainder = n % parts;
    const int64_t begin = i * each + std::min<int64_t>(i, remainder);
    return {begin, i == parts ? n : begin + each + (i < remainder)};
}

std::vector<int64_t> permutation(int64_t n, uint64_t seed, int64_t epoch) {
    RG_CHECK(n >= 0 && n <= UINT32_MAX, "permutation: expected 0 to 2^32 - 1 samples, got ", n);
    std::vector<int64_t> order(size_t(n), 0);
    std::iota(order.begin(), order.end(), 0);
    shuffle(order, Rng(seed, Purpose::shuffle, uint32_t(epoch)));
    return order;
}

std::vector<Draw> balanced_draws(const ImageSet& set, uint64_t seed, int64_t epoch) {
    std::map<int32_t, std::vector<int64_t>> images; // images of each class, in a random order
    for (const int64_t i : permutation(set.count, seed, epoch)) images[set.labels[size_t(i)]].push_back(i);
    std::vector<Draw> draws;
    int64_t position = epoch; // classes take turns in being drawn once more than others
    for (const auto& [label, of_class] : images) {
        const int classes = int(images.size());
        const int64_t n = part_range(set.count, classes, int(position++ % classes)).size(), each = std::ssize(of_class);
        for (int64_t i = 0; i < n; ++i) draws.push_back({of_class[size_t(i % each)], i / each});
    }
    shuffle(draws, Rng(seed, Purpose::sampler, uint32_t(epoch)));
    return draws;
}

std::vector<float> balanced_weights(const ImageSet& set) {
    const std::vector<int64_t> counts = count_per_label(set);
    const auto present = std::count_if(counts.begin(), counts.end(), [](int64_t n) { return n > 0; });
    std::vector<float> weights;
    for (const int64_t n : counts) weights.push_back(n > 0 ? float(double(set.count) / double(present * n)) : 1.0f);
    return weights;
}

} // namespace rg::data
