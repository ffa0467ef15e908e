// 3x3 convolution with stride 1 by Winograd F(4x4, 3x3): forward, data gradient (a forward pass with rotated filters)
// and weight gradient. winograd_isa.cpp explains the mathematics, winograd.cpp the use of the caches.
#pragma once

#include "ringgrad/core/context.h"
#include "ringgrad/core/cpu/isa.h"
#include "ringgrad/core/cpu/padding.h"

namespace rg::cpu {

class Winograd {
public:
    using Result = float;
    /// Returns true if Winograd is applicable and has enough channels, so that the products cost more than the
    /// transforms.
    static bool fits(int64_t k, int64_t r, int64_t s, int64_t c) {
        return !context().strict_fp32 && r == 3 && s == 3 && k >= kLeast && c >= kLeast;
    }

    /// `filters` is called as filters(k, r, s, c). p and q are the extents of the result.
    template <class Filters>
    Winograd(const Padding& padding, int64_t p, int64_t q, int64_t k, const Filters& filters)
        : Winograd(padding, p, q, k, true) {
        const int64_t width = isa().width;
        parallel((k + width - 1) / width, [&](int64_t block) {
            const int64_t ik = block * width;
            for (int64_t ic = 0; ic < g_.c; ++ic)
                set_filters(ik, ic, [&](int64_t i, int64_t r, int64_t s) {
                    return ik + i < k ? filters(ik + i, r, s, ic) : 0.0f;
                });
        });
    }

    /// Constructs the engine for the weight gradient, without filters.
    Winograd(const Padding& padding, int64_t p, int64_t q, int64_t k) : Winograd(padding, p, q, k, false) {}

    /// Returns the number of images per call: enough for efficient products, but few enough for the cache.
    int64_t images_at_once() const { return batch_; }
    /// Computes out [images p q k] = bias + filters * in, for at most images_at_once() images from `first` on.
    template <class T>
    void run(const Images<T>& in, int64_t first, int64_t images, const float* bias, float* out) const;
    /// Adds the contribution of the images to the transformed weight gradient du [36 c k_step], which has
    /// floats_of_gradient() floats.
    template <class T>
    void accumulate(const Images<T>& in, int64_t first, int64_t images, const float* dy, float* du) const;
    int64_t floats_of_gradient() const { return kComponents * g_.c * g_.k_step; }
    /// Transforms du to dw [3 taps k_step], where taps = 3 * c and k_step is k rounded up to whole vectors.
    void finish(const float* du, float* dw) const;

private:
    static constexpr int64_t kLeast = 8;
    Winograd(const Padding& padding, int64_t p, int64_t q, int64_t k, bool filters);
    template <class T>
    void transform_inputs(const Images<T>& in, int64_t first, int64_t images, float* v) const;
    float* filter_block(int64_t k, int64_t& lanes) const;
    template <class F>
    void set_filters(int64_t k, int64_t c, F filter) {
        const int64_t width = isa().width;
        alignas(64) float g[9 * 16];
        for (int64_t rs = 0; rs < 9; ++rs)
            for (int64_t i = 0; i < width; ++i) g[rs * width + i] = filter(i, rs / 3, rs % 3);
        int64_t lanes;
        float* block = filter_block(k, lanes);
        isa().winograd->filter(g, block + c * lanes + k % (2 * width), g_.c * lanes);
    }

    Padding padding_;
    WinogradImage g_;
    int64_t tiles_, batch_; // number of tiles in an image, and of images per call
    Scratch<float> u_;      // blocks of up to 2 vectors of output channels: [36][c][lanes]
};

} // namespace rg::cpu
