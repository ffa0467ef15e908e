// Tests random numbers: the published vectors of Philox4x32-10, independent streams, and the distributions.
#include "core/rng.h"

#include <cmath>
#include <doctest/doctest.h>
#include <set>
#include <vector>

namespace rg {
TEST_SUITE("core") {
    TEST_CASE("philox: gives the published results") {
        using Block = std::array<uint32_t, 4>;
        const uint32_t ones = 0xFFFFFFFF;
        CHECK(philox({0, 0, 0, 0}, {0, 0}) == Block{0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8});
        CHECK(philox({ones, ones, ones, ones}, {ones, ones}) == Block{0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD});
        CHECK(philox({0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344}, {0xA4093822, 0x299F31D0}) ==
              Block{0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1});
    }

    TEST_CASE("rng: returns the blocks of a stream in order, and a copy continues from the same position") {
        Rng random(0x123456789, Purpose::test, 7, 0xABCDEF0123);
        for (uint32_t block = 0; block < 3; ++block) {
            const auto want = philox({block, uint32_t(Purpose::test) << 24 ^ 7, 0xCDEF0123, 0xAB}, {0x23456789, 1});
            for (uint32_t v : want) CHECK(random.next() == v);
        }
        Rng copy = random;
        for (int i = 0; i < 10; ++i) CHECK(copy.next() == random.next());
    }

    TEST_CASE("rng: each part of a stream's name selects another stream") {
        std::set<std::vector<uint32_t>> seen;
        size_t streams = 0;
        const auto add = [&](Rng random) {
            seen.insert({random.next(), random.next(), random.next()});
            ++streams;
        };
        for (uint64_t seed : {uint64_t{0}, uint64_t{1}, uint64_t{1} << 32, uint64_t{1} << 63})
            for (Purpose purpose : {Purpose::init, Purpose::shuffle, Purpose::split, Purpose::augment, Purpose::dropout,
                                    Purpose::synthetic, Purpose::test, Purpose::jitter, Purpose::erase, Purpose::mix,
                                    Purpose::sampler})
                for (uint32_t epoch : {0u, 1u, 2u, 255u, 65536u})
                    for (uint64_t index :
                         {uint64_t{0}, uint64_t{1}, uint64_t{49999}, uint64_t{1} << 32, uint64_t{1} << 63})
                        add(Rng(seed, purpose, epoch, index));
        CHECK(seen.size() == streams);
    }

    TEST_CASE("rng: uniform_below() is uniform for every bound") {
        for (uint32_t n : {1u, 2u, 3u, 10u, 7919u}) {
            CAPTURE(n);
            Rng random(5, Purpose::test, 0, n);
            const uint32_t cells = n < 10 ? n : 10;
            std::vector<double> counts(cells);
            constexpr int kDraws = 60000;
            for (int i = 0; i < kDraws; ++i) {
                const uint32_t value = random.uniform_below(n);
                CHECK_UNARY(value < n);
                counts[size_t(uint64_t{value} * cells / n)] += 1;
            }
            double chi2 = 0; // a cell holds ceil or floor of n / cells numbers
            for (uint32_t cell = 0; cell < cells; ++cell) {
                double numbers = 0;
                for (uint32_t v = 0; v < n; ++v) numbers += uint64_t{v} * cells / n == cell;
                const double expected = kDraws * numbers / n;
                chi2 += (counts[cell] - expected) * (counts[cell] - expected) / expected;
            }
            CHECK(chi2 < 28); // 9 degrees of freedom: p = 0.001
        }
        // For 3 * 2^30, one draw in four is rejected. Otherwise low numbers of each third would come twice as often.
        Rng random(6, Purpose::test);
        const uint32_t n = 3u << 30;
        double odd[3] = {};
        for (int i = 0; i < 60000; ++i) odd[random.uniform_below(n) % 3] += 1;
        for (double count : odd) CHECK(count == doctest::Approx(20000).epsilon(0.03));
    }

    TEST_CASE("rng: uniform() and normal() have the expected moments") {
        Rng random(7, Purpose::test);
        constexpr int kDraws = 100000;
        double mean = 0, square = 0, lowest = 1, highest = 0;
        for (int i = 0; i < kDraws; ++i) {
            const double u = random.uniform();
            mean += u / kDraws, square += u * u / kDraws;
            lowest = std::min(lowest, u), highest = std::max(highest, u);
        }
        CHECK(mean == doctest::Approx(0.5).epsilon(0.01));
        CHECK(square == doctest::Approx(1.0 / 3).epsilon(0.01));
        CHECK(lowest >= 0);
        CHECK(lowest < 1e-4);
        CHECK(highest < 1);
        CHECK(highest > 1 - 1e-4);
        double moments[4] = {}, beyond = 0;
        for (int i = 0; i < kDraws; ++i) {
            const double z = random.normal();
            CHECK_UNARY(std::isfinite(z));
            double power = 1;
            for (double& m : moments) m += (power *= z) / kDraws;
            beyond += std::abs(z) > 1.959964;
        }
        CHECK(std::abs(moments[0]) < 0.012);
        CHECK(moments[1] == doctest::Approx(1).epsilon(0.015));
        CHECK(std::abs(moments[2]) < 0.04);
        CHECK(moments[3] == doctest::Approx(3).epsilon(0.04));
        CHECK(beyond / kDraws == doctest::Approx(0.05).epsilon(0.05));
    }
}
} // namespace rg
