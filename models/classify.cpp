// classify MODEL FILE...: classifies images with a trained cifar_net. Prints one line per image, tab-separated: its
// file, then class and score for each of the --top best classes. If some labels are known, the accuracy follows.
//
// The size of the network comes from the names and shapes in MODEL, so no option of the training is needed. All images
// are read before the first is classified, so a bad file is an error before any output. Images must be 32 x 32.
#include "ringgrad/core/atomic_file.h"
#include "ringgrad/core/cpu/cpu_scope.h"
#include "ringgrad/core/cpu/parallel.h"
#include "ringgrad/core/options.h"
#include "ringgrad/core/text.h"
#include "ringgrad/data/augment.h"
#include "ringgrad/data/cifar.h"
#include "ringgrad/data/image_folder.h"
#include "ringgrad/data/png.h"
#include "ringgrad/models/run/confusion.h"
#include "ringgrad/models/run/formatted.h"
#include "ringgrad/models/run/model_file.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <numeric>

namespace {

using namespace rg;
namespace fs = std::filesystem;

constexpr int64_t kSide = 32, kChannels = 3, kImageBytes = kSide * kSide * kChannels;
constexpr int32_t kUnknown = -1; // label of an image whose class is not known

struct Images {
    struct Item {
        std::string name;
        int32_t truth; // true label, or kUnknown
    };
    std::vector<Item> items;
    std::vector<uint8_t> pixels; // [items 32 32 3]
};

int32_t label_of(const fs::path& name, const std::vector<std::string>& classes) {
    const auto position = std::find(classes.begin(), classes.end(), name.string());
    return position == classes.end() ? kUnknown : int32_t(position - classes.begin());
}

void add_png(Images& images, const std::string& path, int32_t truth) {
    const std::string file = read_file(path);
    if (!data::is_png(data::as_bytes(file)) && !path.ends_with(".png")) {
        const std::string format = data::image_format(path, data::as_bytes(file));
        fail("classify: expected a PNG, a folder of PNGs, or CIFAR records (.bin), got ",
             format.empty() ? "another file" : format, " (", path, ")",
             format.empty() ? "" : cat("; ", data::kHowToConvert));
    }
    const data::Image image = data::to_u8(data::decode_png(data::as_bytes(file), path), int(kChannels));
    RG_CHECK(image.width == kSide && image.height % kSide == 0, "classify: expected an image of ", kSide, " x ", kSide,
             ", or several below each other, got ", image.width, " x ", image.height, " (", path, ")");
    const int64_t count = image.height / kSide;
    for (int64_t i = 0; i < count; ++i) images.items.push_back({count == 1 ? path : cat(path, "#", i), truth});
    images.pixels.insert(images.pixels.end(), image.pixels.begin(), image.pixels.end());
}

/// Adds the images of a CIFAR file. Their labels are known only if the file has as many classes as the network. A CIFAR
/// file has no class names that could be compared.
void add_cifar(Images& images, const std::string& path, size_t classes) {
    const std::string file = read_file(path);
    const data::CifarKind kind = data::cifar_kind(data::as_bytes(file), path);
    const data::ImageSet set = data::parse_cifar(data::as_bytes(file), kind, path);
    for (int64_t i = 0; i < set.count; ++i)
        images.items.push_back({cat(path, "#", i), set.classes.size() == classes ? set.labels[size_t(i)] : kUnknown});
    images.pixels.insert(images.pixels.end(), set.pixels.begin(), set.pixels.end());
}

/// Adds the PNGs below a folder, in sorted order. The label of an image is the innermost folder above it, up to
/// `folder`, that is named like a class.
void add_folder(Images& images, const fs::path& folder, const std::vector<std::string>& classes,
                bool skip_other_images) {
    const std::vector<fs::path> files = data::png_files(folder, skip_other_images);
    RG_CHECK(!files.empty(), "classify: expected PNG images, got none (", folder.string(), ")");
    for (const fs::path& file : files) {
        int32_t truth = label_of(folder.filename(), classes);
        for (const fs::path& inner : file.lexically_relative(folder).parent_path())
            if (const int32_t label = label_of(inner, classes); label != kUnknown) truth = label;
        add_png(images, file.string(), truth);
    }
}

Images read_images(const std::vector<std::string>& paths, const std::vector<std::string>& classes,
                   bool skip_other_images) {
    Images images;
    for (const std::string& path : paths) {
        if (fs::is_directory(path))
            // Removes slashes at the end, so that filename() is the folder's name: parent_path() of "NAME//" is "NAME".
            add_folder(images, fs::path(path + "/").parent_path(), classes, skip_other_images);
        else if (path.ends_with(".bin"))
            add_cifar(images, path, classes.size());
        else
            add_png(images, path, label_of(fs::path(path).parent_path().filename(), classes));
    }
    return images;
}

/// Returns "NAME \t CLASS \t SCORE ..." for the scores of one image, with the `top` best classes. Classes with equal
/// scores keep their order.
std::string line(const std::string& name, std::span<const float> scores, const std::vector<std::string>& classes,
                 size_t top) {
    std::vector<size_t> order(scores.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return scores[a] > scores[b]; });
    std::string out = printable(name);
    for (size_t k = 0; k < std::min(top, order.size()); ++k) {
        out += cat("\t", printable(classes[order[k]]), formatted("\t%.6f", double(scores[order[k]])));
    }
    return out + "\n";
}

int run(int argc, const char* const* argv) {
    int64_t batch_size = 250, threads = 0, top = 1;
    bool quiet = false, skip_other_images = false;
    std::vector<std::string> arguments;
    Options options("classify", "classifies images with a network of train_cifar");
    options.positional("MODEL FILE", &arguments,
                       "MODEL: the folder of a run of train_cifar, its model.safetensors, or a checkpoint; networks of "
                       "other programs are refused. FILE: a PNG of 32 x 32, or of several such images below each "
                       "other; a folder of such PNGs; or CIFAR records (.bin)",
                       2);
    options.add("top", &top, "number of classes to print per image, best first").at_least(1);
    options.add("quiet", &quiet, "print only the summary, no line per image");
    options.add("skip-other-images", &skip_other_images,
                "skip images of other formats than PNG; without this option they are an error");
    options.add("batch-size", &batch_size, "images per mini-batch").range(1, 65536);
    options.add("threads", &threads, "number of threads; 0: all cores").range(0, 1024);
    if (!options.parse(argc, argv)) {
        std::fputs(options.answer().c_str(), stdout);
        return 0;
    }

    const TensorFile file = load_model(arguments[0]);
    const std::unique_ptr<Network> network = make_network(file);
    const ImageTask task = stored_task(file);
    RG_CHECK(task.height == kSide && task.width == kSide && task.channels == kChannels, "classify: expected a network ",
             "for images of 32 x 32 x 3, got one for ", task.height, " x ", task.width, " x ", task.channels);
    const std::vector<std::string> classes = stored_classes(file);
    const Images images = read_images({arguments.begin() + 1, arguments.end()}, classes, skip_other_images);

    const CpuScope scope{int(threads)};
    const data::Augmenter augmenter(kSide, kSide, kChannels, {}, stored_normalise(file, data::kCifar10));
    Confusion confusion(classes);
    const int64_t count = int64_t(images.items.size());
    for (int64_t begin = 0; begin < count; begin += batch_size) {
        const int64_t n = std::min(batch_size, count - begin);
        const Tensor x = Tensor::on_host({n, kSide, kSide, kChannels});
        parallel(n, [&](int64_t i) {
            const std::span pixels(images.pixels.data() + (begin + i) * kImageBytes, size_t(kImageBytes));
            augmenter.apply(pixels, 0, 0, begin + i, x.data<float>() + i * kImageBytes);
        });
        const Tensor scores = softmax(network->forward(x, Mode::evaluate));
        for (int64_t i = 0; i < n; ++i) {
            const auto& [name, truth] = images.items[size_t(begin + i)];
            const auto row = scores.span<float>().subspan(size_t(i) * classes.size(), classes.size());
            for (const float score : row)
                RG_CHECK(!std::isnan(score), "classify: expected scores from 0 to 1, got nan for ", name,
                         "; the values in ", file.source, " are too large");
            if (!quiet) std::fputs(line(name, row, classes, size_t(top)).c_str(), stdout);
            if (truth != kUnknown) confusion.add(truth, size_t(std::max_element(row.begin(), row.end()) - row.begin()));
        }
    }
    if (!quiet && !confusion.empty()) std::fputs("\n", stdout);
    if (quiet || !confusion.empty()) std::fputs(confusion.text(images.items.size()).c_str(), stdout);
    return 0;
}

} // namespace

int main(int argc, char** argv) { return rg::run_main(argc, argv, run); }
