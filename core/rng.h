// Counter-based random numbers: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
//
// (seed, purpose, epoch, index) determines a stream of numbers; the rank and the order of calls do not matter. If the
// index is that of a sample in its data set, or of a parameter, the numbers are the same with any number of ranks and
// threads. A checkpoint need not save any state of the generator.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>

namespace rg {

enum class Purpose : uint32_t {
    init = 1,
    shuffle,
    split,
    augment,
    dropout,
    synthetic,
    test,
    sample,
    step,
    jitter,
    erase,
    mix,
    sampler
};

/// Computes one Philox4x32-10 block: 128 random bits from a 128-bit counter and a 64-bit key. It is constexpr, so that
/// CUDA kernels can call it.
constexpr std::array<uint32_t, 4> philox(std::array<uint32_t, 4> ctr, std::array<uint32_t, 2> key) {
    for (int round = 0; round < 10; ++round) {
        const uint64_t a = uint64_t{0xD2511F53} * ctr[0], b = uint64_t{0xCD9E8D57} * ctr[2];
        ctr = {uint32_t(b >> 32) ^ ctr[1] ^ key[0], uint32_t(b), uint32_t(a >> 32) ^ ctr[3] ^ key[1], uint32_t(a)};
        key[0] += 0x9E3779B9;
        key[1] += 0xBB67AE85;
    }
    return ctr;
}

/// Returns the seed that a tensor holds as two i32 halves, the low half first.
constexpr uint64_t seed_of(const int32_t* halves) { return uint64_t(uint32_t(halves[1])) << 32 | uint32_t(halves[0]); }

/// Generates one stream of random numbers. `epoch` must be below 2^24. A copy starts at the position of the original.
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

    /// Returns a uniform number in [0, 1) with 24 random bits.
    float uniform() { return float(next() >> 8) * 0x1p-24f; }

    /// Returns an unbiased uniform integer in [0, n) for n >= 1 (Lemire, "Fast random integer generation in an
    /// interval", 2019).
    uint32_t uniform_below(uint32_t n) {
        uint64_t product = uint64_t{next()} * n;
        if (uint32_t(product) < n) {
            const uint32_t threshold = (0u - n) % n;
            while (uint32_t(product) < threshold) product = uint64_t{next()} * n;
        }
        return uint32_t(product >> 32);
    }

    /// Returns a standard normal number, by the method of Box and Muller (1958).
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
