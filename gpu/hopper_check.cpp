// See hopper_check.h. Uses no CUDA, so that tests can run it on the executor.
#include "ringgrad/gpu/hopper_check.h"

#include "ringgrad/core/checksum.h"
#include "ringgrad/core/context.h"
#include "ringgrad/core/ops/conv.h"
#include "ringgrad/core/user_cache.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <sys/stat.h>

namespace rg::gpu {

namespace {

/// Returns random multiples of 1/16 from -15/16 to 1, on the context's device. bf16 holds them exactly, and sums of
/// their products are exact in f32, whatever the order. With `positive`, adds 1.5 to each.
Tensor drawn(const Shape& shape, DType type, int64_t seed, bool positive = false) {
    const Tensor values = Tensor::on_host(shape);
    for (uint64_t state = uint64_t(seed); float& v : values.span<float>()) {
        state = state * 6364136223846793005u + 1442695040888963407u; // Knuth's MMIX generator
        v = float(int(state >> 59) - 15) / 16;
        if (positive) v += 1.5f;
    }
    return values.to(type).to_device();
}

/// Returns true if the Euclidean norm of a - b is at most 1 % of that of b. Rounding to bf16 changes less.
bool agree(const Tensor& a, const Tensor& b) {
    const Tensor x = a.to_host().to(DType::f64), y = b.to_host().to(DType::f64);
    double error = 0, size = 0;
    for (int64_t i = 0; i < x.numel(); ++i) {
        error += std::pow(x.data<double>()[i] - y.data<double>()[i], 2);
        size += std::pow(y.data<double>()[i], 2);
    }
    return error <= 1e-4 * size; // false for NaN
}

struct Case {
    const char* name;
    Op op;
    Attrs attrs;
    std::vector<Tensor> in;
};

/// A convolution of c channels with k square filters.
struct Layer {
    int64_t c, k, width, filter = 3, stride = 1;
    std::string text() const {
        return cat(" of ", c, " channels with ", k, " filters ", filter, " x ", filter, " at width ", width,
                   stride > 1 ? cat(" with stride ", stride) : "");
    }
};

/// Returns ops with this layer that together use all Hopper kernels for it.
std::vector<Case> cases_of(const Layer& layer) {
    using F = Conv2dOp;
    using G = Conv2dGradOp;
    // Makes at least ten tiles. One block computes them all, so it uses each of its at most four stages at least twice.
    const int64_t height = layer.width == 16 ? 32 : 16, c = layer.c, k = layer.k;
    const Conv conv{.stride = layer.stride, .pad = layer.filter / 2};
    const auto results = [&](int64_t extent) { return (extent - 1) / layer.stride + 1; };
    const Shape x{5, height, layer.width, c}, y{5, results(height), results(layer.width), k};
    const Shape w{k, layer.filter, layer.filter, c};
    const BatchNorm norm{.relu = true};
    const auto with_norm = [&](std::vector<Tensor> in, auto place, const Tensor& images) {
        const int64_t channels = images.extent(3);
        const Tensor stats = drawn({2, channels}, DType::f32, 7, true); // mean and variance
        const Tensor gamma = drawn({channels}, DType::f32, 8), beta = drawn({channels}, DType::f32, 9);
        place.set(in, Operand{images, {stats, gamma, beta, norm}});
        return in;
    };
    std::vector<Tensor> forward(op::conv2d->inputs.size()), backward(op::conv2d_grad->inputs.size());
    forward[F::x] = drawn(x, DType::bf16, 1), forward[F::w] = drawn(w, DType::f32, 2);
    forward[F::bias] = drawn({k}, DType::f32, 3);
    backward[G::dy] = drawn(y, DType::bf16, 4), backward[G::x] = forward[F::x], backward[G::w] = forward[F::w];
    const std::vector<Tensor> normalised = with_norm(forward, F().x_norm, forward[F::x]);
    std::vector<Tensor> through_norm = with_norm(backward, G().y_norm, drawn(y, DType::bf16, 5));
    through_norm[G::y_sums] = drawn({2, k}, DType::f32, 6);
    const std::vector<Tensor> through_norms = with_norm(through_norm, G().x_norm, forward[F::x]);
    if (c < 32) // a first layer needs no gradient of its images
        return {{"a convolution", op::conv2d, F{.conv = conv, .with_stats = true}, forward},
                {"a gradient of a convolution", op::conv2d_grad, G{.conv = conv, .data = false, .y_norm = norm},
                 through_norm}};
    return {{"a convolution", op::conv2d, F{.conv = conv, .with_stats = true}, forward},
            {"a convolution of normalised images", op::conv2d, F{.conv = conv, .with_stats = true, .x_norm = norm},
             normalised},
            {"a gradient of a convolution", op::conv2d_grad, G{.conv = conv}, backward},
            {"a gradient of a convolution before a norm", op::conv2d_grad, G{.conv = conv, .y_norm = norm},
             through_norm},
            {"a gradient of a convolution between norms", op::conv2d_grad,
             G{.conv = conv, .with_sums = true, .y_norm = norm, .x_norm = norm}, through_norms}};
}

std::vector<Tensor> run(Device& device, const Case& c) {
    std::vector<Tensor> out;
    const OutputSpecs specs = infer(*c.op, c.in, c.attrs);
    for (int i = 0; i < c.op->outputs; ++i)
        out.push_back(Tensor::empty(specs[size_t(i)].shape, specs[size_t(i)].dtype));
    device.kernel(c.op)({c.attrs, c.in, out});
    return out;
}

} // namespace

std::string find_hopper_mismatch(Device& device, GpuTraits& traits) {
    struct Restore {
        GpuTraits &traits, before;
        ~Restore() { traits = before; }
    } const restore{traits, traits};
    const Context on_device{.device = &device};
    const ContextScope scope(on_device);
    // First some layers for the kernels with packed images (packed_images.cuh). Then all layers that hopper_covers(),
    // for conv_hopper.cu and conv_grad_hopper.cu.
    std::vector<Layer> layers = {
        {64, 64, 9}, {128, 128, 9, 3, 2}, {64, 128, 9, 1}, {128, 64, 10, 1, 2}, {3, 64, 10, 7, 2}};
    for (const int64_t c : {32, 64, 128})
        for (const int64_t k : {32, 64, 128})
            for (const int64_t width : {8, 16, 32})
                if (std::max(c, k) < 128 || (std::min(c, k) > 32 && width == 8)) layers.push_back({c, k, width});
    for (const Layer& layer : layers)
        for (const Case& one : cases_of(layer)) {
            std::vector<Tensor> results[2];
            for (const bool hopper : {false, true}) {
                traits = {.sm_count = 1, .hopper_kernels = hopper}; // so one block computes all tiles
                results[hopper] = run(device, one);
            }
            for (size_t i = 0; i < results[0].size(); ++i)
                if (!agree(results[1][i], results[0][i])) return one.name + layer.text();
        }
    return {};
}

PassedCheck::PassedCheck(const std::string& what, std::string_view build) {
    if (user_cache().empty() || build.find("-dirty") != build.npos || build.find("no git") != build.npos) return;
    path_ = cat(user_cache(), "/hopper-", checksum(cat(what, ", ", build)));
}

bool PassedCheck::known() const {
    std::error_code error;
    return !path_.empty() && std::filesystem::exists(path_, error);
}

void PassedCheck::remember() const noexcept {
    if (path_.empty()) return;
    const std::filesystem::path folder = std::filesystem::path(path_).parent_path();
    std::error_code error;
    std::filesystem::create_directories(folder.parent_path(), error);
    (void)::mkdir(folder.c_str(), 0700); // as data/cache.h requires
    (void)std::ofstream(path_);
}

} // namespace rg::gpu
