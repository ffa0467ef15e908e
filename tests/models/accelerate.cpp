// accelerate with whole networks: a replayed training is the plain one; which ops fusing leaves out; the cache; the
// memory plan; no allocation in a steady step.
#include "core/accelerate.h"
#include "core/context.h"
#include "core/cpu/thread_pool.h"
#include "core/ops.h"
#include "core/rng.h"
#include "core/tape.h"
#include "models/nets/cifar_net.h"
#include "models/nets/digits_net.h"
#include "models/nets/state_dict.h"
#include "tests/allocations.h"
#include "tests/op_check.h"
#include "tests/parameter_lists.h"
#include "tests/sync_ranks.h"
#include "tests/temp_dir.h"

#include <cmath>
#include <doctest/doctest.h>
#include <set>

using namespace rg;

namespace {

Tensor random_images(int64_t n, uint64_t seed, DType type) {
    return cast(random_tensor({n, 32, 32, 3}, DType::f32, seed), type);
}

Tensor random_labels(int64_t n, uint64_t seed) {
    const Tensor labels = Tensor::empty({n}, DType::i32);
    Rng random(seed, Purpose::test, 1);
    for (int32_t& v : labels.span<int32_t>()) v = int32_t(random.uniform_below(10));
    return labels;
}

/// A network and its training step and prediction as an accelerated function.
struct Trainee {
    explicit Trainee(const CifarNet::Options& options, bool enabled = true)
        : net(options),
          velocity(Tensor::zeros(net.parameters.values().shape())),
          step([this](std::span<const Tensor> in, bool training) -> std::vector<Tensor> {
              ++host_calls;
              if (!training) return {net.forward(in[0], Mode::evaluate)};
              Tape tape;
              const Tensor scores = net.forward(in[0], Mode::train), loss = cross_entropy(scores, in[1], 0.1f);
              tape.gradients(loss, net.parameters);
              return {loss, scores};
          }) {
        step.enabled = enabled;
    }
    float train(int64_t n, uint64_t seed, DType type = DType::f32, float lr = 0.05f) {
        const float loss = step({random_images(n, seed, type), random_labels(n, seed)}, true)[0].data<float>()[0];
        sgdm_update(net.parameters.values(), velocity, net.parameters.gradients(), {.lr = lr});
        return loss;
    }
    CifarNet net;
    Tensor velocity;
    int host_calls = 0;
    Accelerated step;
};

/// Losses, scores and statistics within a few training steps of networks with batch norm. Perturbed four times as much
/// as perturb.h does, they change by 3e-5.
constexpr Tolerance kTrained{1e-4, 1e-3};

const CifarNet::Options kNetworks[] = {{.width = 5, .depth = 1}, {.width = 16, .depth = 2}};

/// Three training steps and a prediction of a digits network, replayed and plain: the same values. loss(net, in) and
/// scores(net, x). The learning rate is low enough for the loss to fall: a training that diverges amplifies rounding.
template <class Net, class Loss, class Scores>
void check_digits(Loss loss, Scores scores) {
    ThreadPool pool(2);
    const InContext two_threads{{.threads = &pool}};
    Net nets[] = {Net({}), Net({})};
    std::vector<Tensor> results[2];
    for (const bool replayed : {false, true}) {
        Net& net = nets[replayed];
        Accelerated step([&](std::span<const Tensor> in, bool training) -> std::vector<Tensor> {
            if (!training) return {scores(net, in[0])};
            Tape tape;
            const Tensor l = loss(net, in);
            tape.gradients(l, net.parameters);
            return {l};
        });
        step.enabled = replayed;
        const Tensor velocity = Tensor::zeros(net.parameters.values().shape());
        const Tensor x = Tensor::empty({7, 28, 28, 1}), angles = Tensor::empty({7, 1});
        for (uint64_t i = 0; i < 3; ++i) {
            Rng random(i, Purpose::test);
            for (float& v : x.span<float>()) v = random.normal();
            for (float& v : angles.span<float>()) v = random.normal();
            results[replayed].push_back(step({x, random_labels(7, i), angles}, true)[0].clone());
            sgdm_update(net.parameters.values(), velocity, net.parameters.gradients(), {.lr = 0.0005f});
        }
        results[replayed].push_back(net.parameters.gradients()); // number 3
        results[replayed].push_back(net.parameters.state());
        results[replayed].push_back(step({x})[0].clone());
    }
    for (size_t i = 0; i < results[0].size(); ++i) {
        CAPTURE(i);
        CHECK(differs(results[1][i], results[0][i], i == 3 ? kGradients : kTrained) == "");
    }
}

Tensor random(const Shape& shape, uint64_t seed) { return random_tensor(shape, DType::f32, seed); }

/// A network whose convolutions use all engines, and are large enough for threads to share one image.
struct Engines {
    Engines() {
        const auto add = [&](const char* name, int64_t out, int64_t kernel, int64_t in, const Conv& conv) {
            layers.emplace_back(parameters, name, ConvNorm::Spec{out, kernel, in, conv});
        };
        add("few channels", 32, 3, 3, {.pad = 1});
        add("many tiles", 32, 3, 32, {.pad = 1}); // then max pooling
        add("strided", 64, 5, 32, {.stride = 2, .pad = 2});
        add("depthwise", 64, 3, 64, {.pad = 1, .groups = 64});
        add("grouped", 64, 3, 64, {.pad = 1, .groups = 2});
        add("many filters", 128, 3, 64, {.pad = 1});
        add("pixel by pixel", 100, 1, 128, {});
        parameters.allocate(1, Init::he);
        // Means of 0.1 and variances of 0.8. Greater means would leave zeros alone after some layers with ReLU.
        for (float& v : parameters.state().span<float>()) v = 0.1f + 0.7f * v;
    }
    Tensor forward(const Tensor& x) const {
        Tensor y = x;
        for (size_t i = 0; i < layers.size(); ++i) {
            y = layers[i](y, Mode::evaluate);
            if (i == 1) y = max_pool2d(y, {.window = 2, .stride = 2});
        }
        return y;
    }
    Accelerated accelerated(DType type) {
        return Accelerated([this, type](auto in, bool) -> std::vector<Tensor> {
            return {cast(forward(cast(in[0], type)), DType::f32)};
        });
    }
    Parameters parameters;
    std::vector<ConvNorm> layers;
};

/// Returns true if the step has this input, which may be an optional one that fusing gave it.
bool has(const Step& step, size_t input) { return step.in[input].defined(); }

} // namespace

TEST_SUITE("models") {
    TEST_CASE("accelerate: replayed digits networks are the plain ones") {
        check_digits<DigitsNet>(
            [](const DigitsNet& net, auto in) { return cross_entropy(net.forward(in[0], Mode::train), in[1]); },
            [](const DigitsNet& net, const Tensor& x) { return net.forward(x, Mode::evaluate); });
        check_digits<DigitsAnglesNet>(
            [](const DigitsAnglesNet& net, auto in) {
                const std::vector<Tensor> out = net.outputs(in[0], Mode::train);
                return add(cross_entropy(out[0], in[1]), mse_loss(out[1], in[2]));
            },
            [](const DigitsAnglesNet& net, const Tensor& x) { return net.forward(x, Mode::evaluate); });
    }

    TEST_CASE("accelerate: threads that share an image compute the bits of one thread") {
        Engines net;
        ThreadPool two(2), three(3), five(5);
        for (const DType type : {DType::f32, DType::bf16})
            for (const int64_t images : {1, 2, 3, 8}) {
                CAPTURE(std::string(name_of(type)));
                CAPTURE(images);
                const Tensor x = random_images(images, 1, DType::f32);
                const Tensor alone = net.accelerated(type)({x})[0].clone();
                // The roundings of 7 layers in bf16 give errors of 0.007 (rms) and 0.043 (largest).
                CHECK(differs(alone, net.forward(x),
                              type == DType::f32 ? Tolerance{1e-4, 1e-4} : Tolerance{0.03, 0.2}) == "");
                for (ThreadPool* pool : {&two, &three, &five}) {
                    const InContext context{{.threads = pool}};
                    CAPTURE(pool->size());
                    CHECK(same_bits(net.accelerated(type)({x})[0], alone));
                }
            }
    }

    TEST_CASE("accelerate: what is prepared from parameters is kept until they change") {
        for (const DType type : {DType::f32, DType::bf16}) {
            CAPTURE(std::string(name_of(type)));
            Engines net;
            Accelerated kept = net.accelerated(type);
            kept.keep_prepared = true;
            const Tensor x = random_images(2, 1, DType::f32), &values = net.parameters.values();
            const auto check_current = [&] {
                for (int i = 0; i < 2; ++i) CHECK(same_bits(kept({x})[0], net.accelerated(type)({x})[0]));
            };
            check_current();
            kept({random_images(3, 2, DType::f32)}); // another plan
            check_current();
            const Tensor original = kept({x})[0].clone();
            SUBCASE("by an op") {
                const Tensor gradient = random(values.shape(), 3);
                sgdm_update(values, Tensor::zeros(values.shape()), gradient, {.lr = 0.01f});
            }
            SUBCASE("by a copy to one parameter") {
                const Tensor w = value_list(net.parameters)[4]; // filters
                w.copy_from(random(w.shape(), 4));
            }
            SUBCASE("by fill()") { value_list(net.parameters)[2].fill(0.5); } // the scale of a batch norm
            SUBCASE("by span()") { value_list(net.parameters)[4].span<float>()[7] += 1; }
            SUBCASE("by other statistics") { net.parameters.state().fill(0.75); }
            SUBCASE("by a checkpoint or model file") {
                Engines other;
                for (float& v : other.parameters.values().span<float>()) v *= 0.9f;
                TensorFile file;
                file.tensors = state_dict(other.parameters);
                load_state_dict(net.parameters, file);
            }
            check_current();
            CHECK_FALSE(same_bits(kept({x})[0], original)); // otherwise, the case would accept old filters
            // The plan does keep something: it does not see a change through a pointer before clear_cache().
            const Tensor before = kept({x})[0].clone(), w = value_list(net.parameters)[0];
            for (int64_t i = 0; i < w.numel(); ++i) w.data<float>()[i] *= 2;
            CHECK(same_bits(kept({x})[0], before));
            kept.clear_cache();
            check_current();
            CHECK_FALSE(same_bits(kept({x})[0], before));
        }
    }

    TEST_CASE("accelerate: a replayed training is the plain one") {
        ThreadPool pool(2);
        for (bool strict : {false, true})
            for (const CifarNet::Options& options : kNetworks) {
                CAPTURE(options.width);
                const InContext on{{.threads = &pool, .strict_fp32 = strict}};
                Trainee plain(options, false), fast(options);
                for (uint64_t i = 0; i < 3; ++i) {
                    const float a = plain.train(6, 3 + i), b = fast.train(6, 3 + i);
                    CHECK(b == doctest::Approx(a).epsilon(1e-5));
                    CHECK(differs(fast.net.parameters.gradients(), plain.net.parameters.gradients(), kGradients) == "");
                    CHECK(differs(fast.net.parameters.state(), plain.net.parameters.state(), kTrained) == "");
                    // The next step begins with equal parameters, so that differences do not grow.
                    fast.net.parameters.values().copy_from(plain.net.parameters.values());
                    fast.net.parameters.state().copy_from(plain.net.parameters.state());
                }
                const Tensor x = random_images(4, 9, DType::f32);
                CHECK(differs(fast.step({x})[0], plain.step({x})[0], kTrained) == "");
                CHECK(fast.host_calls == 2); // the two traces
            }
    }

    TEST_CASE("accelerate: a replayed step in bf16 is as close to f32 as the plain one") {
        ThreadPool pool(2);
        for (const CifarNet::Options& options : kNetworks) {
            CAPTURE(options.width);
            const InContext on{{.threads = &pool}};
            Trainee exact(options, false), plain(options, false), fast(options);
            const float loss = exact.train(6, 0);
            CHECK(plain.train(6, 0, DType::bf16) == doctest::Approx(loss).epsilon(2e-2));
            CHECK(fast.train(6, 0, DType::bf16) == doctest::Approx(loss).epsilon(2e-2));
            // Rounding to bf16 moves maxima within their windows, so two such gradients differ by a tenth. The replay
            // rounds fewer values, so its distance to f32 may not be larger, save for chance.
            const auto distance = [&](const Trainee& t) {
                double squares = 0;
                const auto a = t.net.parameters.gradients().span<float>(), b = exact.net.parameters.gradients().span<float>();
                for (size_t i = 0; i < a.size(); ++i) squares += std::pow(double(a[i]) - b[i], 2);
                return std::sqrt(squares);
            };
            CHECK(distance(fast) < 1.5 * distance(plain));
            CHECK(differs(fast.net.parameters.state(), exact.net.parameters.state(), {1e-2, 5e-2}) == "");
            const Tensor x = random_images(4, 9, DType::bf16);
            CHECK(differs(fast.step({x})[0], plain.step({x})[0], {5e-2, 0.2}) == "");
        }
    }

    TEST_CASE("accelerate: what a network's plan leaves out") {
        Trainee trainee({.width = 8, .depth = 2});
        const Tensor x = random_images(2, 1, DType::f32), labels = random_labels(2, 1);
        std::multiset<Op> ops;
        const auto fused = [&](Op op, size_t input) { // the steps of this op with this input
            const std::vector<Step>& all = trainee.step.plan({x, labels}, true).steps();
            return std::count_if(all.begin(), all.end(), [&](const Step& s) { return s.op == op && has(s, input); });
        };
        for (const Step& s : trainee.step.plan({x, labels}, true).steps()) ops.insert(s.op);
        CHECK(fused(op::conv2d_grad, Conv2dGradOp::y_stats) == 6);
        CHECK(fused(op::conv2d, Conv2dOp::x_stats) == 3); // each second convolution of a block
        CHECK(fused(op::max_pool2d, Pool2dOp::x_stats) == 2);
        CHECK(fused(op::avg_pool2d, Pool2dOp::x_stats) == 1);
        CHECK(fused(op::max_pool2d_grad, Pool2dGradOp::x_stats) == 2);
        CHECK(fused(op::avg_pool2d_grad, Pool2dGradOp::x_stats) == 1);
        CHECK(fused(op::cross_entropy, CrossEntropyOp::dloss) == 1);
        for (const Op op : {op::batch_norm, op::batch_norm_grad, op::batch_norm_grad_sums, op::cross_entropy_grad})
            CHECK(ops.count(op) == 0);
        const Plan& plan = trainee.step.plan({x, labels}, true);
        CHECK(plan.bytes() < plan.bytes_unshared());
        CHECK(contains(plan.table(), "conv2d_grad"));
        CHECK(contains(plan.table(), "MiB planned"));
        ops.clear();
        for (const Step& s : trainee.step.plan({x}, false).steps()) {
            ops.insert(s.op);
            if (s.op == op::conv2d) CHECK(has(s, Conv2dOp::y_stats) == (s.out[0].shape()[1] > 1));
        }
        CHECK(ops.count(op::conv2d) == 7);
        CHECK(ops.count(op::batch_norm) == 0);
        CHECK(trainee.step.hit_rate() == 0); // making plans counts as nothing
    }

    TEST_CASE("accelerate: sums of branches are made with what is around them") {
        DigitsAnglesNet net({});
        Accelerated step([&](std::span<const Tensor> in, bool training) -> std::vector<Tensor> {
            if (!training) return {net.forward(in[0], Mode::evaluate)};
            Tape tape;
            const std::vector<Tensor> out = net.outputs(in[0], Mode::train);
            const Tensor loss = add(cross_entropy(out[0], in[1]), mse_loss(out[1], in[2]));
            tape.gradients(loss, net.parameters);
            return {loss};
        });
        const Tensor x = random({4, 28, 28, 1}, 1), angles = random({4, 1}, 2), labels = random_labels(4, 3);
        const auto steps = [&](bool training, Op op, size_t input = 0) {
            const auto& all = step.plan({x, labels, angles}, training).steps();
            return std::count_if(all.begin(), all.end(), [&](const Step& s) { return s.op == op && has(s, input); });
        };
        for (const bool training : {false, true}) {
            CAPTURE(training);
            for (const Op op : {op::batch_norm, op::activation, op::batch_norm_grad_sums})
                CHECK(steps(training, op) == 0);
        }
        CHECK(steps(false, op::add) == 1);
        CHECK(steps(true, op::add, AddOp::a_stats) == 1);
        CHECK(steps(true, op::add) == 2); // the block's, and that of the losses
        CHECK(steps(true, op::activation_grad) == 1);
        CHECK(steps(true, op::activation_grad, ActivationGradOp::a) == 1);
    }

    TEST_CASE("accelerate: values that live at the same time do not share memory") {
        Trainee trainee({.width = 4, .depth = 2});
        const Plan& plan = trainee.step.plan({random_images(3, 1, DType::f32), random_labels(3, 1)}, true);
        struct Use {
            size_t first, last;
            int64_t begin, end;
        };
        std::vector<Use> uses; // one per value: from the step that writes it to the last that reads it
        const auto& steps = plan.steps();
        for (size_t s = 0; s < steps.size(); ++s)
            for (const Tensor& t : steps[s].outputs()) {
                if (!t.defined() || t.bytes() == 0) continue;
                const bool inner = t.key().id == steps[0].out[0].key().id; // the arena
                if (inner) uses.push_back({s, s, t.key().offset, t.key().offset + t.bytes()});
            }
        for (Use& use : uses)
            for (size_t s = use.first + 1; s < steps.size(); ++s) {
                bool overwritten = false;
                for (const Tensor& t : steps[s].inputs())
                    if (t.defined() && t.key().id == steps[0].out[0].key().id && t.key().offset == use.begin)
                        use.last = s;
                for (const Tensor& t : steps[s].outputs())
                    overwritten |= t.defined() && t.key().id == steps[0].out[0].key().id && t.key().offset == use.begin;
                if (overwritten) break;
            }
        CHECK(uses.size() > 20);
        for (size_t i = 0; i < uses.size(); ++i)
            for (size_t j = i + 1; j < uses.size(); ++j) {
                const bool together = uses[i].first <= uses[j].last && uses[j].first <= uses[i].last;
                const bool overlap = uses[i].begin < uses[j].end && uses[j].begin < uses[i].end;
                CHECK_FALSE((together && overlap));
            }
    }

    TEST_CASE("accelerate: the cache") {
        Trainee trainee({.width = 2, .depth = 1});
        Accelerated& step = trainee.step;
        CHECK(step.occupancy() == 0);
        CHECK(step.hit_rate() == 0);
        for (uint64_t i = 0; i < 4; ++i) trainee.train(3, i, DType::f32, 0.01f * float(i)); // a rate is no signature
        CHECK(step.hit_rate() == 0.75);
        CHECK(step.occupancy() == 1.0 / 50);
        trainee.train(4, 1); // another batch size
        CHECK(step.occupancy() == 2.0 / 50);
        trainee.train(3, 1, DType::bf16);        // another type
        step({random_images(3, 1, DType::f32)}); // not training
        {
            const InContext strict{{.strict_fp32 = true}};
            trainee.train(3, 1);
        }
        {
            const InContext reference{{.backend = Backend::reference}};
            trainee.train(3, 1);
        }
        CHECK(step.occupancy() == 6.0 / 50);
        CHECK(step.hit_rate() == doctest::Approx(3.0 / 9));
        const int traces = trainee.host_calls;
        trainee.train(3, 5);
        CHECK(trainee.host_calls == traces);
        // The least recently used goes first: here the one for 4 images.
        step.cache_size = 2;
        trainee.train(7, 1);
        CHECK(step.occupancy() == 1);
        trainee.train(3, 1);
        CHECK(trainee.host_calls == traces + 1);
        trainee.train(4, 1);
        CHECK(trainee.host_calls == traces + 2);
        step.clear_cache();
        CHECK(step.occupancy() == 0);
        CHECK(step.hit_rate() == 0);
        step.enabled = false;
        trainee.train(3, 1);
        CHECK(step.occupancy() == 0);
        step.enabled = true;
        step.cache_size = 0;
        CHECK_ERROR("cache_size", trainee.train(3, 1));
    }

    TEST_CASE("accelerate: the check finds a function that is none") {
        Trainee trainee({.width = 3, .depth = 1});
        trainee.step.check = true;
        Trainee plain({.width = 3, .depth = 1}, false);
        for (uint64_t i = 0; i < 3; ++i) CHECK(trainee.train(5, i) == doctest::Approx(plain.train(5, i)));
        CHECK(differs(trainee.net.parameters.state(), plain.net.parameters.state(), kTrained) == ""); // updated once
        int calls = 0;
        Accelerated drifting([&](std::span<const Tensor> in, bool) -> std::vector<Tensor> {
            return {add(in[0], Tensor::constant({1}, ++calls))};
        });
        drifting.check = true;
        CHECK_ERROR("expected the plain function's values", drifting({Tensor::zeros({1})}));
    }

    TEST_CASE("accelerate: a steady step allocates nothing") {
        ThreadPool pool(2);
        for (DType type : {DType::f32, DType::bf16})
            for (bool training : {true, false}) {
                const InContext on{{.threads = &pool}};
                Trainee trainee({.width = 9, .depth = 2});
                const Tensor x = random_images(20, 1, type), labels = random_labels(20, 1);
                const auto step = [&] {
                    if (training)
                        trainee.step({x, labels}, true);
                    else
                        trainee.step({x});
                    sgdm_update(trainee.net.parameters.values(), trainee.velocity, trainee.net.parameters.gradients(),
                                {});
                };
                for (int i = 0; i < 20; ++i) step(); // each worker has been through each kernel
                const long before = allocations();
                const int64_t live = live_bytes();
                reset_peak_bytes();
                for (int i = 0; i < 5; ++i) step();
                CHECK(allocations() == before);
                CHECK(peak_bytes() == live);
            }
    }
}
