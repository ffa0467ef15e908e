// quick94: trains a network on CIFAR-10 in 12 epochs, with the method of Keller Jordan, "94% on CIFAR-10
// in 3.29 Seconds on a Single GPU", 2024, arXiv:2404.00498.
//
//     quick94 --data cifar-10-batches-bin --precision bf16 --test-views
//
// Differences from the paper: 12 epochs instead of 9.9, and the running statistics of batch norm take no part in the
// lookahead.
#include "ringgrad/core/cpu/parallel.h"
#include "ringgrad/data/cifar.h"
#include "ringgrad/models/run/training.h"
#include "ringgrad/models/training_main.h"

#include <algorithm>
#include <cmath>

using namespace rg;

namespace {

constexpr int64_t kPatch = 2; // height and width of the whitening filters
constexpr NormOptions kNorm{.scale = false, .epsilon = 1e-12f, .momentum = 0.4f};
constexpr float kBiasRate = 64;                 // batch norm's biases learn this many times as fast
constexpr double kRate = 11.5, kDecay = 0.0153; // per 1024 images, if the loss is the sum over a mini-batch
constexpr double kMomentum = 0.85;

/// conv 3x3, max pooling, batch norm, GELU, conv 3x3, batch norm, GELU. Halves the height and the width.
struct Block {
    Convolution first;
    Norm norm;
    ConvNorm second;

    Block(Parameters& p, const std::string& name, int64_t in, int64_t out)
        : first(p, name + ".conv1", {out, 3, in, {.pad = 1}, false}),
          norm(p, name + ".norm1", {.channels = out, .activation = Activation::none, .options = kNorm}),
          second(p, ConvNorm::Names{name + ".conv2", name + ".norm2"},
                 {out, 3, out, {.pad = 1}, Activation::none, /*bias=*/false, /*zero_gamma=*/false, kNorm}) {
        p.entry(name + ".conv1.weight").scale_free = true; // max pooling keeps the scale, which `norm` removes
        for (const char* bias : {".norm1.bias", ".norm2.bias"})
            p.entry(name + bias).rate = kBiasRate, p.entry(name + bias).decay = 1 / kBiasRate;
    }
    Tensor operator()(const Tensor& x, Mode mode) const {
        const Tensor y = max_pool2d(first(x), {.window = 2, .stride = 2, .drop_rest = true});
        return gelu(second(gelu(norm(y, mode)), mode));
    }
};

struct Quick94 final : Network {
    const int64_t channels, filters = 2 * channels * kPatch * kPatch;
    Convolution whiten{parameters, "whiten", {filters, kPatch, channels}};
    Block a{parameters, "block1", filters, 64}, b{parameters, "block2", 64, 256}, c{parameters, "block3", 256, 256};
    Dense fc;

    explicit Quick94(const ImageTask& task) : channels(task.channels), fc(parameters, "fc", task.classes, 256, false) {
        parameters.entry("whiten.weight").rate = 0;
        parameters.entry("whiten.bias").epochs = 3;
        parameters.allocate(task.seed, Init::dirac);
    }
    Tensor forward(const Tensor& images, Mode mode) const override {
        expect_images("quick94", images, channels, 25); // 25 pixels leave 3 x 3 for the last pooling
        const Tensor x = c(b(a(gelu(whiten(images)), mode), mode), mode);
        return scale(fc(max_pool2d(x, {.window = 3, .stride = 3, .drop_rest = true})), 1.0f / 9);
    }
};

const RegisterNetwork<Quick94> quick94_network("quick94");

using Matrix = std::vector<std::vector<double>>;

/// Turns the symmetric matrix `a` into the diagonal matrix of its eigenvalues, with Jacobi rotations. Returns the
/// eigenvectors as rows.
Matrix diagonalise(Matrix& a) {
    const size_t n = a.size();
    Matrix vectors(n, std::vector<double>(n));
    for (size_t i = 0; i < n; ++i) vectors[i][i] = 1;
    constexpr int kSweeps = 30; // a symmetric matrix of this size needs fewer than 10
    for (int sweep = 0; sweep < kSweeps; ++sweep)
        for (size_t p = 0; p < n; ++p)
            for (size_t q = p + 1; q < n; ++q) {
                // The angle for which the rotated matrix has a zero at (p, q)
                const double angle = 0.5 * std::atan2(2 * a[p][q], a[q][q] - a[p][p]), s = std::sin(angle),
                             c = std::cos(angle);
                const auto rotate = [&](double& x, double& y) {
                    const double old = x;
                    x = c * old - s * y, y = s * old + c * y;
                };
                for (size_t i = 0; i < n; ++i) rotate(a[i][p], a[i][q]);
                for (size_t i = 0; i < n; ++i) rotate(a[p][i], a[q][i]), rotate(vectors[p][i], vectors[q][i]);
            }
    return vectors;
}

/// Returns the mean of x x^T over the patches x of the first 1000 normalised images. The values of a patch have the
/// order [row column channel].
Matrix patch_products(const data::ImageSet& images, const data::Normalise& normalise) {
    const int64_t channels = images.channels;
    const int64_t count = std::min<int64_t>(1000, images.count), values = images.image_bytes();
    const data::Augmenter augmenter(images.height, images.width, channels, {}, normalise);
    std::vector<float> pixels(size_t(count * values));
    parallel(count, [&](int64_t n) { augmenter.apply(images.image(n), View{}, &pixels[size_t(n * values)]); });
    std::vector<int64_t> offsets; // of the values of a patch, from its first one
    for (int64_t row = 0; row < kPatch; ++row)
        for (int64_t i = 0; i < kPatch * channels; ++i) offsets.push_back(row * images.width * channels + i);
    Matrix products(offsets.size(), std::vector<double>(offsets.size()));
    parallel(std::ssize(offsets), [&](int64_t i) {
        std::vector<double>& sums = products[size_t(i)];
        for (int64_t n = 0; n < count; ++n)
            for (int64_t y = 0; y + kPatch <= images.height; ++y)
                for (int64_t x = 0; x + kPatch <= images.width; ++x) {
                    const float* const patch = &pixels[size_t(n * values + (y * images.width + x) * channels)];
                    const double value = patch[offsets[size_t(i)]];
                    for (size_t j = 0; j < sums.size(); ++j) sums[j] += value * double(patch[offsets[j]]);
                }
    });
    const double patches = double(count * (images.height - kPatch + 1) * (images.width - kPatch + 1));
    for (std::vector<double>& row : products)
        for (double& sum : row) sum /= patches;
    return products;
}

struct Quick94Training final : ImageTraining {
    Quick94Training() : ImageTraining({"quick94"}) {
        epochs = 12;
        data_options.batch_size = 1024, scales_batch_size = false;
        augment = "alternating-flip,translate", translate = 2, fill = data::Fill::reflect;
        smoothing = 0.2;
        // The paper's code also divides the rate by 1 + 1 / (1 - momentum). DefaultRate multiplies it by the size of
        // the mini-batch, since our loss is a mean. The optimizer multiplies the decay by the rate: hence / kRate.
        default_rate = {.rate = kRate / (1 + 1 / (1 - kMomentum)), .batch = 1024};
        optimizer = {.momentum = kMomentum, .nesterov = true, .weight_decay = kDecay / kRate};
        optimizer.lookahead = std::pow(0.95, 5);
        schedule.kind = ScheduleKind::triangular, schedule.peak = 0.23;
    }
    void set_dependent_defaults(const Options& options) override { // the first and the last learning rate
        if (!options.was_given("lr-start")) schedule.start = 0.2 * highest_rate();
        if (!options.was_given("lr-floor")) schedule.floor = 0.07 * highest_rate();
    }
    data::Normalise normalise(const data::ImageSet&) const override { return data::kCifar10; }
    /// Makes the first layer whiten 2 x 2 patches: its filters are the eigenvectors of patch_products(), each divided
    /// by the square root of its eigenvalue plus 5e-4, and the negatives of these.
    void initialise(Network& network, const data::ImageSet& images, const data::Normalise& normalise) const override {
        Matrix products = patch_products(images, normalise);
        const Matrix vectors = diagonalise(products);
        std::vector<float> filters;
        for (const double sign : {1.0, -1.0})
            for (size_t i = 0; i < vectors.size(); ++i)
                for (const double v : vectors[i]) filters.push_back(float(sign * v / std::sqrt(products[i][i] + 5e-4)));
        const Tensor& weights = network.parameters.entry("whiten.weight").value;
        weights.copy_from(Tensor::of<float>(weights.shape(), filters));
    }
};

constinit const Program quick94{"quick94", "trains a network on CIFAR-10 in 12 epochs", make_training<Quick94Training>};

} // namespace

int main(int argc, char** argv) { return run_training_main(argc, argv, quick94); }
