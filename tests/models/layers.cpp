// Tests the layers of networks.
#include "core/accelerate.h"
#include "core/layers.h"
#include "core/tape.h"
#include "tests/op_check.h"
#include "tests/temp_dir.h"

#include <algorithm>
#include <cmath>
#include <doctest/doctest.h>

using namespace rg;

TEST_SUITE("models") {
    TEST_CASE("layers: report parameters that were not allocated") {
        Parameters parameters;
        const Dense dense(parameters, "fc", 2, 3);
        const ConvNorm conv(parameters, "block1.0", {4, 3, 3});
        const Convolution plain(parameters, "out", {4, 3, 3});
        const LayerNorm norm(parameters, "norm", 3);
        const Tensor x = Tensor::zeros({2, 3}), images = Tensor::zeros({2, 5, 5, 3});
        const std::string error = "layer: expected allocated parameters, got none; call Parameters::allocate() "
                                  "after all layers are made (layer ";
        CHECK(error_of([&] { dense(x); }) == error + "fc)");
        CHECK(error_of([&] { plain(images); }) == error + "out)");
        CHECK(error_of([&] { norm(x); }) == error + "norm)");
        for (const Mode mode : {Mode::train, Mode::evaluate})
            CHECK(error_of([&] { conv(images, mode); }) == error + "block1.0)");
        parameters.allocate(0, Init::he);
        CHECK(dense(x).shape() == Shape{2, 2});
        CHECK(conv(images, Mode::train).shape() == Shape{2, 3, 3, 4});
        CHECK(plain(images).shape() == Shape{2, 3, 3, 4});
        CHECK(norm(x).shape() == Shape{2, 3});
    }

    TEST_CASE("layers: have inputs, outputs and names of their own") {
        Parameters parameters;
        const Dense dense(parameters, "fc", 2, 3);
        CHECK_ERROR("distinct names, got fc.weight twice", Dense(parameters, "fc", 2, 3));
        CHECK_ERROR("at least 1, got [2 0] (none.weight)", Dense(parameters, "none", 2, 0));
        CHECK_ERROR("at least 1, got [0 3 3 3]", Convolution(parameters, "none", {0, 3, 3}));
    }

    TEST_CASE("layers: convolution with bias and layer norm apply their parameters") {
        Parameters parameters;
        const Convolution conv(parameters, "out", {2, 1, 1, {.stride = 2}});
        const LayerNorm norm(parameters, "norm", 2, 0.0f);
        for (size_t i = 0; const char* const name : {"out.weight", "out.bias", "norm.weight", "norm.bias"})
            CHECK(parameters.entries()[i++].name == name);
        parameters.allocate(0, Init::he);
        const auto set = [&](size_t entry, std::vector<float> values) {
            std::copy(values.begin(), values.end(), parameters.entries()[entry].value.data<float>());
        };
        set(0, {10, -1}), set(1, {0.5, 2});
        const Tensor y = conv(floats({1, 1, 3, 1}, 1, 2, 3)); // pixels 0 and 2
        CHECK(list(y) == Floats{10.5, 1, 30.5, -1});
        CHECK(list(norm(y)) == Floats{1, -1, 1, -1}); // weight 1, bias 0
        set(2, {3, 5}), set(3, {1, 2});
        CHECK(list(norm(y)) == Floats{4, -3, 4, -3});
    }

    TEST_CASE("layers: dropout drops in training only, and its stream tells layers apart") {
        const Tensor x = Tensor::constant({20, 50}, 1);
        Parameters parameters, others;
        CHECK_ERROR("expected begin_step() after allocate()", parameters.begin_step(1));
        const Dropout first(parameters, 0.25f), second(parameters, 0.25f), other(others, 0.25f);
        parameters.allocate(3, Init::he), others.allocate(4, Init::he);
        CHECK(first(x, Mode::evaluate).key() == x.key());
        CHECK_ERROR("expected begin_step() before a layer draws", first(x, Mode::train));
        const auto mask = [&](const Dropout& layer) { return layer(x, Mode::train).clone(); };
        parameters.begin_step(1), others.begin_step(1);
        const Tensor of_step_1 = mask(first);
        CHECK(same_bits(of_step_1, dropout(x, 0.25f, parameters.step_seed(), 0)));
        CHECK_FALSE(same_bits(of_step_1, mask(second)));
        CHECK_FALSE(same_bits(of_step_1, mask(other)));
        for (const auto& [step, part] : {std::pair(2, 0), {1, 8}}) {
            parameters.begin_step(step, part);
            CHECK_FALSE(same_bits(of_step_1, mask(first)));
        }
        parameters.begin_step(1);
        CHECK(same_bits(of_step_1, mask(first)));
    }

    TEST_CASE("layers: the gradient of dropout has the mask of its forward pass, also after another one") {
        Parameters parameters;
        const Dropout layer(parameters, 0.5f);
        parameters.allocate(0, Init::he);
        const Tensor x = Tensor::constant({100}, 1), dx = Tensor::empty({100});
        Tape tape;
        parameters.begin_step(1, 0);
        const Tensor first = layer(x, Mode::train);
        parameters.begin_step(1, 100);
        const Tensor second = layer(x, Mode::train);
        CHECK_FALSE(same_bits(first, second));
        tape.gradients(sum(add(first, scale(second, 0))), {{x}}, {{dx}});
        for (int i = 0; i < 100; ++i) CHECK((dx.span<float>()[i] == 0) == (first.span<float>()[i] == 0));
    }

    TEST_CASE("layers: replays draw the numbers of their step") {
        Parameters parameters;
        const Dropout layer(parameters, 0.5f);
        parameters.allocate(0, Init::he);
        Accelerated f([&](auto in, bool) { return std::vector{layer(in[0], Mode::train)}; });
        const Tensor x = Tensor::constant({100}, 1);
        CHECK_ERROR("expected begin_step() before a layer draws", f({x}));
        parameters.begin_step(1);
        f.plan({x});
        for (const int step : {1, 2, 1}) {
            parameters.begin_step(step);
            CHECK(same_bits(f({x})[0], layer(x, Mode::train)));
        }
        CHECK(f.hit_rate() == doctest::Approx(2.0 / 3));
        Accelerated begins([&](auto in, bool) {
            parameters.begin_step(1);
            return std::vector{layer(in[0], Mode::train)};
        });
        CHECK_ERROR("expected begin_step() before a traced function is called", begins({x}));
    }

    TEST_CASE("layers: a convolution in groups has filters for the channels of a group") {
        Parameters parameters;
        const ConvNorm conv(parameters, "depthwise", {.out = 6, .kernel = 3, .in = 3, .conv = {.groups = 3}});
        parameters.allocate(0, Init::he);
        for (const Mode mode : {Mode::train, Mode::evaluate})
            CHECK(conv(Tensor::zeros({2, 5, 5, 3}), mode).shape() == Shape{2, 3, 3, 6});
    }

    TEST_CASE("layers: a convolution in the order of other libraries is an error") {
        Parameters parameters;
        CHECK_ERROR("convolution a: expected {out, kernel, in} with a kernel of at most 11, or a stride or padding that fit "
                    "a larger one, got {3, 16, 3}; mind the order", Convolution(parameters, "a", {3, 16, 3}));
        CHECK_ERROR("{64, 128, 3}", ConvNorm(parameters, "b", {64, 128, 3, {.stride = 2, .pad = 1}}));
        int layer = 0;
        for (const Convolution::Spec& spec : {Convolution::Spec{16, 11, 3}, {768, 16, 3, {.stride = 16}},
                                              {32, 31, 32, {.pad = 15, .groups = 32}}, {8, {1, 64}, 1}})
            CHECK_NOTHROW(Convolution(parameters, cat("legal", ++layer), spec));
    }

    TEST_CASE("layers: filters before a batch norm alone are free of scale") {
        Parameters parameters;
        const ConvNorm inner(parameters, "inner", {6, 3, 3});
        const Convolution outer(parameters, "outer", {2, 1, 6});
        for (const Parameters::Entry& entry : parameters.entries())
            CHECK(entry.scale_free == (entry.name.starts_with("inner") && entry.shape.rank() == 4));
    }

    TEST_CASE("layers: a parameter whose rate is 0 gets no gradient") {
        Parameters parameters;
        const Dense dense(parameters, "fc", 3, 2);
        parameters.entry("fc.weight").rate = 0;
        parameters.allocate(0, Init::he);
        Tape tape;
        const Tensor loss = sum(dense(Tensor::constant({4, 2}, 1)));
        tape.gradients(loss, parameters);
        for (const float g : parameters.entry("fc.weight").gradient.span<float>()) CHECK(g == 0);
        for (const float g : parameters.entry("fc.bias").gradient.span<float>()) CHECK(g == doctest::Approx(4));
    }

    TEST_CASE("layers: upsampling repeats each pixel, and gradients add up over the copies") {
        const Tensor x = Tensor::empty({2, 3, 2, 5}), dx = Tensor::zeros(x.shape());
        for (int64_t i = 0; i < x.numel(); ++i) x.data<float>()[i] = float(i);
        Tape tape;
        const Tensor y = upsample(x, 3);
        REQUIRE(y.shape() == Shape{2, 9, 6, 5});
        for (int64_t n = 0; n < 2; ++n)
            for (int64_t h = 0; h < 9; ++h)
                for (int64_t w = 0; w < 6; ++w)
                    for (int64_t c = 0; c < 5; ++c)
                        CHECK(y.data<float>()[((n * 9 + h) * 6 + w) * 5 + c] ==
                              x.data<float>()[((n * 3 + h / 3) * 2 + w / 3) * 5 + c]);
        tape.gradients(sum(y), {{x}}, {{dx}});
        for (const float g : dx.span<float>()) CHECK(g == doctest::Approx(9).epsilon(1e-5)); // nine ones
        // The gradient of a pixel is the sum over its copies, here 264. Sums of bf16 would stay at 256.
        const Tensor pixel = Tensor::constant({1, 1, 1, 1}, 1, DType::bf16);
        const Tensor gradient = Tensor::zeros({1, 1, 1, 1}, DType::bf16);
        const Tensor weights = floats({1, 3, 3, 1}, 256, 1, 1, 1, 1, 1, 1, 1, 1).to(DType::bf16);
        {
            Tape tape;
            const Tensor loss = sum(cast(mul(upsample(pixel, 3), weights), DType::f32));
            tape.gradients(loss, std::array{pixel}, std::array{gradient});
        }
        CHECK(gradient.to(DType::f32).data<float>()[0] == doctest::Approx(264).epsilon(0.016)); // two steps of bf16
        CHECK_ERROR("factor of 1 to 12, got 0", upsample(x, 0));
    }

    TEST_CASE("layers: batch norm takes its epsilon and momentum, and can go without trained weights") {
        Parameters parameters;
        const Norm norm(parameters, "norm",
                        {.channels = 1,
                         .activation = Activation::none,
                         .options = {.scale = false, .epsilon = 3, .momentum = 0.5f}});
        parameters.allocate(0, Init::he);
        CHECK(parameters.entry("norm.weight").rate == 0);
        CHECK(parameters.entry("norm.bias").rate == 1);
        const Tensor x = floats({1, 1, 2, 1}, 1, 3); // mean 2, variance 1, unbiased variance 2
        CHECK(list(norm(x, Mode::train)) == Floats{-0.5, 0.5});
        CHECK(list(parameters.states()[0].running) == Floats{1, 1.5});
        CHECK(list(norm(x, Mode::evaluate))[1] == doctest::Approx(2 / std::sqrt(4.5)).epsilon(1e-5));
    }

    TEST_CASE("layers: an activation with exponentials follows the batch norm as an op of its own") {
        Parameters parameters;
        const Norm plain(parameters, "plain", {.channels = 2, .activation = Activation::none}),
            silu_norm(parameters, "silu", {.channels = 2, .activation = Activation::silu});
        parameters.allocate(0, Init::he);
        const Tensor x = floats({1, 1, 3, 2}, -1, 2, 0.5, 3, 4, -2);
        for (const Mode mode : {Mode::train, Mode::evaluate})
            CHECK(list(silu_norm(x, mode)) == list(silu(plain(x, mode))));
    }

    TEST_CASE("layers: dirac filters copy the channels of the input") {
        Parameters parameters;
        const Convolution more(parameters, "more", {5, 3, 2, {.pad = 1}, false}),
            fewer(parameters, "fewer", {2, 3, 4, {.pad = 1}, false});
        const Dense fc(parameters, "fc", 3, 2, false);
        parameters.allocate(0, Init::dirac);
        CHECK(parameters.entries().size() == 3);
        Tensor x = Tensor::empty({1, 4, 4, 2});
        for (int64_t i = 0; i < x.numel(); ++i) x.data<float>()[i] = float(i);
        const Tensor y = more(x);
        for (int64_t pixel = 0; pixel < 16; ++pixel)
            for (int64_t c = 0; c < 2; ++c) // a tolerance for algorithms that round
                CHECK(y.data<float>()[5 * pixel + c] == doctest::Approx(x.data<float>()[2 * pixel + c]).epsilon(1e-4));
        CHECK(y.data<float>()[2] != 0); // a random filter
        const std::span<const float> w = parameters.entry("fewer.weight").value.span<float>();
        CHECK(std::count(w.begin(), w.end(), 0.0f) == 2 * 35);
        CHECK(w[16] == 1);
        CHECK(w[36 + 17] == 1);
        CHECK(fc(Tensor::constant({1, 2}, 0)).span<float>()[0] == 0);
    }

    TEST_CASE("layers: a dense layer names the number of values that it expects") {
        Parameters parameters;
        const Dense fc(parameters, "fc", 4, 30);
        parameters.allocate(0, Init::he);
        CHECK(error_of([&] {
                  fc(Tensor::zeros({50, 4, 8}));
              }) == "dense: expected 30 values per sample, got [50 4 8] (layer fc)");
    }
}
