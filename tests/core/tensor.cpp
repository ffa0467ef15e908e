// Tests tensors: shapes, views, conversions and their rounding, byte counts, dry runs, and errors.
#include "core/tensor.h"
#include "core/text.h"
#include "tests/allocations.h"
#include "tests/temp_dir.h"

#include <bit>
#include <cmath>
#include <doctest/doctest.h>
#include <malloc.h>
#include <thread>

namespace rg {
namespace {

uint16_t bf16_of(uint32_t float_bits) { return to_bf16(std::bit_cast<float>(float_bits)).bits; }

} // namespace

TEST_SUITE("core") {
    TEST_CASE("bf16: rounds to the nearest, ties to even") {
        struct {
            uint32_t from;
            uint16_t to;
        } const cases[] = {
            {0x00000000, 0x0000}, {0x80000000, 0x8000},                       // zeros of both signs
            {0x3F800000, 0x3F80}, {0xC0490FDB, 0xC049},                       // 1, -pi
            {0x3F808000, 0x3F80}, {0x3F818000, 0x3F82},                       // ties go to even
            {0x3F807FFF, 0x3F80}, {0x3F808001, 0x3F81},                       // just below and above a tie
            {0xBF808000, 0xBF80}, {0xBF818000, 0xBF82},                       //
            {0x7F7FFFFF, 0x7F80}, {0xFF7FFFFF, 0xFF80},                       // the largest floats round to infinity
            {0x7F7F7FFF, 0x7F7F}, {0x7F800000, 0x7F80}, {0xFF800000, 0xFF80}, //
            {0x00000001, 0x0000}, {0x00008000, 0x0000}, {0x00008001, 0x0001}, // subnormals
            {0x00018000, 0x0002}, {0x007FFFFF, 0x0080}, {0x80018000, 0x8002},
        };
        for (const auto& c : cases) {
            CAPTURE(c.from);
            CHECK(bf16_of(c.from) == c.to);
        }
        for (uint32_t nan : {0x7F800001u, 0x7FC00000u, 0xFF800001u, 0x7FFFFFFFu, 0xFFFFFFFFu, 0x7F80FFFFu}) {
            CAPTURE(nan);
            CHECK(std::isnan(to_float({bf16_of(nan)})));
            CHECK(std::signbit(to_float({bf16_of(nan)})) == (nan >> 31 == 1));
        }
        for (uint32_t bits = 0; bits < 0x10000; ++bits) { // every bf16 number survives a round trip
            const float value = to_float({uint16_t(bits)});
            if (!std::isnan(value)) CHECK_UNARY(to_bf16(value).bits == bits);
        }
    }

#ifdef RG_POISON
    TEST_CASE("tensor: in builds with debug or a sanitizer, new memory holds NaN, also where it was freed before") {
        for (int i : {0, 1}) {
            CAPTURE(i);
            const Tensor t = Tensor::empty({1000}), narrow = Tensor::empty({7}, DType::bf16);
            for (const float value : t.span<float>()) CHECK_UNARY(std::isnan(value));
            for (const bf16 value : narrow.span<bf16>()) CHECK_UNARY(std::isnan(to_float(value)));
            t.fill(1), narrow.fill(1);
        }
    }
#endif

    TEST_CASE("error: shows only the begin and the end of a long text") {
        const auto error = [](const std::string& text) {
            return error_of([&] { fail("expected a, got \"", text, "\"; x"); });
        };
        const std::string most(1000, 'm'), more = std::string(2'999'999, 'b') + "e";
        CHECK(error(most) == "expected a, got \"" + most + "\"; x");
        CHECK(error(more) == "expected a, got \"" + std::string(700, 'b') + " ... " + std::string(199, 'b') +
                                 "e (3000000 bytes)\"; x");
        std::string wide;
        for (int i = 0; i < 1000; ++i) wide += "\u20ac";
        for (const char* before : {"", "1", "12"}) {
            CHECK(is_utf8(error(before + wide)));
            CHECK(error(before + wide).size() < 1000);
        }
        CHECK(error(std::string(2000, '\x80')).size() < 1000);
    }

    TEST_CASE("tensor: a shape has up to four extents") {
        CHECK(Shape{}.str() == "[]");
        CHECK(Shape{256, 32, 32, 3}.str() == "[256 32 32 3]");
        CHECK(Shape{}.numel() == 1);
        CHECK(Shape{5, 0, 3}.numel() == 0);
        CHECK(Shape{2, 3}.rank() == 2);
        CHECK(Shape{2, 3} == Shape{2, 3});
        CHECK_FALSE(Shape{2, 3} == Shape{2, 3, 1});
        CHECK_FALSE(Shape{2, 3} == Shape{3, 2});
        CHECK_ERROR("at most 4 extents, got 5", Shape{1, 2, 3, 4, 5});
        CHECK_ERROR("expected no negative extent, got [1 -2]", Shape{1, -2});
        constexpr int64_t kLarge = int64_t{1} << 32;
        CHECK(Shape{0, kLarge, kLarge}.numel() == 0);
        CHECK(Shape{kLarge, kLarge / 32}.numel() == int64_t{1} << 59);
        CHECK_ERROR("less than 2^60 elements, got [4294967296 4294967296]", Shape{kLarge, kLarge});
    }

    TEST_CASE("tensor: reshape and slice share memory, and reject what does not fit") {
        const float values[] = {0, 1, 2, 3, 4, 5};
        const Tensor t = Tensor::of<float>({2, 3}, values);
        const Tensor turned = t.reshape({3, 1, 2});
        CHECK(turned.shape() == Shape{3, 1, 2});
        CHECK(turned.data<float>() == t.data<float>());
        CHECK(turned.key() == t.key());
        const Tensor tail = t.slice(4, {2, 1});
        CHECK(tail.data<float>() == t.data<float>() + 4);
        CHECK(tail.data<float>()[1] == 5);
        CHECK(tail.slice(1, {1}).data<float>()[0] == 5);
        CHECK(tail.key() != t.key());
        CHECK(tail.key() == t.slice(4, {1}).key());
        CHECK(tail.key() == t.slice(2, {4}).slice(2, {2}).key());
        tail.data<float>()[0] = 40;
        CHECK(t.data<float>()[4] == 40);
        CHECK(t.slice(6, {0}).numel() == 0);
        CHECK(error_of([&] { t.reshape({4}); }) ==
              "reshape: expected 6 elements as in [2 3], got 4 in [4]; choose extents with the same product");
        CHECK_ERROR("slice: expected elements of [0, 6), got 2 from element 5", t.slice(5, {2}));
        CHECK_ERROR("got 2 from element -1", t.slice(-1, {2}));
        CHECK_ERROR("shape [7] needs 7 values, got 6", Tensor::of<float>({7}, values));
    }

    TEST_CASE("tensor: copies share memory, clones do not, and keys are never reused") {
        const Tensor a = Tensor::zeros({3});
        const Tensor b = a, c = a.clone(); // NOLINT: the copy is what is tested
        a.fill(2);
        CHECK(b.data<float>()[2] == 2);
        CHECK(c.data<float>()[2] == 0);
        CHECK(a.key() == b.key());
        CHECK(a.key() != c.key());
        Tensor::Key before;
        { before = Tensor::empty({100}).key(); }
        CHECK(Tensor::empty({100}).key() != before); // the memory is reused, the key is not
        CHECK_FALSE(Tensor().defined());
        CHECK(a.without_memory().key() == a.key());
        CHECK_ERROR("got a tensor that no tape saved", a.without_memory().data<float>());
    }

    TEST_CASE("tensor: typed access checks the type and the alignment") {
        const Tensor t = Tensor::zeros({2}, DType::i32);
        CHECK(error_of([&] { t.data<float>(); }) ==
              "tensor: elements are i32, not f32; convert them with to() or cast()");
        CHECK_ERROR("undefined", Tensor().data<float>());
        CHECK(t.bytes() == 8);
        CHECK(Tensor::zeros({3}, DType::bf16).bytes() == 6);
        CHECK(Tensor::zeros({3}, DType::u8).bytes() == 3);
        CHECK(Tensor::zeros({3}, DType::i64).bytes() == 24);
        CHECK(reinterpret_cast<uintptr_t>(Tensor::empty({1}).bytes_data()) % 64 == 0);
        CHECK(reinterpret_cast<uintptr_t>(Tensor::empty({1 << 20}).bytes_data()) % 64 == 0);
    }

    TEST_CASE("tensor: conversions between all types keep small integers") {
        const double values[] = {0, 1, 2, 100, 127};
        for (DType from : {DType::f32, DType::bf16, DType::u8, DType::i32, DType::f64, DType::i64})
            for (DType to : {DType::f32, DType::bf16, DType::u8, DType::i32, DType::f64, DType::i64}) {
                CAPTURE(name_of(from));
                CAPTURE(name_of(to));
                const Tensor t = Tensor::of<double>({5}, values).to(from).to(to);
                CHECK(t.dtype() == to);
                const Tensor back = t.to(DType::f64);
                for (size_t i = 0; i < 5; ++i) CHECK(back.data<double>()[i] == values[i]);
                const Tensor filled = Tensor::empty({3}, to);
                filled.fill(3);
                CHECK(filled.to(DType::i32).data<int32_t>()[2] == 3);
            }
        const float fine[] = {1.00390625f};
        CHECK(Tensor::of<float>({1}, fine).to(DType::bf16).to(DType::f32).data<float>()[0] == 1.0f);
    }

    TEST_CASE("tensor: counts live bytes, and reuses freed memory") {
        const int64_t before = live_bytes();
        reset_peak_bytes();
        CHECK(peak_bytes() == before);
        {
            const Tensor a = Tensor::empty({1000});
            CHECK(live_bytes() == before + 4000);
            const Tensor b = a.reshape({10, 100}), c = a.slice(10, {10});
            CHECK(live_bytes() == before + 4000);
            { const Tensor d = a.clone(); }
            CHECK(live_bytes() == before + 4000);
        }
        CHECK(live_bytes() == before);
        CHECK(peak_bytes() == before + 8000);
        Tensor kept;
        {
            const Tensor whole = Tensor::zeros({100});
            kept = whole.slice(50, {1}); // keeps the whole block alive
        }
        CHECK(live_bytes() == before + 400);
        CHECK(kept.data<float>()[0] == 0);
    }

#if defined(__GLIBC__) && __GLIBC_PREREQ(2, 33)
    TEST_CASE("tensor: freed blocks are kept until they are released") {
        if (allocations() < 0) return; // with a sanitizer, none is kept
        const auto mapped = [] { return int64_t(mallinfo2().hblkhd); };
        release_free_blocks();
        constexpr int64_t kBytes = 64 << 20; // malloc itself keeps no block of this size
        const int64_t before = mapped();
        Tensor::zeros({kBytes / 4});
        CHECK(mapped() >= before + kBytes);
        release_free_blocks();
        CHECK(mapped() <= before);
    }
#endif

    TEST_CASE("tensor: a dry run counts bytes and provides no values") {
        const int64_t before = live_bytes();
        const Tensor real = Tensor::zeros({4});
        CHECK_FALSE(DryRun::active());
        {
            const DryRun dry;
            CHECK(DryRun::active());
            { const DryRun again; }
            CHECK(DryRun::active());
            const Tensor huge = Tensor::empty({int64_t{1} << 40});
            CHECK(live_bytes() == before + 16 + (int64_t{4} << 40));
            CHECK_ERROR("do not exist while a function is traced", huge.data<float>());
            CHECK_ERROR("do not exist while a function is traced", huge.fill(1));
            CHECK(Tensor::zeros({3}).numel() == 3);
            CHECK(real.data<float>()[0] == 0); // made before the dry run
            bool other = true;
            std::jthread([&] { other = DryRun::active(); }).join();
            CHECK_FALSE(other);
        }
        CHECK_FALSE(DryRun::active());
        CHECK(live_bytes() == before + 16);
    }
}

} // namespace rg
