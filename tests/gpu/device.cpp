// Tensors, plans and training on a device: values stay there until they are fetched, and are what the CPU computes.
#include "core/accelerate.h"
#include "core/context.h"
#include "core/ops.h"
#include "core/profile.h"
#include "core/rng.h"
#include "core/safetensors.h"
#include "core/tape.h"
#include "data/loader.h"
#include "gpu/block_cache.h"
#include "gpu/pinned_downloads.h"
#include "gpu/scratch_stack.h"
#include "models/nets/cifar_net.h"
#include "models/nets/state_dict.h"
#include "models/run/gradient_sum.h"
#include "tests/gpu/executor_device.h"
#include "tests/image_sets.h"
#include "tests/op_check.h"
#include "tests/temp_dir.h"
#include "tests/thread_link.h"
#include "tests/training_step.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <doctest/doctest.h>

using namespace rg;

namespace {

struct Trained {
    std::vector<double> losses;
    Tensor parameters, state, scores; // in the host's memory
};

/// Some steps of a tiny network on a few images, of which this rank takes its share, if it is one of the first
/// `workers`; then a prediction.
Trained train(par::Group& group, Device* device, DType type, bool sync_bn, int workers, bool accelerate = true) {
    GroupSync sync(group);
    const Context on{.device = device, .sync = sync_bn && group.size() > 1 ? &sync : nullptr};
    const ContextScope scope(on);
    CifarNet net({.width = 4, .depth = 1});
    Parameters& parameters = net.parameters;
    const Tensor velocity = Tensor::zeros(parameters.values().shape());
    Accelerated network = training_step(net, type);
    network.enabled = accelerate;
    GradientSum gradient_sum(group, parameters, par::Algorithm::automatic, false);
    constexpr int64_t kImages = 4;
    const data::Range mine = data::part_range(kImages, workers, std::min(group.rank(), workers));
    Trained result;
    Tensor x = Tensor::empty_on_host({mine.size(), 32, 32, 3});
    Tensor labels = Tensor::empty_on_host({mine.size()}, DType::i32);
    for (uint64_t step = 0; step < 3; ++step) {
        for (int64_t i = 0; i < mine.size(); ++i) {
            Rng random(step, Purpose::test, 0, uint64_t(mine.begin + i));
            for (float& v : x.span<float>().subspan(size_t(i) * 3072, 3072)) v = random.normal();
            labels.data<int32_t>()[i] = int32_t(random.uniform_below(10));
        }
        sync.fraction = double(mine.size()) / double(kImages);
        sync.samples = kImages;
        StepSums step_sums(group, parameters);
        gradient_sum.begin(sync.fraction);
        const double local_loss = double(network({x, labels}, true)[0].to_host().data<float>()[0]);
        gradient_sum.finish();
        sgdm_update(parameters.values(), velocity, parameters.gradients(), {.lr = 0.05f, .momentum = 0.9f});
        std::array loss{sync.fraction > 0 ? sync.fraction * local_loss : 0.0};
        step_sums.add(sync.fraction, loss);
        step_sums.finish(loss);
        result.losses.push_back(loss[0]);
    }
    result.parameters = parameters.values().to_host().clone();
    result.state = parameters.state().to_host().clone();
    result.scores = network({x})[0].to_host().clone();
    // A checkpoint of it is read on the host, and restored onto the device.
    const std::vector<NamedTensor> saved = state_dict(parameters);
    parameters.values().fill(0);
    load_state_dict(parameters, decode_tensors(encode_tensors(saved, {}), "memory"));
    CHECK(same_bits(parameters.values().to_host(), result.parameters));
    return result;
}

Trained train_alone(Device* device, DType type, bool accelerate = true) {
    Trained result;
    par::run_groups(1, [&](par::Group& group) { result = train(group, device, type, false, 1, accelerate); });
    return result;
}

} // namespace

TEST_SUITE("simt") {
    TEST_CASE("device: views of resident and of copied images are those that the loader makes") {
        data::ImageSet set = data::random_set(50, 9, 7, 3);
        const data::Augment shifts{.flip = true, .translate_x = 4, .translate_y = 6};
        const data::Augment turns{
            .flip_vertical = true, .rotate = 45, .scale = {0.5, 2}, .fill = data::Fill::reflect, .crop_area = {0.2, 1}};
        data::Augment changes = shifts, mixtures = turns;
        changes.jitter = mixtures.jitter = {0.5, 0.5, 0.5}, changes.erase = mixtures.erase = 0.5;
        mixtures.mixup = mixtures.cutmix = 1;
        ExecutorDevice device;
        std::vector<Tensor> on_cpu; // all results of the CPU, in order
        size_t compared = 0;
        for (Device* const there : {static_cast<Device*>(nullptr), static_cast<Device*>(&device)})
            for (data::Augment augmentation : {shifts, turns, changes, mixtures})
                for (const bool crop : {false, true}) {
                    set.window = crop ? data::ImageSize{8, 6} : data::ImageSize{};
                    augmentation.crop = crop && augmentation.crop_area == data::Interval{};
                    const InContext on{{.device = there}};
                    data::LoaderOptions options{.batch_size = 8, .keep_partial = true, .seed = 3,
                                                .augment = augmentation, .normalise = data::kCifar10, .first_part = 1,
                                                .parts = 2};
                    data::Loader made(set, options);
                    options.views = true;
                    data::Loader chosen(set, options);
                    options.upload = there;
                    data::Loader copied(set, options);
                    const Tensor images = data::resident(set), statistics = chosen.augmenter().statistics();
                    const bool reflect = chosen.augmenter().reflect();
                    const int64_t h = set.input_size().height, w = set.input_size().width;
                    // Replayed, as a training does it.
                    Accelerated view([&](std::span<const Tensor> in, bool) -> std::vector<Tensor> {
                        return {augment(images, in[0], in[1], statistics, {h, w, reflect}),
                                augment(images, in[0], in[1], statistics, {h, w, reflect, DType::bf16})};
                    });
                    made.start(5), chosen.start(5), copied.start(5);
                    while (made.has_next()) {
                        const data::Batch batch = made.next(), choice = chosen.next(), copy = copied.next();
                        CHECK(same_bits(choice.labels, batch.labels));
                        CHECK_FALSE(choice.x.defined());
                        const auto views = view({choice.indices, choice.views});
                        if (there) {
                            const Tensor shown = augment(copy.images, copy.indices.to_device(), copy.views.to_device(),
                                                         statistics, {h, w, reflect});
                            CHECK(same_bits(shown.to_host(), views[0].to_host()));
                        }
                        CHECK(differs(views[0].to_host(), batch.x, kRounded) == "");
                        CHECK(differs(views[1].to_host(), batch.x, kNarrow) == "");
                        for (const Tensor& result : views)
                            if (there)
                                CHECK(same_bits(result.to_host(), on_cpu[compared++]));
                            else
                                on_cpu.push_back(result.clone());
                    }
                    CHECK_FALSE(chosen.has_next());
                }
    }

    TEST_CASE("device: resident images are those of the set, also of one that is copied in parts") {
        const data::ImageSet set = data::random_set(2'500, 90, 81, 1); // 17 MiB; a part has 16
        ExecutorDevice device;
        const InContext on{{.device = &device}};
        CHECK(std::ranges::equal(data::resident(set).to_host().span<uint8_t>(), data::pixels_of(set)));
    }

    TEST_CASE("device: an index outside of the set is seen, as a NaN") {
        ExecutorDevice device;
        const InContext on{{.device = &device}};
        const Tensor images = Tensor::zeros({2, 3, 3, 1}, DType::u8), statistics = Tensor::zeros({2, 1}),
                     views = Tensor::zeros({3, 6}, DType::i32), indices = Tensor::empty({3}, DType::i32);
        statistics.fill(1);
        indices.copy_from(integers({3}, 1, 2, -1));
        const Tensor y = augment(images, indices, views, statistics, {3, 3});
        CHECK(first_non_finite(y).to_host().data<int32_t>()[0] == 9);
        CHECK(std::isnan(y.to_host().data<float>()[26]));
        const Tensor whole = augment(images, indices, Tensor::zeros({3, 18}, DType::i32), statistics, {3, 3});
        CHECK(first_non_finite(whole).to_host().data<int32_t>()[0] == 9);
        const Tensor pairs = Tensor::empty({3, 2}, DType::i32); // the second image of the second pair does not exist
        pairs.copy_from(integers({3, 2}, 1, 0, 0, 2, 1, 1));
        const Tensor mixed = augment(images, pairs, Tensor::zeros({3, 36}, DType::i32), statistics, {3, 3}).to_host();
        for (int64_t i = 0; i < 27; ++i) CHECK(std::isnan(mixed.data<float>()[i]) == (i >= 9 && i < 18));
    }

    TEST_CASE("device: a label that is no class is refused before it gets there, in the CPU's words") {
        ExecutorDevice device;
        const Tensor scores = Tensor::empty_on_host({3, 4});
        const Tensor labels = integers({3}, 3, 1, 4), good = integers({3}, 3, 1, 2);
        scores.fill(1);
        for (Device* const there : {static_cast<Device*>(nullptr), static_cast<Device*>(&device)}) {
            const InContext on{{.device = there}};
            Accelerated loss(
                [&](std::span<const Tensor> in, bool) -> std::vector<Tensor> { return {cross_entropy(in[0], in[1])}; });
            for (int i = 0; i < 3; ++i) { // the first replay, the one that makes the graph, and that of the graph
                CHECK_THROWS_WITH_AS(loss({scores, labels}), "cross_entropy: label 4 of sample 2 lies outside [0, 4)",
                                     Error);
                const Tensor value = loss({scores, good})[0].to_host();
                CHECK(value.data<float>()[0] == doctest::Approx(std::log(4)));
            }
        }
    }

    TEST_CASE("device: a label in the device's memory that is no class gives NaN, as loss and as gradient") {
        ExecutorDevice device;
        const InContext on{{.device = &device}};
        const Tensor scores = Tensor::zeros({3, 4}), labels = Tensor::empty({3}, DType::i32);
        labels.copy_from(integers({3}, 3, 4, -1));
        Accelerated step([&](std::span<const Tensor> in, bool) -> std::vector<Tensor> {
            Tape tape;
            const Tensor loss = cross_entropy(in[0], labels), dx = Tensor::empty({3, 4});
            tape.gradients(loss, {{in[0]}}, {{dx}});
            return {loss, dx};
        });
        for (int i = 0; i < 3; ++i) { // the plain function, then two replays of the fused op
            const auto results = step({scores});
            CHECK(std::isnan(results[0].to_host().data<float>()[0]));
            const Tensor dx = results[1].to_host();
            for (int j = 0; j < 12; ++j) CHECK(std::isnan(dx.data<float>()[j]) == (j >= 4));
        }
    }

    TEST_CASE("device: the loss of no samples is 0, as on a CPU") {
        ExecutorDevice device;
        const InContext on{{.device = &device}};
        const Tensor loss = cross_entropy(Tensor::empty({0, 4}), Tensor::empty({0}, DType::i32));
        CHECK(loss.to_host().data<float>()[0] == 0);
    }

    TEST_CASE("device: values are out of the program's reach until they are fetched") {
        ExecutorDevice device;
        const Context on{.device = &device};
        const ContextScope scope(on);
        const Tensor a = Tensor::empty({3}), host = Tensor::empty_on_host({3});
        CHECK(a.device() == &device);
        CHECK(host.device() == nullptr);
        CHECK_ERROR("in the memory of the executor", a.data<float>());
        a.fill(2);
        host.fill(5);
        CHECK(a.to_host().data<float>()[2] == 2);
        CHECK(encode_tensors({{"a", a}}, {}) == encode_tensors({{"a", a.to_host()}}, {}));
        CHECK_ERROR("activation: expected tensors on the executor", relu(host));
        const Tensor sum = add(a, a), copy = sum.clone();
        CHECK(copy.device() == &device);
        CHECK(copy.to_host().data<float>()[0] == doctest::Approx(4));
        copy.copy_from(host);
        CHECK(copy.to_host().data<float>()[0] == 5);
        CHECK_ERROR("copy_from: expected f32 [3]", copy.copy_from(Tensor::empty_on_host({4})));
        CHECK(&host.to_host().data<float>()[0] == host.data<float>());

        device.waits = 0;
        std::array three{a, host, copy};
        to_host(three);
        CHECK(device.waits == 1);
        CHECK(three[0].data<float>()[1] == 2);
        CHECK(three[1].data<float>() == host.data<float>());
        CHECK(three[2].data<float>()[1] == 5);

        ExecutorDevice another;
        const InContext there{{.device = &another}};
        std::array two{a, Tensor::empty({3})};
        CHECK_ERROR("expected tensors on one device", to_host(two));
    }

    TEST_CASE("device: a copy on the host that a gradient would have to pass is an error") {
        ExecutorDevice device;
        const Context on{.device = &device}, off;
        const ContextScope scope(on);
        const Tensor there = Tensor::zeros({2}), gradient = Tensor::zeros({2});
        for (const bool series : {false, true})
            CHECK(contains(error_of([&] {
                               Tape tape;
                               std::array y{relu(there)};
                               series ? to_host(y) : (y[0] = y[0].to_host(), void());
                               const ContextScope host(off);
                               tape.gradients(mse_loss(y[0], Tensor::empty_on_host({2})), {{there}}, {{gradient}});
                           }),
                           series ? "comes from to_host()" : "comes from Tensor::to_host()"));
    }

    TEST_CASE("device: a profile has what the device says of time, and parts of what it does at most") {
        struct Slow final : ExecutorDevice {
            double time_of(const std::function<void()>& f) override { return f(), 0.5; }
        } device;
        Profile profile;
        const InContext on{{.device = &device, .profile = &profile}};
        const Tensor x = Tensor::zeros({1000}), y = add(x, x); // 12,000 bytes, 1000 operations
        CHECK(y.to_host().data<float>()[999] == 0);
        const std::string table = profile.table(0, {.flops = 8e3, .bytes = 48e3});
        CAPTURE(table);
        CHECK(table == Containing{"add                         1      500.000  100.0%", " 25.0 %     50.0 %\n"});
        CHECK_FALSE(contains(profile.table(), "most"));
    }

    TEST_CASE("device: tensors keep it, whoever has opened it") {
        static bool open;
        struct Counted final : ExecutorDevice {
            Counted() { open = true; }
            ~Counted() override { open = false; }
        };
        Tensor x;
        {
            const std::shared_ptr<Device> device = std::make_shared<Counted>();
            const InContext on{{.device = device.get()}};
            x = Tensor::zeros({3});
        }
        CHECK(open);
        CHECK(x.to_host().data<float>()[2] == 0);
        x = Tensor();
        CHECK_FALSE(open);
    }

    TEST_CASE("device: ops that have run find their scratch memory again") {
        static int made;
        made = 0;
        gpu::ScratchStack stack([](size_t bytes) { return ++made, std::malloc(bytes); }, std::free);
        constexpr size_t kMiB = size_t{1} << 20;
        const std::vector<size_t> ops[] = {{60 * kMiB, 60 * kMiB}, {70 * kMiB}, {100}};
        std::vector<void*> places[2];
        for (std::vector<void*>& run : places) {
            for (const auto& op : ops) {
                for (const size_t bytes : op) run.push_back(stack.take(bytes));
                for (size_t i = 0; i < op.size(); ++i) stack.give_back();
            }
            CHECK(made == 3);
        }
        CHECK(places[0] == places[1]);
    }

    TEST_CASE("device: downloads of a series that has failed are not made later") {
        std::array<char, 8> memory{};
        gpu::PinnedDownloads downloads(memory.data(), memory.size());
        const auto bring = [&](std::string& to, const char* from, bool more, bool wait_fails = false,
                               bool copy_fails = false) {
            downloads.download(
                to.data(), to.size(), more,
                [&](void* there) {
                    if (copy_fails) fail("no copy");
                    std::memcpy(there, from, to.size());
                },
                [&] {
                    if (wait_fails) fail("no wait");
                });
        };
        std::string a = "aaaa", b = "bbb", large = "llllll";
        bring(a, "1234", true);
        bring(large, "567890", true); // no room: at once
        CHECK(large == "567890");
        CHECK(a == "aaaa");
        bring(b, "xyz", false);
        CHECK(a == "1234");
        CHECK(b == "xyz");
        for (const bool copy_fails : {false, true}) {
            a = "aaaa", b = "bbb";
            bring(a, "1234", true);
            CHECK_THROWS_AS(bring(b, "567", false, true, copy_fails), Error);
            bring(b, "890", false);
            CHECK(a == "aaaa");
            CHECK(b == "890");
        }
        large = "llllll";
        bring(large, "123456", true); // there is room again
        CHECK(large == "llllll");
        bring(b, "789", false);
        CHECK(large == "123456");
    }

    TEST_CASE("device: memory that was given back is used again, and makes way where there is none left") {
        static size_t made, limit;
        made = 0, limit = 1000;
        struct Block {
            static void* make(size_t bytes) {
                if (made + bytes > limit) return nullptr;
                made += bytes;
                auto* const memory = static_cast<size_t*>(std::malloc(sizeof(size_t)));
                return *memory = bytes, memory;
            }
            static void drop(void* memory) { made -= *static_cast<size_t*>(memory), std::free(memory); }
        };
        {
            gpu::DeviceBlockCache blocks(Block::make, Block::drop);
            void* const a = blocks.take(300);
            void* const b = blocks.take(500);
            CHECK(blocks.bytes_taken() == 800);
            blocks.give_back(a);
            CHECK(blocks.take(300) == a);
            CHECK(made == 800);
            blocks.give_back(a);
            CHECK(blocks.take(501) == nullptr); // b is in use
            CHECK(made == 500);
            void* const c = blocks.take(400);
            CHECK(c != nullptr);
            blocks.give_back(b), blocks.give_back(c);
            void* const d = blocks.take(1000);
            CHECK(d != nullptr);
            CHECK(blocks.bytes_taken() == 1000);
            blocks.give_back(d);
        }
        CHECK(made == 0);
    }

    TEST_CASE("device: ranks that take no images have the same network, and change nothing") {
        for (const bool sync_bn : {false, true}) {
            CAPTURE(sync_bn);
            std::vector<Trained> two(2), four(4);
            for (std::vector<Trained>* all : {&two, &four})
                par::run_groups(int(all->size()), [&](par::Group& group) {
                    ExecutorDevice mine;
                    (*all)[size_t(group.rank())] = train(group, &mine, DType::f32, sync_bn, 2);
                });
            for (const Trained& t : four) {
                CHECK(t.losses == two[0].losses);
                CHECK(same_bits(t.parameters, two[0].parameters));
                CHECK(same_bits(t.state, two[0].state));
            }
            CHECK(same_bits(four[1].scores, two[1].scores));
        }
    }

    TEST_CASE("device: a training there is that of the CPU, op by op, replayed, and as a graph") {
        for (const DType type : {DType::f32, DType::bf16}) {
            CAPTURE(name_of(type));
            ExecutorDevice device;
            const Trained cpu = train_alone(nullptr, type), plain = train_alone(&device, type, false);
            CHECK(device.launches == 0);
            const Trained replayed = train_alone(&device, type);
            CHECK(device.launches == 2); // each step but the first
            const double loose = type == DType::f32 ? 1e-4 : 3e-2;
            for (size_t i = 0; i < cpu.losses.size(); ++i) {
                CHECK(plain.losses[i] == doctest::Approx(cpu.losses[i]).epsilon(loose));
                CHECK(replayed.losses[i] == doctest::Approx(cpu.losses[i]).epsilon(loose));
            }
            if (type == DType::bf16) continue; // rounding differs, and training spreads it
            // A rounding may change the sign of a value before a ReLU, and so a gradient by a thousandth.
            CHECK(differs(replayed.parameters, cpu.parameters, {5e-4, 5e-3}) == "");
            CHECK(differs(replayed.state, cpu.state, {5e-4, 5e-3}) == "");
            CHECK(differs(replayed.scores, cpu.scores, {2e-3, 2e-2}) == "");
        }
    }

    TEST_CASE("device: ranks that share batch statistics train as one") {
        ExecutorDevice device;
        const Trained one = train_alone(&device, DType::f32);
        for (const int ranks : {2, 3}) {
            std::vector<Trained> all(static_cast<size_t>(ranks));
            par::run_groups(ranks, [&](par::Group& group) {
                ExecutorDevice mine;
                all[size_t(group.rank())] = train(group, &mine, DType::f32, true, ranks);
            });
            for (const Trained& t : all) {
                CHECK(same_bits(t.parameters, all[0].parameters));
                for (size_t i = 0; i < one.losses.size(); ++i)
                    CHECK(t.losses[i] == doctest::Approx(one.losses[i]).epsilon(3e-4));
            }
        }
    }

    TEST_CASE("device: a plan whose arena has grown makes its graph anew") {
        ExecutorDevice device;
        const InContext on{{.device = &device}};
        Accelerated step([](std::span<const Tensor> in, bool) -> std::vector<Tensor> {
            return {sum(relu(add(in[0], in[0])))};
        });
        const auto launches = [&](int64_t n) {
            const int before = device.launches;
            const Tensor x = Tensor::empty_on_host({n});
            x.fill(1);
            CHECK(step({x})[0].to_host().data<float>()[0] == doctest::Approx(2 * double(n)));
            return device.launches - before;
        };
        CHECK(launches(8) + launches(8) == 1);
        CHECK(launches(99) == 0);
        CHECK(launches(8) == 0);
        CHECK(launches(8) == 1);
        CHECK(launches(8) == 1);
    }

    TEST_CASE("device: steps that cannot become a graph are launched one by one") {
        using Captures = ExecutorDevice::Captures;
        for (const Captures captures : {Captures::work, Captures::none, Captures::fail}) {
            CAPTURE(int(captures));
            ExecutorDevice device;
            device.captures = captures;
            const InContext on{{.device = &device}};
            Accelerated twice(
                [](std::span<const Tensor> in, bool) -> std::vector<Tensor> { return {add(in[0], in[0])}; });
            for (int i = 1; i <= 4; ++i) {
                const Tensor x = Tensor::empty_on_host({3});
                x.fill(i);
                CHECK(twice({x})[0].to_host().data<float>()[2] == doctest::Approx(2 * i));
            }
            CHECK(device.launches == (captures == Captures::work ? 3 : 0));
        }
    }
}
