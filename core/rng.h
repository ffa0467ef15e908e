// Counter-based random numbers: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
//
// A stream is named by (seed, purpose, epoch, index), never by the rank or by the order of calls, so what a sample
// or a parameter receives does not depend on how many ranks or threads there are. There is no state to save.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>

namespace rg {

enum class Purpose : uint32_t { init = 1, shuffle, split, augment, dropout, synthetic, test };

/// One Philox4x32-10 block: 128 bits of counter and 64 bits of key to 128 random bits. constexpr: kernels call it, too.
constexpr std::array<uint32_t, 4> philox(std::array<uint32_t, 4> ctr, std::array<uint32_t, 2> key) {
    for (int round = 0; round < 10; ++round) {
        const uint64_t a = uint64_t{0xD2511F53} * ctr[0], b = uint64_t{0xCD9E8D57} * ctr[2];
        ctr = {uint32_t(b >> 32) ^ ctr[1] ^ key[0], uint32_t(b), uint32_t(a >> 32) ^ ctr[3] ^ key[1], uint32_t(a)};
        key[0] += 0x9E3779B9;
        key[1] += 0xBB67AE85;
    }
    return ctr;
}

/// A seed from its two halves as tensors hold it, the low one first.
constexpr uint64_t seed_of(const int32_t* halves) { return uint64_t(uint32_t(halves[1])) << 32 | uint32_t(halves[0]); }

/// A stream of random numbers. Copying it copies the position.
class Rng {
public:
    Rng(uint64_t seed, Purpose purpose, uint32_t epoch = 0, uint64_t index = 0)
        : counter_{0, uint32_t(purpose) << 24 ^ epoch, uint32_t(index), uint32_t(index >> 32)},
          key_{uint32_t(seed), uint32_t(seed >> 32)} {}

    uint32_t next() {
        if (used_ == 4) {
            block_ = philox(counter_, key_);
            ++counter_[0];
            used_ = 0;
        }
        return block_[used_++];
    }

    /// Uniform in [0, 1), 24 bits.
    float uniform() { return float(next() >> 8) * 0x1p-24f; }

    /// Uniform integer in [0, n), n >= 1; unbiased (Lemire, "Fast random integer generation in an interval", 2019).
    uint32_t below(uint32_t n) {
        uint64_t product = uint64_t{next()} * n;
        if (uint32_t(product) < n) {
            const uint32_t threshold = (0u - n) % n;
            while (uint32_t(product) < threshold) product = uint64_t{next()} * n;
        }
        return uint32_t(product >> 32);
    }

    /// Standard normal by Box and Muller (1958).
    float normal() {
        const double u = (double(next()) + 0.5) * 0x1p-32, v = double(next()) * 0x1p-32;
        return float(std::sqrt(-2.0 * std::log(u)) * std::cos(6.283185307179586 * v));
    }

private:
    std::array<uint32_t, 4> counter_;
    std::array<uint32_t, 2> key_;
    std::array<uint32_t, 4> block_{};
    int used_ = 4;
};

} // namespace rg
