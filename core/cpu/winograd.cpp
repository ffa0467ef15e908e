// Processes one image or a few at a time, and two vectors of output channels at a time. So the transformed inputs (2.25
// times an image) and the products stay in the second-level cache of the core.
#include "ringgrad/core/cpu/winograd.h"

#include <algorithm>

namespace rg::cpu {

namespace {

/// Number of tiles (rows of the products) in a batch of images. Larger batches cost less per tile: the forward pass
/// reads the filters once per batch. The weight gradient reads and writes the transformed gradient once per batch, and
/// with 128 channels the transformed gradient is larger than the cache.
constexpr int64_t kTilesForward = 32, kTilesBackward = 64;

/// Returns the distance between components of this size, which is the size plus a cache line. If the distance were a
/// power of two, the 36 stores of a tile would all use the same set of the first-level cache.
int64_t component(int64_t floats) { return floats + 16; }

} // namespace

Winograd::Winograd(const Padding& padding, int64_t p, int64_t q, int64_t k, bool filters)
    : padding_(padding), u_(filters ? kComponents * padding.c * round_up(k, isa().width) : 0) {
    const int64_t down = (p + 3) / 4, across = (q + 3) / 4;
    padding_.rows = 4 * down + 2; // whole tiles; pixels after the image are zero
    padding_.columns = 4 * across + 2;
    const int64_t width = isa().width;
    g_ = {
        p, q, across, down, padding.c, k, round_up(padding.c, width), round_up(k, width), padding_.columns * padding.c};
    tiles_ = down * across;
    batch_ = std::max<int64_t>(1, (filters ? kTilesForward : kTilesBackward) / tiles_);
}

float* Winograd::filter_block(int64_t k, int64_t& lanes) const {
    const int64_t block = 2 * isa().width, first = k / block * block;
    lanes = std::min(block, g_.k_step - first);
    return u_ + first * kComponents * g_.c;
}

template <class T>
void Winograd::transform_inputs(const Images<T>& in, int64_t first, int64_t images, float* v) const {
    const Scratch<float> padded(padding_.values());
    for (int64_t i = 0; i < images; ++i) {
        padding_.copy(in, first + i, padded.data());
        isa().winograd->input(g_, padded, v + i * tiles_ * g_.c_step, component(images * tiles_ * g_.c_step));
    }
}

template <class T>
void Winograd::run(const Images<T>& in, int64_t first, int64_t images, const float* bias, float* out) const {
    const int64_t tiles = images * tiles_;
    const int64_t v_component = component(tiles * g_.c_step), m_component = component(tiles * 2 * isa().width);
    const Scratch<float> v(kComponents * v_component), m(kComponents * m_component);
    transform_inputs(in, first, images, v);
    for (int64_t k = 0; k < g_.k; k += 2 * isa().width) {
        int64_t lanes;
        const float* u = filter_block(k, lanes);
        isa().winograd->multiply(g_, v, v_component, tiles, u, int(lanes), m, m_component);
        for (int64_t i = 0; i < images; ++i)
            isa().winograd->output(g_, m + i * tiles_ * lanes, m_component, int(lanes), int(std::min(lanes, g_.k - k)),
                                   bias + k, out + i * g_.p * g_.q * g_.k + k);
    }
}

template <class T>
void Winograd::accumulate(const Images<T>& in, int64_t first, int64_t images, const float* dy, float* du) const {
    const int64_t tiles = images * tiles_;
    const int64_t v_component = component(tiles * g_.c_step), z_component = component(tiles * g_.k_step);
    const Scratch<float> v(kComponents * v_component), z(kComponents * z_component);
    transform_inputs(in, first, images, v);
    for (int64_t i = 0; i < images; ++i)
        isa().winograd->gradient(g_, dy + i * g_.p * g_.q * g_.k, z + i * tiles_ * g_.k_step, z_component);
    isa().winograd->accumulate(g_, v, z, v_component, z_component, tiles, du);
}

#define RG_STORED(T)                                                                                                   \
    template void Winograd::run(const Images<T>&, int64_t, int64_t, const float*, float*) const;                       \
    template void Winograd::accumulate(const Images<T>&, int64_t, int64_t, const float*, float*) const;
RG_STORED(float)
RG_STORED(uint16_t)
#undef RG_STORED

void Winograd::finish(const float* du, float* dw) const {
    const int64_t width = isa().width;
    alignas(64) float g[9 * 16];
    for (int64_t c = 0; c < g_.c; ++c)
        for (int64_t k = 0; k < g_.k_step; k += width) {
            isa().winograd->filter_gradient(du + c * g_.k_step + k, g_.c * g_.k_step, g);
            for (int64_t rs = 0; rs < 9; ++rs) std::copy_n(g + rs * width, width, dw + (rs * g_.c + c) * g_.k_step + k);
        }
}

} // namespace rg::cpu
