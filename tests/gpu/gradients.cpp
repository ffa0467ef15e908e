// Gradients on a device, summed over the ranks: in pieces, which leave while backward goes on.
#include "core/accelerate.h"
#include "core/context.h"
#include "core/ops.h"
#include "core/rng.h"
#include "core/tape.h"
#include "models/nets/cifar_net.h"
#include "models/run/gradient_sum.h"
#include "tests/allocations.h"
#include "tests/gpu/executor_device.h"
#include "tests/gpu/other_process.h"
#include "tests/gpu/shared_memory_device.h"
#include "tests/op_check.h"
#include "tests/parameter_lists.h"
#include "tests/simt/executor.h"
#include "tests/temp_dir.h"
#include "tests/thread_link.h"

#include <array>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <doctest/doctest.h>
#include <optional>

using namespace rg;

namespace {

struct Sent {
    std::vector<Tensor> gradients;       // over all ranks, by step
    // Without the ops that weigh pieces: by step and piece, the number of ops before it left, and the number of a step.
    std::vector<std::vector<long>> left;
    long ops = 0;
    int launches = 0;                    // of graphs
};

/// Some steps whose gradients are in four pieces. Without `early`, nobody says when those may leave.
Sent send(par::Group& group, ExecutorDevice& device, bool early) {
    const InContext on{{.device = &device}};
    constexpr int64_t kValues = 100'000; // three quarters of a bucket: most have values of two parameters
    Parameters parameters;
    for (const char* const name : {"a", "b", "c", "d"})
        parameters.add(name, {1, kValues}, Parameters::Entry::Start::random);
    parameters.allocate(uint64_t(7), Init::narrow_normal);
    const Tensor velocity = Tensor::zeros(parameters.values().shape());
    const std::vector<Tensor> values = value_list(parameters), gradients = gradient_list(parameters);
    Accelerated network([&](std::span<const Tensor> in, bool) -> std::vector<Tensor> {
        Tape tape;
        Tensor h = in[0];
        for (const size_t layer : {0, 1, 1, 2, 3}) h = relu(add(h, values[layer])); // b's gradient is made in two steps
        const Tensor loss = mse_loss(h, in[1]);
        tape.gradients(loss, values, gradients);
        return {loss};
    });
    GradientSum sum(group, parameters, par::Algorithm::automatic, false);
    if (early) network.after_step = [&](const Plan& plan, size_t step) { return sum.after_step(plan, step); };
    CHECK(sum.is_direct() == (group.size() > 1 && device.shares));
    long before = 0;
    Sent sent;
    const auto ops_of_step = [&](size_t weighed) {
        return device.ops - before - (sum.is_direct() ? long(weighed) : 0);
    };
    device.leaves = [&](size_t piece) { sent.left.back().push_back(ops_of_step(piece + 1)); };
    const Tensor x = Tensor::empty_on_host({1, kValues}), wanted = Tensor::empty_on_host({1, kValues});
    for (uint64_t step = 0; step < 3; ++step) {
        Rng random(step, Purpose::test, 0, uint64_t(group.rank()));
        for (const Tensor& t : {x, wanted})
            for (float& v : t.span<float>()) v = random.normal();
        sum.begin(group.size() == 1 ? 1 : group.rank() == 0 ? 0.25 : 0.75);
        before = device.ops;
        sent.left.emplace_back();
        network({x, wanted}, true);
        sent.ops = ops_of_step(sent.left.back().size());
        sum.finish();
        sent.gradients.push_back(parameters.gradients().to_host().clone());
        sgdm_update(parameters.values(), velocity, parameters.gradients(), {.lr = 1000, .momentum = 0.9f});
    }
    sent.launches = device.launches;
    return sent;
}

} // namespace

TEST_SUITE("simt") {
    TEST_CASE("simt ops: a sum adds the vectors of several devices in their order") {
        constexpr size_t kPitch = 4096;
        std::vector<float> values(3 * kPitch);
        Rng random(1, Purpose::test);
        for (const size_t count : {size_t{0}, size_t{1}, size_t{7}, size_t{1024}, size_t{2051}}) {
            CAPTURE(count);
            for (float& v : values) v = random.normal();
            std::vector<float> start = values, expected = values;
            for (size_t i = 0; i < count; ++i)
                expected[i] = expected[kPitch + i] = values[i] + values[kPitch + i] + values[2 * kPitch + i];
            const auto vector = [&](size_t i) { return reinterpret_cast<std::byte*>(values.data() + i * kPitch); };
            simt::run_in_every_order(
                [&] {
                    values = start;
                    gpu_on_host::sum_vectors(std::array{vector(0), vector(1), vector(2)},
                                             std::array{vector(0), vector(1)}, count, nullptr);
                },
                {std::as_writable_bytes(std::span(values))});
            CHECK(values == expected);
        }
        std::byte* const first = reinterpret_cast<std::byte*>(values.data());
        CHECK_ERROR("aligned to 16 bytes", gpu_on_host::sum_vectors({{first + 4}}, {{first}}, 3, nullptr));
        const std::vector<std::byte*> many(Device::kMostVectors + 1, first);
        CHECK_ERROR("expected at most 64 vectors, got 65", gpu_on_host::sum_vectors(many, {{first}}, 3, nullptr));
    }

    TEST_CASE("device: gradients are summed in host memory if the memory of any device cannot be used by the others") {
        constexpr int kRanks = 3;
        struct Case {
            const char* why;
            void (*hinder)(ExecutorDevice&);
        };
        const Case cases[] = {
            {"", [](ExecutorDevice&) {}},
            {"rank 1: the executor: expected memory to share", [](ExecutorDevice& d) { d.shares = false; }},
            {"rank 1: the executor: expected memory of another", [](ExecutorDevice& d) { d.maps = false; }},
            {"wrong sums", [](ExecutorDevice& d) { d.sums_wrongly = true; }},
            {"us for 1024 KiB, through host memory 1000000 us", [](ExecutorDevice& d) { d.sum_seconds = 4; }}};
        for (const Case& c : cases) {
            CAPTURE(c.why);
            par::run_groups(kRanks, [&](par::Group& group) {
                ExecutorDevice device;
                if (group.rank() == 1) c.hinder(device);
                const InContext on{{.device = &device}};
                CifarNet net({.width = 32, .depth = 2});
                const Tensor& gradients = net.parameters.gradients();
                for (int training = 0; training < 2; ++training) {
                    GradientSum sum(group, net.parameters, par::Algorithm::automatic, false);
                    const bool direct = std::string_view(c.why).empty();
                    CHECK(sum.is_direct() == direct);
                    CHECK(sum.why() == Containing{direct ? "0 us for " : c.why});
                    CHECK(device.mapped == (direct ? kRanks - 1 : 0));
                    CHECK(gradients.to_host().data<float>()[0] == 0);
                    for (int step = 0; step < 2; ++step) {
                        // The gradients of a rank without images may be anything.
                        gradients.fill(group.rank() == 2 ? std::nan("") : double(group.rank() + 1));
                        const int sums = device.sums;
                        sum.begin(group.rank() == 2 ? 0 : group.rank() == 0 ? 0.25 : 0.75);
                        sum.finish();
                        const Tensor host = gradients.to_host();
                        CHECK(std::ranges::count(host.span<float>(), 1.75f) == host.numel());
                        CHECK((device.sums > sums) == direct);
                    }
                    gradients.fill(0);
                }
                CHECK(device.mapped == 0);
            });
        }
    }

    TEST_CASE("device: on one node and on several, devices sum gradients as ranks do in host memory") {
        for (const auto& setup : {std::pair{3, 3}, {4, 2}, {6, 2}}) // ranks, and ranks per node
            for (const par::Wire wire : {par::Wire::full, par::Wire::bf16}) {
                const int ranks = setup.first;
                INFO("ranks ", ranks, ", wire ", int(wire));
                std::vector<Tensor> sums[2]; // by rank: of host memory, and of the devices
                for (const bool shares : {false, true}) {
                    sums[shares].resize(size_t(ranks));
                    const auto sum_there = [&](par::Link& link) {
                        par::Group group(link);
                        ExecutorDevice device;
                        device.shares = shares;
                        const InContext on{{.device = &device}};
                        CifarNet net({.width = 32, .depth = 2});
                        const Tensor& gradients = net.parameters.gradients();
                        const Tensor host = Tensor::empty_on_host(gradients.shape());
                        GradientSum sum(group, net.parameters, par::Algorithm::automatic, false, wire);
                        CHECK(sum.is_direct() == shares);
                        Rng random(1, Purpose::test, 0, uint64_t(group.rank()));
                        for (float& v : host.span<float>()) v = random.normal();
                        gradients.copy_from(host);
                        sum.begin(1.0 / ranks);
                        sum.finish();
                        sums[shares][size_t(group.rank())] = gradients.to_host().clone();
                    };
                    par::run_threads(ranks, sum_there, setup.second);
                }
                for (int rank = 0; rank < ranks; ++rank) CHECK(same_bits(sums[true][size_t(rank)], sums[false][0]));
            }
    }

    TEST_CASE("device: with RG_PEER_MEMORY=1, devices sum gradients even if that is slower") {
        const EnvironmentVariable forced("RG_PEER_MEMORY", "1");
        par::run_groups(2, [](par::Group& group) {
            ExecutorDevice device;
            device.sum_seconds = 4;
            const InContext on{{.device = &device}};
            CifarNet net({.width = 4, .depth = 1});
            const GradientSum sum(group, net.parameters, par::Algorithm::automatic, false);
            CHECK(sum.is_direct());
            CHECK(sum.why() == "RG_PEER_MEMORY is 1");
        });
    }

    TEST_CASE("device: processes sum in the memory of each other's devices") {
        InSharedMemory<ExecutorDevice> device;
        device.sums_wrongly = std::getenv("RG_FAULTY_SUMS"); // set by e2e/gpu_check.py
        OtherProcess other("device: processes sum*");
        sum_between_processes(device, other);
    }

    TEST_CASE("device: a rank that is missing when the others unmap its gradients is not forgotten") {
        std::atomic<bool> left = false;
        const auto leave = [&](par::Group& group) {
            ExecutorDevice device;
            const InContext on{{.device = &device}};
            CifarNet net({.width = 4, .depth = 1});
            std::optional<GradientSum> sum(std::in_place, group, net.parameters, par::Algorithm::automatic, false);
            CHECK(sum->is_direct());
            if (group.rank() == 1) return left.wait(false);
            group.link().set_deadline(0.1);
            sum.reset();
            CHECK(group.link().deadline() == 0); // later waits end soon
            left = true, left.notify_all();
            group.barrier();
        };
        CHECK_ERROR("no word from rank 1", par::run_groups(2, leave));
    }

    TEST_CASE("device: devices do not sum over several nodes if ranks shall be added one after another") {
        const auto sum_in_order = [](par::Link& link) {
            par::Group group(link);
            group.set_ordered_sums();
            ExecutorDevice device;
            const InContext on{{.device = &device}};
            CifarNet net({.width = 4, .depth = 1});
            const GradientSum sum(group, net.parameters, par::Algorithm::automatic, false);
            CHECK(sum.is_direct() == (link.node().ranks.size() == 4));
            CHECK(sum.why().empty() != sum.is_direct());
        };
        for (const int per_node : {2, 4}) par::run_threads(4, sum_in_order, per_node);
    }

    TEST_CASE("device: gradients are summed over the ranks in pieces, on their way there and back") {
        constexpr int kRanks = 3;
        std::vector<Tensor> first(kRanks), second(kRanks);
        long allocated = 1000; // in the step with the fewest: a link between threads now and then makes room for mail
        par::run_groups(kRanks, [&](par::Group& group) {
            ExecutorDevice device;
            const InContext on{{.device = &device}};
            CifarNet net({.width = 32, .depth = 2});
            const Tensor& gradients = net.parameters.gradients();
            GradientSum sum(group, net.parameters, par::Algorithm::ring, true);
            const auto step = [&](float scale) {
                const Tensor host = Tensor::empty_on_host(gradients.shape());
                for (int64_t i = 0; i < host.numel(); ++i) // small integers: sums are exact
                    host.data<float>()[i] = scale * float((group.rank() + 1) * (i % 1021 + 1));
                gradients.copy_from(host);
                group.barrier();
                const long before = allocations();
                group.barrier();
                sum.begin(group.rank() == 2 ? 0 : 0.5);
                sum.finish();
                group.barrier();
                if (group.rank() == 0) allocated = std::min(allocated, allocations() - before);
                group.barrier();
                return gradients.to_host().clone();
            };
            first[size_t(group.rank())] = step(1);
            for (int i = 0; i < 6; ++i) step(2);
            second[size_t(group.rank())] = step(4);
            if (group.rank() == 0) CHECK(gradients.bytes() > 1 << 20); // of several pieces
        });
        CHECK(allocated == 0);
        for (size_t rank = 0; rank < kRanks; ++rank) {
            int64_t wrong = 0;
            for (int64_t i = 0; i < first[rank].numel(); ++i) {
                const float want = 0.5f * float(1 + 2) * float(i % 1021 + 1);
                wrong += first[rank].data<float>()[i] != want || second[rank].data<float>()[i] != 4 * want;
            }
            CHECK(wrong == 0);
        }
    }

    TEST_CASE("device: gradients of several workers of a rank") {
        for (const int ranks : {1, 2}) {
            CAPTURE(ranks);
            par::run_groups(ranks, [&](par::Group& group) {
                group.set_ordered_sums();
                group.set_workers(ranks == 1 ? std::vector{3} : std::vector{2, 1});
                ExecutorDevice device;
                const InContext on{{.device = &device}};
                CifarNet net({.width = 32, .depth = 2});
                const Tensor& gradients = net.parameters.gradients();
                GradientSum sum(group, net.parameters, par::Algorithm::automatic, false);
                for (int step = 0; step < 2; ++step) {
                    const int first = group.rank() * 2, end = first + group.workers(group.rank());
                    for (int worker = first; worker < end; ++worker) {
                        gradients.fill(double(1 << worker));
                        const double share = worker == 0 ? 0.5 : 0.25;
                        worker + 1 < end ? sum.add_worker(share) : sum.begin(share);
                    }
                    sum.finish();
                    const Tensor host = gradients.to_host();
                    CHECK(std::ranges::count(host.span<float>(), 2.0f) == host.numel()); // 0.5 x 1 + 0.25 x 2 + 0.25 x 4
                }
            });
        }
    }

    TEST_CASE("device: gradients leave while backward goes on, op by op and between graphs, and are the same") {
        using Captures = ExecutorDevice::Captures;
        const std::pair<Captures, bool> ways[] = {
            {Captures::none, false}, {Captures::none, true}, {Captures::work, true}};
        std::vector<Tensor> late;
        for (const auto& setup : {std::pair{1, true}, {2, false}, {2, true}}) {
            const int ranks = setup.first;
            const bool shares = setup.second;
            INFO("ranks ", ranks, ", devices share memory: ", shares);
            if (!shares) late.clear(); // what two ranks sum in host memory, they then sum on their devices
            for (const auto& way : ways) {
                const Captures captures = way.first;
                const bool early = way.second;
                INFO("captures ", int(captures), ", early ", early);
                std::vector<Sent> all(static_cast<size_t>(ranks));
                par::run_groups(ranks, [&](par::Group& group) {
                    ExecutorDevice device;
                    device.captures = captures;
                    device.shares = shares;
                    all[size_t(group.rank())] = send(group, device, early);
                });
                if (late.empty()) late = all[0].gradients;
                const bool graphs = captures == Captures::work;
                for (const Sent& sent : all) {
                    CHECK(sent.launches == (!graphs ? 0 : ranks == 1 ? 2 : 2 * 3)); // the first step has none
                    for (size_t step = 0; step < late.size(); ++step) {
                        CAPTURE(step);
                        CHECK(same_bits(sent.gradients[step], late[step]));
                        const std::vector<long>& left = sent.left[step];
                        REQUIRE(left.size() == (ranks == 1 ? 0 : 4));
                        CHECK(left == sent.left[0]);
                        for (size_t piece = 0; piece < left.size(); ++piece) // the last two have values of "a"
                            CHECK((left[piece] < sent.ops) == (early && piece < 2));
                    }
                }
            }
        }
    }
}
