// See chunks.h.
#include "core/chunks.h"

#include "core/context.h"
#include "core/ops/conv.h"
#include "core/ops/elements.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

namespace rg {

namespace {

/// A chunk's part of the largest step, per thread: more than a second-level cache, so that filters are not read too
/// often, but less than a core's share of the last-level cache.
constexpr int64_t kBytesPerThread = 4 << 20;
/// Fewest result pixels of a convolution in a chunk. With fewer, reading the filters would take too much time, and
/// method_for() (cpu/conv_choice.h) might choose another method than for all images.
constexpr int64_t kFewestPixels = 128;

/// Each chunk reads the parameters of its steps again, up to 4 times as many after Winograd's transform.
constexpr int64_t kReadAgain = 4;

bool has_values(const Tensor& t) { return t.defined() && t.numel() > 0; }

/// Bytes that a step reads and writes.
struct StepBytes {
    int64_t of_images, of_parameters;
};

/// Returns nothing if the step does not compute each of the n images on its own. `blocks` has the numbers of the blocks
/// that hold a batch of images; adds those of the outputs.
std::optional<StepBytes> bytes_of(const Step& step, int64_t n, std::set<uint64_t>& blocks) {
    const auto is_batch = [&](const Tensor& t) {
        return !t.has_memory() && t.bytes() == t.block_bytes() && t.shape().rank() > 0 && t.extent(0) == n;
    };
    StepBytes bytes{};
    for (size_t i = 0; i < step.op->inputs.size(); ++i) {
        const Tensor& t = step.in[i];
        if (!has_values(t)) continue;
        const bool images = step.op->images & input_bit(int(i)), known = blocks.contains(t.key().id);
        // A value per channel, for example, is an operand of a binary op, but no batch of images. Nor is one of shape
        // [h w c], even if h is n.
        const auto repeats = [&] {
            return step.op == op::binary && aligned(t.shape(), step.in[BinaryOp::a].shape())[0] != n;
        };
        if (images ? !known || t.shape().rank() < 2 || !is_batch(t) || repeats() : !t.has_memory()) return {};
        (images ? bytes.of_images : bytes.of_parameters) += t.bytes();
    }
    for (const Tensor& t : step.outputs()) {
        if (!has_values(t)) continue;
        if (!(step.op->images & output_bit(int(&t - step.out.data()))) || !is_batch(t)) return {};
        blocks.insert(t.key().id);
        bytes.of_images += t.bytes();
    }
    return bytes;
}

/// Returns the least number of images for which a step has kFewestPixels.
int64_t fewest_images(const Step& step) {
    if (step.op != op::conv2d || step.in[Conv2dOp::w].extent(1) == 1) return 1;
    const Tensor& y = step.out[Conv2dOp::y];
    const int64_t pixels = std::max<int64_t>(1, y.extent(1) * y.extent(2));
    return (kFewestPixels + pixels - 1) / pixels;
}

} // namespace

std::pair<size_t, size_t> split_into_chunks(std::vector<Step>& steps, std::span<const Tensor> placeholders,
                                            std::span<const Tensor> results, int64_t threads) {
    const int64_t n = placeholders.empty() || placeholders[0].shape().rank() == 0 ? 0 : placeholders[0].extent(0);
    const int64_t limit = kBytesPerThread * threads;
    std::map<uint64_t, size_t> last_use; // the last step that reads or writes each block; results: no step
    for (size_t s = 0; s < steps.size(); ++s)
        for (const auto tensors : {steps[s].inputs(), steps[s].outputs()})
            for (const Tensor& t : tensors)
                if (has_values(t)) last_use[t.key().id] = s;
    for (const auto tensors : {placeholders, results})
        for (const Tensor& t : tensors) last_use[t.key().id] = steps.size();
    // Split as many steps as save the most bytes that would come from memory or a slow cache: those of blocks that only
    // these steps use, and that exceed the cache if all images are computed at once.
    std::set<uint64_t> blocks; // that hold a batch of images
    for (const Tensor& t : placeholders) blocks.insert(t.key().id);
    std::map<uint64_t, int64_t> used; // bytes read and written, by block
    size_t split = 0;
    int64_t saved = 0, most_saved = 0, fewest = threads, fewest_so_far = threads, most = 0, most_so_far = 0;
    for (size_t s = 0; s < steps.size(); ++s) {
        const std::optional<StepBytes> bytes = bytes_of(steps[s], n, blocks);
        if (!bytes) break;
        most_so_far = std::max(most_so_far, bytes->of_images);
        fewest_so_far = std::max(fewest_so_far, fewest_images(steps[s]));
        saved -= kReadAgain * bytes->of_parameters * std::min(most_so_far / limit, n / fewest_so_far);
        for (const auto tensors : {steps[s].inputs(), steps[s].outputs()})
            for (const Tensor& t : tensors) {
                if (!has_values(t) || !blocks.contains(t.key().id)) continue;
                const int64_t bytes_used = used[t.key().id] += t.bytes();
                if (last_use[t.key().id] == s && 2 * t.bytes() > limit) saved += bytes_used;
            }
        if (saved > most_saved) most_saved = saved, split = s + 1, fewest = fewest_so_far, most = most_so_far;
    }
    fewest = (fewest + threads - 1) / threads * threads; // so that rounding to `unit` leaves no chunk with fewer
    const int64_t chunks = std::min(most / limit, n / fewest);
    if (chunks < 2) return {steps.size(), 1};
    const int64_t unit = n / chunks < 16 ? threads : 16; // the threads share multiples of it evenly
    const DryRun without_memory;
    std::vector<Step> all;
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
        const int64_t first = n / unit * chunk / chunks * unit,
                      end = chunk + 1 < chunks ? n / unit * (chunk + 1) / chunks * unit : n, count = end - first;
        std::map<uint64_t, Tensor> of_chunk; // the block for this chunk, by the number of the block for all images
        const auto take_images = [&](Tensor& t) {
            if (!has_values(t) || !blocks.contains(t.key().id)) return;
            std::vector<int64_t> extents(t.shape().extents().begin(), t.shape().extents().end());
            extents[0] = count;
            const Shape shape{std::span<const int64_t>(extents)};
            if (last_use[t.key().id] >= split) { // exists for all images at once
                t = t.slice(first * (t.numel() / n), shape);
                return;
            }
            const auto [block, added] = of_chunk.try_emplace(t.key().id);
            if (added) block->second = Tensor::empty({t.block_bytes() / n * count}, DType::u8);
            t = t.slice(0, shape).rebased_on(block->second);
        };
        for (size_t s = 0; s < split; ++s) {
            Step step = steps[s];
            std::ranges::for_each(step.in, take_images), std::ranges::for_each(step.out, take_images);
            all.push_back(std::move(step));
        }
    }
    std::move(steps.begin() + int64_t(split), steps.end(), std::back_inserter(all));
    steps = std::move(all);
    return {split, size_t(chunks)};
}

} // namespace rg
