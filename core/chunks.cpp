// See chunks.h.
#include "core/chunks.h"

#include "core/context.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

namespace rg {

namespace {

/// A chunk's part of the largest step, per thread: more than a second-level cache, so that filters are not read too
/// often, but less than a core's share of the last-level cache.
constexpr int64_t kBytesPerThread = 4 << 20;
/// With fewer images in a chunk, reading the filters would take too much time, and method_for() (cpu/conv_choice.h)
/// might choose another method than for all images.
constexpr int64_t kFewestImages = 8;

bool has_values(const Tensor& t) { return t.defined() && t.numel() > 0; }

/// Returns the bytes that the largest step reads and writes, without parameters. Returns 0 if a step does not compute
/// each of the n images on its own. `blocks` has the numbers of the blocks that hold a batch of images; adds those of
/// the outputs. Makes `unit` the least number of images that a chunk can have: the rows of linear() may be 16 images.
int64_t largest_step(std::span<const Step> steps, int64_t n, std::set<uint64_t>& blocks, int64_t& unit) {
    const auto is_batch = [&](const Tensor& t) {
        if (t.has_memory() || t.bytes() != t.block_bytes() || t.shape().rank() == 0) return false;
        unit = std::lcm(unit, n / std::gcd(n, t.extent(0)));
        return t.numel() % n == 0;
    };
    int64_t most = 0;
    for (const Step& step : steps) {
        int64_t bytes = 0;
        for (size_t i = 0; i < step.op->inputs.size(); ++i) {
            const Tensor& t = step.in[i];
            if (!has_values(t)) continue;
            const bool images = step.op->images & input_bit(int(i)), known = blocks.contains(t.key().id);
            // A value per channel, for example, is an operand of a binary op, but no batch of images.
            const bool batch = t.shape().rank() > 1 && t.extent(0) == step.in[0].extent(0);
            if (images ? !known || !batch || !is_batch(t) : !t.has_memory()) return 0;
            bytes += images ? t.bytes() : 0;
        }
        for (const Tensor& t : step.outputs()) {
            if (!has_values(t)) continue;
            if (!(step.op->images & output_bit(int(&t - step.out.data()))) || !is_batch(t)) return 0;
            blocks.insert(t.key().id);
            bytes += t.bytes();
        }
        most = std::max(most, bytes);
    }
    return most;
}

} // namespace

size_t split_into_chunks(std::vector<Step>& steps, std::span<const Tensor> placeholders,
                         std::span<const Tensor> results, int64_t threads) {
    const size_t per_chunk = steps.size();
    const int64_t n = placeholders.empty() || placeholders[0].shape().rank() == 0 ? 0 : placeholders[0].extent(0);
    if (n < 2 * kFewestImages) return per_chunk;
    std::set<uint64_t> blocks, whole; // `whole`: those of them that exist for all images at once
    for (const Tensor& t : placeholders) blocks.insert(t.key().id), whole.insert(t.key().id);
    int64_t unit = 1;
    const int64_t bytes = largest_step(steps, n, blocks, unit), units = n / unit;
    const int64_t fewest = (kFewestImages + unit - 1) / unit; // units in a chunk
    const int64_t chunks = std::min(bytes / (kBytesPerThread * threads), units / fewest);
    if (chunks < 2) return per_chunk;
    for (const Tensor& t : results) whole.insert(t.key().id);

    const DryRun without_memory;
    std::vector<Step> all;
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
        const int64_t first = units * chunk / chunks * unit, count = units * (chunk + 1) / chunks * unit - first;
        std::map<uint64_t, Tensor> of_chunk; // the block for this chunk, by the number of the block for all images
        const auto take_images = [&](Tensor& t) {
            if (!has_values(t) || !blocks.contains(t.key().id)) return;
            std::vector<int64_t> extents(t.shape().extents().begin(), t.shape().extents().end());
            extents[0] = extents[0] * count / n;
            const Shape shape{std::span<const int64_t>(extents)};
            if (whole.contains(t.key().id)) {
                t = t.slice(first * (t.numel() / n), shape);
                return;
            }
            const auto [block, added] = of_chunk.try_emplace(t.key().id);
            if (added) block->second = Tensor::empty({t.block_bytes() / n * count}, DType::u8);
            t = t.slice(0, shape).rebased_on(block->second);
        };
        for (Step step : steps) {
            std::ranges::for_each(step.in, take_images), std::ranges::for_each(step.out, take_images);
            all.push_back(std::move(step));
        }
    }
    steps = std::move(all);
    return per_chunk;
}

} // namespace rg
