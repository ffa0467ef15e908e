// Splits the samples and the outputs of the layer (forward), or its inputs (gradients), into chunks of fixed length for
// the threads. So the bits of the result do not depend on the number of threads.
#include "core/cpu/dense.h"

#include "core/cpu/channels.h"

namespace rg::cpu::dense {

namespace {

/// A chunk has many samples, so that the weights are read seldom, and few outputs or inputs, so that all threads have
/// work.
constexpr int64_t kSamplesPerChunk = 32, kOutputsPerChunk = 64, kInputsPerChunk = 256;

} // namespace

void forward(const Tensor& x, const Tensor& w, const Tensor& b, const Tensor& y) {
    const int64_t c = x.extent(3), k = y.extent(3), n = y.numel() / k;
    const Scratch<float> bias(k);
    bias.zeroed();
    if (b.defined()) std::copy_n(b.data<float>(), k, bias.data());
    const int64_t columns = (k + kOutputsPerChunk - 1) / kOutputsPerChunk;
    parallel((n + kSamplesPerChunk - 1) / kSamplesPerChunk * columns, [&](int64_t task) {
        const int64_t sample = task / columns * kSamplesPerChunk, output = task % columns * kOutputsPerChunk;
        isa().dense->forward(std::min(kSamplesPerChunk, n - sample), c, k, output,
                             std::min(k, output + kOutputsPerChunk), x.data<float>() + sample * c, w.data<float>(),
                             bias, y.data<float>() + sample * k);
    });
}

void dgrad(const Tensor& dy, const Tensor& w, const Tensor& addend, const Tensor& dx) {
    const int64_t c = dx.extent(3), k = dy.extent(3), n = dy.numel() / k;
    const auto of_inputs = [&](int64_t first, int64_t count) {
        isa().dense->dgrad(n, c, k, first, first + count, dy.data<float>(), w.data<float>(), dx.data<float>());
        if (!addend.defined()) return;
        for (int64_t i = first; i < n * c; i += c)
            isa().elements->f32.add(dx.data<float>() + i, addend.data<float>() + i, dx.data<float>() + i, count);
    };
    each_chunk(c, of_inputs, kInputsPerChunk);
}

void wgrad(const Tensor& dy, const Tensor& x, const Tensor& dw, const Tensor& db) {
    const int64_t c = x.extent(3), k = dy.extent(3), n = dy.numel() / k;
    const auto of_inputs = [&](int64_t first, int64_t count) {
        isa().dense->wgrad(n, c, k, first, first + count, dy.data<float>(), x.data<float>(), dw.data<float>());
    };
    each_chunk(c, of_inputs, kInputsPerChunk);
    for (int64_t j = 0; j < k; ++j) {
        float sum = 0;
        for (int64_t i = 0; i < n; ++i) sum += dy.data<float>()[i * k + j];
        db.data<float>()[j] = sum;
    }
}

} // namespace rg::cpu::dense
