// Tests the CIFAR-10 network: parameters, modes, the memory of a step, and training.
#include "core/accelerate.h"
#include "core/context.h"
#include "core/rng.h"
#include "core/tape.h"
#include "models/nets/cifar_net.h"
#include "tests/op_check.h"
#include "tests/temp_dir.h"

#include <cmath>
#include <doctest/doctest.h>

namespace rg {
namespace {

/// Images of a pattern per label with noise. Every seventh label is wrong, so the pattern alone cannot fit them all.
struct Batch {
    Tensor images, labels;

    explicit Batch(int64_t n, uint64_t seed = 1)
        : images(Tensor::empty({n, 32, 32, 3})), labels(Tensor::empty({n}, DType::i32)) {
        for (int64_t i = 0; i < n; ++i) {
            Rng random(seed, Purpose::synthetic, 0, uint64_t(i));
            const auto label = int32_t(random.uniform_below(10));
            labels.data<int32_t>()[i] = i % 7 == 0 ? int32_t(random.uniform_below(10)) : label;
            for (int64_t j = 0; j < 3072; ++j)
                images.data<float>()[i * 3072 + j] = random.normal() + float(j / 96 % 10 == label);
        }
    }
};

double train_step(CifarNet& net, const Batch& batch, const Tensor& velocity, float lr) {
    Parameters& p = net.parameters;
    Tape tape;
    const Tensor loss = cross_entropy(net.forward(batch.images, Mode::train), batch.labels);
    tape.gradients(loss, p);
    if (DryRun::active()) return 0;
    sgdm_update(p.values(), velocity, p.gradients(), {.lr = lr});
    return double(loss.data<float>()[0]);
}

} // namespace

TEST_SUITE("models") {
    TEST_CASE("cifar_net: parameters have PyTorch's names, order and count") {
        CifarNet net({.width = 4, .depth = 2, .classes = 7});
        std::vector<std::string> names, want;
        for (const Parameters::Entry& e : net.parameters.entries()) names.push_back(e.name);
        for (const char* block : {"block1", "block2", "block3"})
            for (int i = 0; i < 2; ++i)
                for (const char* what : {"conv.weight", "conv.bias", "bn.weight", "bn.bias"})
                    want.push_back(cat(block, ".", i, ".", what));
        want.push_back("fc.weight");
        want.push_back("fc.bias");
        CHECK(names == want);
        std::vector<std::string> states, want_states;
        for (const Parameters::State& s : net.parameters.states()) states.push_back(s.name);
        for (const char* s : {"block1.0", "block1.1", "block2.0", "block2.1", "block3.0", "block3.1"})
            want_states.push_back(cat(s, ".bn"));
        CHECK(states == want_states);
        CHECK(net.parameters.entries()[0].shape == Shape{4, 3, 3, 3});
        CHECK(net.parameters.entries()[8].shape == Shape{8, 3, 3, 4});
        CHECK(net.parameters.entries()[24].shape == Shape{7, 16});
        // Count the filters, and a bias, scale and shift per channel.
        int64_t count = 0;
        for (const auto& [in, out] : {std::pair(3, 32), {32, 64}, {64, 128}})
            count += out * (9 * in + 3) + 3 * out * (9 * out + 3);
        CHECK(CifarNet({}).parameters.count() == count + 1290);
        CHECK(CifarNet({}).parameters.count() == 677610);
    }

    TEST_CASE("cifar_net: has the expected initial values") {
        CifarNet net({.width = 16, .depth = 1, .seed = 1}), same({.width = 16, .depth = 1, .seed = 1}),
            other({.width = 16, .depth = 1, .seed = 2});
        CHECK(same_bits(net.parameters.values(), same.parameters.values()));
        for (size_t i = 0; i < net.parameters.entries().size(); ++i) {
            const Parameters::Entry& e = net.parameters.entries()[i];
            CAPTURE(e.name);
            const bool random = e.name.ends_with("conv.weight") || e.name == "fc.weight";
            CHECK(same_bits(e.value, other.parameters.entries()[i].value) != random);
            double mean = 0, square = 0;
            for (float v : e.value.span<float>()) mean += v, square += double(v) * v;
            mean /= double(e.value.numel()), square /= double(e.value.numel());
            if (e.name.ends_with("bn.weight")) CHECK(mean == 1);
            if (e.name.ends_with("bias")) CHECK(square == 0);
            if (e.name.ends_with("conv.weight")) { // He: variance 2 / fan_in
                const double fan_in = double(e.shape.numel() / e.shape[0]);
                CHECK(std::sqrt(square * fan_in / 2) == doctest::Approx(1).epsilon(0.12));
            }
            // Every tensor starts at its own cache line, in the opposite order.
            CHECK(e.offset % 16 == 0);
            if (i) CHECK(net.parameters.entries()[i - 1].offset >= e.offset + e.shape.numel());
            CHECK(e.value.key() == net.parameters.values().slice(e.offset, e.shape).key());
            CHECK(e.gradient.key() == net.parameters.gradients().slice(e.offset, e.shape).key());
        }
        for (const Parameters::State& s : net.parameters.states())
            for (int64_t c = 0; c < s.channels; ++c) {
                CHECK(s.running.data<float>()[c] == 0);
                CHECK(s.running.data<float>()[s.channels + c] == 1);
            }
        for (Init init : {Init::glorot, Init::narrow_normal}) {
            CifarNet wide({.width = 32, .depth = 1, .init = init});
            const Parameters::Entry& e = wide.parameters.entries()[4]; // 64 3 3 32
            double square = 0;
            for (float v : e.value.span<float>()) square += double(v) * v / double(e.value.numel());
            const double variance = init == Init::glorot ? 2.0 / (9 * 32 + 9 * 64) : 1e-4;
            CHECK(square == doctest::Approx(variance).epsilon(0.05));
        }
    }

    TEST_CASE("parameters: name wrong use") {
        Parameters p;
        p.add("w", {2, 3}, Parameters::Entry::Start::random);
        CHECK_ERROR("got w twice", p.add("w", {1}, Parameters::Entry::Start::zeros));
        p.allocate(1, Init::he);
        CHECK_ERROR("got b after it", p.add("b", {1}, Parameters::Entry::Start::zeros));
        CHECK_ERROR("expected one call of allocate()", p.allocate(1, Init::he));
        CHECK_ERROR("of at least 1, got 0, 4, 10 and 3", CifarNet({.width = 0}));
    }

    TEST_CASE("cifar_net: has results of the expected shapes, and rejects wrong inputs") {
        CifarNet net({.width = 2, .depth = 1, .classes = 7});
        for (int64_t n : {1, 5})
            for (Mode mode : {Mode::train, Mode::evaluate})
                CHECK(net.forward(Batch(n).images, mode).shape() == Shape{n, 7});
        for (const Shape& x : {Shape{1, 28, 28, 1}, {1, 3, 8, 3}, {1, 8, 3, 3}, {28, 28, 3}})
            CHECK(error_of([&] { net.forward(Tensor::zeros(x), Mode::train); }) ==
                  cat("cifar_net: expected images [n h w 3] with h and w of at least 4, got ", x.str(),
                      x.rank() == 4 && x[3] == 3 ? "; give a larger --size" : ""));
    }

    TEST_CASE("cifar_net: takes images of any size and any number of channels") {
        for (const Shape& x : {Shape{2, 4, 4, 3}, {3, 29, 37, 1}, {2, 45, 6, 4}}) {
            CAPTURE(x.str());
            const CifarNet net({.width = 3, .depth = 1, .classes = 5, .channels = x[3]});
            const Tensor images = Tensor::empty(x);
            Rng random(1, Purpose::synthetic, 0, 0);
            for (float& value : images.span<float>()) value = random.normal();
            CHECK(net.forward(images, Mode::train).shape() == Shape{x[0], 5});
            // A plan pools within the convolution, and leaves out the same rest of the image.
            Accelerated predict([&](auto in, bool) { return std::vector{net.forward(in[0], Mode::evaluate)}; });
            const Tensor expected = net.forward(images, Mode::evaluate);
            for (int repeat = 0; repeat < 3; ++repeat) CHECK(differs(predict({images})[0], expected, kSummed) == "");
        }
    }

    TEST_CASE("cifar_net: evaluation uses the running statistics and changes nothing") {
        CifarNet net({.width = 3, .depth = 1, .seed = 5});
        const Batch batch(6);
        const Tensor fresh = net.forward(batch.images, Mode::evaluate), start = net.parameters.state().clone();
        const Tensor trained = net.forward(batch.images, Mode::train);
        CHECK_FALSE(same_bits(trained, fresh));
        CHECK_FALSE(same_bits(net.parameters.state(), start));
        CHECK_FALSE(same_bits(net.forward(batch.images, Mode::evaluate), fresh)); // the running statistics have changed
        // After many steps with one batch, the running statistics are those of the batch.
        for (int i = 0; i < 200; ++i) net.forward(batch.images, Mode::train);
        const Tensor state = net.parameters.state().clone(), settled = net.forward(batch.images, Mode::evaluate);
        CHECK(differs(settled, trained, {0.01, 0.05}) == ""); // apart from the unbiased variance
        CHECK(same_bits(net.parameters.state(), state));
        // Samples do not influence each other.
        const Tensor one = net.forward(batch.images.slice(2 * 3072, {1, 32, 32, 3}), Mode::evaluate);
        CHECK(differs(one, settled.slice(20, {1, 10}).clone(), kSummed) == "");
    }

    TEST_CASE("cifar_net: a dry run counts exactly the memory of a step, and a step frees all of it") {
        for (const CifarNet::Options& options :
             {CifarNet::Options{.width = 4, .depth = 2}, CifarNet::Options{.width = 16, .depth = 1}}) {
            CifarNet net(options);
            const Batch batch(9);
            const Tensor velocity = Tensor::zeros(net.parameters.values().shape());
            const auto step = [&] {
                const int64_t before = live_bytes();
                reset_peak_bytes();
                train_step(net, batch, velocity, 0.1f);
                CHECK(live_bytes() == before);
                return peak_bytes() - before;
            };
            const Tensor values = net.parameters.values().clone();
            int64_t dry;
            {
                const DryRun scope;
                dry = step();
            }
            CHECK(same_bits(values, net.parameters.values()));
            CHECK(step() == dry);
            CHECK(step() == dry);
            CHECK(dry > 9 * 32 * 32 * options.width * 4);
        }
    }

    TEST_CASE("cifar_net: a step on the CPU equals a step of the reference") {
        const Batch batch(4);
        Tensor values[2], states[2], gradients[2];
        for (Backend backend : {Backend::reference, Backend::cpu}) {
            const InContext on{{.backend = backend}};
            CifarNet net({.width = 4, .depth = 1, .seed = 2});
            train_step(net, batch, Tensor::zeros(net.parameters.values().shape()), 0.1f);
            values[size_t(backend)] = net.parameters.values();
            states[size_t(backend)] = net.parameters.state();
            gradients[size_t(backend)] = net.parameters.gradients();
        }
        CHECK(differs(values[1], values[0], {5e-4, 5e-3}) == "");
        CHECK(differs(states[1], states[0], {1e-5, 1e-4}) == "");
        CHECK(differs(gradients[1], gradients[0], kGradients) == "");
    }

    TEST_CASE("cifar_net: the loss in bf16 is within a hundredth of f32, and training reduces it") {
        const Batch batch(32);
        CifarNet wide({.width = 8, .depth = 2, .seed = 4}), narrow({.width = 8, .depth = 2, .seed = 4});
        Batch rounded = batch;
        rounded.images = cast(batch.images, DType::bf16);
        const Tensor velocities[] = {Tensor::zeros(wide.parameters.values().shape()),
                                     Tensor::zeros(wide.parameters.values().shape())};
        double first = 0, loss = 0;
        for (int step = 0; step < 30; ++step) {
            const double exact = train_step(wide, batch, velocities[0], 0.05f);
            loss = train_step(narrow, rounded, velocities[1], 0.05f);
            if (step == 0) {
                CHECK(loss == doctest::Approx(exact).epsilon(0.01));
                first = loss;
            }
            if (step == 10) CHECK(loss == doctest::Approx(exact).epsilon(0.1));
        }
        CHECK(loss < 0.5 * first);
    }

    TEST_CASE("layers: errors name the layer") {
        Parameters parameters;
        const ConvNorm layer(parameters, "block2.0", {.out = 8, .kernel = 3, .in = 3, .conv = {.pad = 1}});
        parameters.allocate(0, Init::he);
        CHECK_THROWS_WITH_AS(layer(Tensor::zeros({1, 8, 8, 4}), Mode::train),
                             "conv2d: w has c=3, x has c=4 (layer block2.0)", Error);
        CHECK(LayerScope::error_suffix() == ""); // the scope ends with the layer, also after an error
    }

    TEST_CASE("cifar_net: a small network learns 64 images by heart, and repeats bit for bit") {
        const Batch batch(64);
        Tensor first;
        for (int run = 0; run < 2; ++run) {
            CifarNet net({.width = 8, .depth = 1, .seed = 3});
            const Tensor velocity = Tensor::zeros(net.parameters.values().shape());
            double loss = 0;
            for (int step = 0; step < (run ? 3 : 70); ++step) {
                loss = train_step(net, batch, velocity, 0.2f);
                if (step == 0) CHECK(loss > 1.5);
                if (step == 2 && run == 0) first = net.parameters.values().clone();
            }
            if (run == 0)
                CHECK(loss < 0.05);
            else
                CHECK(same_bits(net.parameters.values(), first));
        }
    }
}

} // namespace rg
