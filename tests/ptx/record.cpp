// Records cases of ops for the interpreter of PTX: each line that it prints is a JSON object with the memory, the
// launches and the results of one case. Nothing runs on the executor; the reference computes the results.
//
//     ptx_record quick|all
//
// The cases are those of op_cases.h, and others below, which launch the rest of the kernels. For each kernel (each
// instance of a template), records the largest case of at most some number of products, or the smallest if all are
// larger. `all` records several cases per kernel, and larger ones.
//
//     "memory"    address, size, contents as hexadecimal digits ("": never written), and true if kernels may write it
//     "launches"  offset of the kernel within this program (nm gives its name), grid, block, bytes of dynamic shared
//                 memory, and the parameters as hexadecimal digits
//     "results"   address, type, tolerance (rms, max), and the expected values as hexadecimal digits of doubles
#include "gpu/kernels.h"
#include "gpu/scratch.cuh"
#include "tests/gpu/executor_device.h"
#include "tests/op_check.h"
#include "tests/simt/executor.h"

#include <cmath>
#include <cstring>
#include <map>
#include <set>

extern "C" const char __executable_start; // from the linker: the address at which the program is loaded

using namespace rg;

namespace {

std::string hex(const void* memory, size_t bytes) {
    std::string text;
    for (size_t i = 0; i < bytes; ++i) {
        const auto byte = static_cast<const unsigned char*>(memory)[i];
        text += "0123456789abcdef"[byte / 16], text += "0123456789abcdef"[byte % 16];
    }
    return text;
}

size_t offset_of(const simt::Launch& launch) {
    return size_t(static_cast<const char*>(launch.kernel) - &__executable_start);
}

/// Provides device memory and scratch memory, none of which is used twice within a case, and keeps the launches.
class LaunchRecorder final : public ExecutorDevice, public simt::Interceptor {
public:
    explicit LaunchRecorder(size_t capacity) : capacity_(capacity) {}
    struct Block {
        void* memory;
        size_t bytes;
    };
    void* allocate(size_t bytes) override {
        std::byte* const memory = arena_.get() + used_;
        used_ += (bytes + 511) / 256 * 256; // at least one byte after the block belongs to no block
        RG_CHECK(used_ <= capacity_, "ptx_record: a case needs more memory than ", capacity_, " bytes");
        blocks.push_back({memory, bytes});
        return memory;
    }
    void release(void*) noexcept override {}
    void launch(simt::Launch launch) override { launches.push_back(std::move(launch)); }
    void* scratch(size_t bytes) override { return allocate(bytes); }
    unsigned* counters() override { return static_cast<unsigned*>(blocks[0].memory); }
    /// Block 0 of a case is the counters.
    void start_case() {
        blocks.clear();
        launches.clear();
        used_ = 0;
        constexpr size_t kBytes = gpu_on_host::kArrivalCounters * sizeof(unsigned);
        std::memset(allocate(kBytes), 0, kBytes);
    }

    std::vector<Block> blocks;
    std::vector<simt::Launch> launches;

private:
    const size_t capacity_;
    struct Free {
        void operator()(std::byte* memory) const { std::free(memory); }
    };
    std::unique_ptr<std::byte, Free> arena_{static_cast<std::byte*>(std::aligned_alloc(256, capacity_))};
    size_t used_ = 0;
};

/// A way to run a case.
struct Variant {
    OpCase c;
    int sm_count = 2; // so that a block of a Hopper kernel takes several tiles
    bool hopper = false;
    bool bf16_filters = false; // as in a plan that has rounded them
    std::string describe() const {
        std::string text = c.op->name;
        for (size_t i = 0; i < c.in.size(); ++i)
            if (c.in[i].draw != Draw::absent)
                text += cat(" ", c.op->inputs[i].name, c.in[i].shape.str(), "#", int(c.in[i].draw));
        if (hopper) text += cat(" Hopper, ", sm_count, " SMs");
        return text + (c.narrow ? " bf16" : "") + (bf16_filters ? " bf16 filters" : "");
    }
};

/// Returns the index of the filters among an op's inputs, or -1.
int filters_of(const OpCase& c) {
    return c.op == op::conv2d ? int(Conv2dOp::w) : c.op == op::conv2d_grad ? int(Conv2dGradOp::w) : -1;
}

Variant variant(Op op, std::vector<Input> in, Attrs attrs, Tolerance tolerance, bool bf16) {
    OpCase c{op, std::move(in), attrs, tolerance};
    c.in.resize(op->inputs.size(), {{0}, Draw::absent});
    if (bf16) c.narrow = activations(c);
    return {c};
}

/// Adds a case for each instance of the Hopper kernels. With `wrap`, and for narrow images always, a block takes so
/// many tiles that it uses each stage with both parities of its barriers.
void add_hopper(std::vector<Variant>& variants, bool wrap) {
    const Input absent{{0}, Draw::absent};
    for (const int64_t c : {32, 64, 128})
        for (const int64_t k : {32, 64, 128})
            for (const int64_t width : {8, 16, 32}) {
                if (std::max(c, k) == 128 && (std::min(c, k) == 32 || width > 8)) continue; // portable kernels
                const bool many = wrap || width == 8;
                const int64_t height = width == 16 ? 32 : 16; // two tiles
                const int64_t images = !many ? 1 : std::max(c, k) == 128 ? 3 : 5; // 128 channels have fewer stages
                const Shape x{images, height, width, c}, y{x[0], height, width, k}, w{k, 3, 3, c};
                const BatchNorm norm{.epsilon = 1e-3f, .activation = Activation::relu};
                const Conv conv{.pad = 1};
                const std::vector<Input> no_norm(3, absent), forward{{x}, {w}, {{k}}};
                std::vector<Variant> instances;
                instances.push_back(
                    variant(op::conv2d, forward, Conv2dOp{.conv = conv, .with_stats = true}, kNarrow, true));
                instances.push_back(variant(op::conv2d, forward + norm_of(x),
                                            Conv2dOp{.conv = conv, .with_stats = true, .x_norm = norm}, kNarrow, true));
                // The instances of the weight gradient depend on the smaller of c and k.
                Conv2dGradOp gradient{.conv = conv, .filters = c == k};
                instances.push_back(variant(op::conv2d_grad, {{y}, {x}, {w}, {x}}, gradient, kNarrow, true));
                gradient.y_norm = norm;
                gradient.data = false;
                if (c == k)
                    instances.push_back(variant(op::conv2d_grad,
                                                std::vector<Input>{{y}, {x}, {w}, absent, {y}} + norm_of(y) +
                                                    std::vector<Input>{{{2, k}}},
                                                gradient, kNarrow, true));
                gradient.x_norm = norm;
                gradient.data = true;
                gradient.with_sums = gradient.filters = true; // batch norm requires both gradients
                instances.push_back(variant(op::conv2d_grad,
                                            std::vector<Input>{{y}, {x}, {w}, absent, {y}} + norm_of(y) +
                                                std::vector<Input>{{{2, k}}} + norm_of(x),
                                            gradient, kNarrow, true));
                for (Variant& v : instances) v.hopper = true, v.sm_count = many ? 1 : 2, variants.push_back(v);
            }
}

/// Adds cases of kernels that no case of op_cases.h launches.
void add_rare(std::vector<Variant>& variants, bool all) {
    for (const bool bf16 : {false, true}) { // filters in bf16
        const Conv conv{.pad = 1, .groups = 3};
        variants.push_back(variant(op::conv2d, {{{2, 5, 4, 6}}, {{9, 3, 3, 2}}, {{9}}}, Conv2dOp{.conv = conv},
                                   bf16 ? kNarrow : kConvolved, bf16));
        variants.back().bf16_filters = true;
        variants.push_back(variant(op::conv2d_grad, {{{2, 5, 4, 9}}, {{2, 5, 4, 6}}, {{9, 3, 3, 2}}},
                                   Conv2dGradOp{.conv = conv, .filters = false}, bf16 ? kNarrow : kConvolved, bf16));
        variants.back().bf16_filters = true;
    }
    if (!all) return;
    // So many rows that their sums are added in two levels
    const Shape rows{66, 2000, 1, 1};
    std::vector<Input> norm = norm_inputs(rows, Draw::normal, Draw::statistics);
    norm.insert(norm.begin(), {rows});
    variants.push_back(variant(op::batch_norm_grad_sums, norm,
                               BatchNormGradSumsOp{BatchNorm{.epsilon = 1e-3f, .activation = Activation::relu}},
                               kConvolvedSums, false));
    variants.push_back(variant(op::conv2d_grad, {{{66, 2000, 1, 2}}, {{66, 2000, 1, 2}}, {{2, 1, 1, 1}}},
                               Conv2dGradOp{.conv = {.groups = 2}, .data = false}, kConvolvedSums, false));
    variants.push_back(variant(op::conv2d, {{{1, 129, 128, 1}}, {{1, 1, 1, 1}}, {{1}}},
                               Conv2dOp{.conv = {}, .with_stats = true}, kConvolved, false));
}

std::string describe(const std::vector<simt::Launch>& launches) {
    std::string text;
    for (const simt::Launch& l : launches) {
        std::string parameters;
        for (const auto& p : l.parameters)
            parameters += cat(parameters.empty() ? "\"" : ", \"", hex(p.data(), p.size()), "\"");
        text +=
            cat(text.empty() ? "" : ", ", "[", offset_of(l), ", [", l.grid.x, ", ", l.grid.y, ", ", l.grid.z, "], [",
                l.block.x, ", ", l.block.y, ", ", l.block.z, "], ", l.shared_bytes, ", [", parameters, "]]");
    }
    return text;
}

/// Records one case. With `results`, also returns it as a JSON object.
std::string record(LaunchRecorder& recorder, const Variant& v, bool results) {
    recorder.start_case();
    const OpCase& c = v.c;
    const OpRow& row = *c.op;
    std::vector<Tensor> host = draw_inputs(c, DType::f32);
    const OutputSpecs specs = infer(row, host, c.attrs);
    std::vector<Tensor> given = host; // to the kernels
    if (v.bf16_filters) {
        Tensor &filters = given[size_t(filters_of(c))], &same = host[size_t(filters_of(c))];
        filters = filters.to(DType::bf16);
        same = filters.to(DType::f32);
    }
    gpu_on_host::settable_gpu_traits() = {.sm_count = v.sm_count, .hopper_kernels = v.hopper};
    const Context on{.device = &recorder};
    const ContextScope scope(on);
    std::vector<Tensor> in(host.size()), out(size_t(row.outputs));
    std::string memory;
    const auto describe_block = [&](const LaunchRecorder::Block& block, const void* contents, bool writable) {
        memory += cat(memory.empty() ? "" : ", ", "[", size_t(block.memory), ", ", block.bytes, ", \"",
                      results && contents ? hex(contents, block.bytes) : "", "\", ", writable ? "true" : "false", "]");
    };
    for (size_t i = 0; i < in.size(); ++i) {
        if (!given[i].defined()) continue;
        in[i] = Tensor::empty(given[i].shape(), given[i].dtype());
        if (given[i].bytes() == 0) continue;
        in[i].copy_from(given[i]);
        describe_block({in[i].bytes_data(), size_t(given[i].bytes())}, given[i].bytes_data(), int(i) < row.in_place);
    }
    describe_block(recorder.blocks[0], recorder.blocks[0].memory, true);
    const size_t inputs = recorder.blocks.size();
    for (size_t i = 0; i < out.size(); ++i)
        out[i] = int(i) < row.in_place ? in[i] : Tensor::empty(specs[i].shape, specs[i].dtype);
    gpu_on_host::kernel(c.op)({c.attrs, in, out});
    if (!results) return {};
    for (size_t i = inputs; i < recorder.blocks.size(); ++i) describe_block(recorder.blocks[i], nullptr, true);

    std::string wanted;
    const Context plain;
    const ContextScope reference(plain);
    const KernelRun want = run_kernel(c, host, Backend::reference, 0);
    for (size_t i = 0; i < out.size(); ++i) {
        if (out[i].bytes() == 0) continue;
        const Tensor values = want.results[i].to(DType::f64);
        wanted += cat(wanted.empty() ? "" : ", ", "[", size_t(out[i].bytes_data()), ", \"", name_of(out[i].dtype()),
                      "\", ", c.tolerance.rms, ", ", c.tolerance.max, ", \"",
                      hex(values.bytes_data(), size_t(values.bytes())), "\"]");
    }
    return cat("{\"name\": \"", v.describe(), "\", \"memory\": [", memory, "], \"launches\": [",
               describe(recorder.launches), "], \"results\": [", wanted, "]}\n");
}

/// Records the kernel that measures a GPU's rate, which is no op.
std::string record_rate(LaunchRecorder& recorder) {
    recorder.start_case();
    constexpr int kBlocks = 2, kRounds = 3;
    auto* const out = static_cast<float*>(recorder.allocate(sizeof(float) * kBlocks * kMultiplyThreads));
    gpu_on_host::multiply(out, kBlocks, kRounds);
    const std::vector<double> sums(kBlocks * kMultiplyThreads, kRounds * 8 * 4 * 16);
    return cat("{\"name\": \"multiply\", \"memory\": [[", size_t(out), ", ", 4 * sums.size(),
               ", \"\", true]], \"launches\": [", describe(recorder.launches), "], \"results\": [[", size_t(out),
               ", \"f32\", 0, 0, \"", hex(sums.data(), 8 * sums.size()), "\"]]}\n");
}

/// Records a sum over GPUs, which is no op. Nvcc unrolls the loops over sources and targets by 4. The last source is the
/// first target.
std::string record_sum(LaunchRecorder& recorder) {
    recorder.start_case();
    constexpr size_t kCount = 4 * kSumThreads + 6, kSources = 7, kTargets = 6;
    std::vector<std::byte*> vectors;
    std::vector<double> sums(kCount);
    std::string memory, wanted;
    for (size_t v = 0; v < kSources + kTargets - 1; ++v) {
        std::vector<float> values(kCount);
        for (size_t i = 0; i < kCount && v < kSources; ++i) sums[i] += values[i] = float((v + 1) * (i % 13));
        vectors.push_back(static_cast<std::byte*>(recorder.allocate(4 * kCount)));
        memory += cat(v > 0 ? ", " : "", "[", size_t(vectors[v]), ", ", 4 * kCount, ", \"",
                      v < kSources ? hex(values.data(), 4 * kCount) : "", "\", ", v + 1 < kSources ? "false" : "true", "]");
    }
    const std::span targets = std::span(vectors).last(kTargets);
    for (std::byte* const target : targets)
        wanted += cat(wanted.empty() ? "" : ", ", "[", size_t(target), ", \"f32\", 0, 0, \"", hex(sums.data(), 8 * kCount),
                      "\"]");
    gpu_on_host::sum_vectors(std::span(vectors).first(kSources), targets, kCount, nullptr);
    return cat("{\"name\": \"sum_vectors\", \"memory\": [", memory, "], \"launches\": [", describe(recorder.launches),
               "], \"results\": [", wanted, "]}\n");
}

} // namespace

int main(int argc, char** argv) {
    const std::string amount = argc == 2 ? argv[1] : "";
    RG_CHECK(amount == "quick" || amount == "all", "ptx_record: expected quick or all");
    const bool all = amount == "all";
    const size_t count = all ? 4 : 1;
    const double most = all ? 3e4 : 3e3; // products, or threads
    LaunchRecorder recorder(size_t{1} << 30);
    simt::interceptor = &recorder;
    std::vector<Variant> variants, chosen;
    for (const OpCase& c : op_cases()) {
        const bool convolves = filters_of(c) >= 0;
        if (!gpu_on_host::kernel(c.op) || only_on_cpus(c) ||
            (convolves && (c.in[0].draw == Draw::special || c.in[1].draw == Draw::special))) // planes.cuh
            continue;
        variants.push_back({c});
        // The kernels of packed images need multiples of 64 filters; add_hopper() has cases for the others.
        if (convolves && c.narrow && (all || c.in[size_t(filters_of(c))].shape[0] % 64 == 0))
            variants.push_back({c}), variants.back().hopper = true;
    }
    add_rare(variants, all);
    std::map<size_t, std::vector<std::pair<double, size_t>>> cases_of; // by kernel: work and index of each case
    for (size_t i = 0; i < variants.size(); ++i) {
        record(recorder, variants[i], false);
        double work = GradientCase::work(variants[i].c);
        std::set<size_t> kernels;
        for (const simt::Launch& l : recorder.launches) {
            kernels.insert(offset_of(l));
            work = std::max(work, double(l.grid.x) * l.grid.y * l.grid.z * l.block.x * l.block.y * l.block.z);
        }
        for (const size_t kernel : kernels) cases_of[kernel].push_back({work, i});
    }
    std::set<size_t> indices;
    for (auto& [kernel, cases] : cases_of) {
        std::sort(cases.begin(), cases.end());
        size_t end = 1; // at least the smallest case
        while (end < cases.size() && cases[end].first <= most) ++end;
        for (size_t i = end > count ? end - count : 0; i < end; ++i) indices.insert(cases[i].second);
    }
    for (const size_t i : indices) chosen.push_back(variants[i]);
    add_hopper(chosen, all);
    for (const Variant& v : chosen) std::fputs(record(recorder, v, true).c_str(), stdout);
    std::fputs(record_rate(recorder).c_str(), stdout);
    std::fputs(record_sum(recorder).c_str(), stdout);
    return 0;
}
