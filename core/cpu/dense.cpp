// Threads share the samples in the forward pass and the inputs in the gradients, in pieces of fixed length, so that
// the bits do not depend on their number.
#include "core/cpu/dense.h"

#include "core/cpu/channels.h"

namespace rg::cpu::dense {

namespace {

constexpr int64_t kSamplesAtOnce = 8, kInputsAtOnce = 1024;

/// f(first, end) over pieces of c inputs.
template <class F>
void each_piece(int64_t c, F f) {
    parallel((c + kInputsAtOnce - 1) / kInputsAtOnce,
             [&](int64_t task) { f(task * kInputsAtOnce, std::min(c, (task + 1) * kInputsAtOnce)); });
}

} // namespace

bool fits(const Tensor& x, int64_t r, int64_t s, const Attrs& a) {
    return x.dtype() == DType::f32 && r == 1 && s == 1 && a.stride == 1 && a.pad == 0 && x.extent(3) >= 512;
}

void forward(const Tensor& x, const Tensor& w, const Tensor& b, const Tensor& y) {
    const int64_t c = x.extent(3), k = y.extent(3), n = y.numel() / k;
    const Scratch<float> bias(k);
    bias.zeroed();
    if (b.defined()) std::copy_n(b.data<float>(), k, bias.data());
    parallel((n + kSamplesAtOnce - 1) / kSamplesAtOnce, [&](int64_t task) {
        const int64_t first = task * kSamplesAtOnce, count = std::min(kSamplesAtOnce, n - first);
        isa().dense->forward(count, c, k, x.data<float>() + first * c, w.data<float>(), bias,
                             y.data<float>() + first * k);
    });
}

void data(const Tensor& dy, const Tensor& w, const Tensor& other, const Tensor& dx) {
    const int64_t c = dx.extent(3), k = dy.extent(3), n = dy.numel() / k;
    each_piece(c, [&](int64_t first, int64_t end) {
        isa().dense->data(n, c, k, first, end, dy.data<float>(), w.data<float>(), dx.data<float>());
        if (!other.defined()) return;
        for (int64_t at = first; at < n * c; at += c)
            isa().elements->f32.add(dx.data<float>() + at, other.data<float>() + at, dx.data<float>() + at,
                                    end - first);
    });
}

void filters(const Tensor& dy, const Tensor& x, const Tensor& dw, const Tensor& db) {
    const int64_t c = x.extent(3), k = dy.extent(3), n = dy.numel() / k;
    each_piece(c, [&](int64_t first, int64_t end) {
        isa().dense->filters(n, c, k, first, end, dy.data<float>(), x.data<float>(), dw.data<float>());
    });
    for (int64_t j = 0; j < k; ++j) {
        float sum = 0;
        for (int64_t i = 0; i < n; ++i) sum += dy.data<float>()[i * k + j];
        db.data<float>()[j] = sum;
    }
}

} // namespace rg::cpu::dense
