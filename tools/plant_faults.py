#!/usr/bin/env python3
"""Plants faults in the CUDA kernels, one at a time, and checks that the tests detect them.

usage: tools/plant_faults.py BUILD_FOLDER [NAME...]
       tools/plant_faults.py --check    checks that the source still has the text of each fault

A fault is an edit of a copy of one file. The kernel file that includes this file is compiled with the copy. For a
fault in C++, the result is linked before the library to the unit tests of an existing build, and runs on the executor.
For a fault in inline assembly, nvcc compiles the kernel file to PTX, which the interpreter of tests/ptx runs; without
nvcc these faults are skipped. Prints a line per fault with the first failure. The exit status is 1 if a fault was not
detected.
"""
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent

# name, edited file, compiled kernel file, old text, new text
EXECUTOR_FAULTS = [
    ("no barrier before the tiles are overwritten", "conv.cu", "conv",
     "__syncthreads(); // all warps have read the previous pixels and filters", ""),
    ("no barrier before the tiles are read", "conv.cu", "conv",
     "__syncthreads(); // pixels and filters are staged", ""),
    ("no barrier before the units are read", "conv.cu", "conv", "__syncthreads(); // the units are listed", ""),
    ("no barrier before the results are read", "conv.cu", "conv",
     "__syncthreads(); // the results are in shared memory", ""),
    ("no barrier before the sums of the threads are read", "conv_results.cuh", "conv",
     "__syncthreads(); // the sums are in shared memory", ""),
    ("one column too many", "halo.cuh", "conv", "column < g.from_w", "column <= g.from_w"),
    ("the taps that a stride leaves taken for the first", "halo.cuh", "conv",
     "(phase + pad - start * dilation) % stride != 0) ++start", "start * dilation % stride != 0) ++start"),
    ("wrong lanes for the rows of a matrix", "conv.cu", "conv",
     "unit_cells[unit + lane / 16]", "unit_cells[unit + lane % 2]"),
    ("no zeros for the partner of a unit", "conv.cu", "conv",
     "kOctets * t.octet_cells + i) * 8, M::pixel_plane", "kOctets * t.octet_cells) * 8, M::pixel_plane"),
    ("a deviation taken for a mean", "conv_results.cuh", "conv",
     "numbers[0] >= 0 ? results[thread] : 0) + mean", "0) + mean"),
    ("images without a halo between them", "halo.cuh", "conv",
     "row_of_all % t.by_image_rows * rows.scale", "row_of_all % t.rows * rows.scale"),
    ("a strip of columns taken for the first", "halo.cuh", "conv_grad",
     "column = tile.first_column + in_strip", "column = in_strip"),
    ("a range of taps taken for the first", "halo.cuh", "conv_grad",
     "/ unsigned(step)) * limit;", "/ unsigned(step)) * 0;"),
    ("the octets of a filter taken for the first", "halo.cuh", "conv",
     "first_channel + 8 * octet : -1", "first_channel : -1"),
    ("no barrier before a tile is overwritten", "conv_grad.cu", "conv_grad",
     "__syncthreads(); // all warps have read the previous tile", ""),
    ("no barrier before a tile is read", "conv_grad.cu", "conv_grad", "__syncthreads(); // the tile is staged", ""),
    ("a unit multiplied in the place of the next", "conv_grad.cu", "conv_grad",
     "unit_cells[min(first + i + lane / 16, units - 1)]", "unit_cells[min(first + i, units - 1)]"),
    ("wrong lanes for a transposed matrix", "conv_grad.cu", "conv_grad", "lane % 8 + lane / 16 * 8", "lane % 16"),
    ("a split of the sum left out", "conv_grad.cu", "conv_grad", "split < splits", "split + 1 < splits"),
    ("no ones for the bias", "conv_grad.cu", "conv_grad", "ones[2] = {0x3f803f80, 0x3f803f80}", "ones[2] = {0, 0}"),
    ("pixels of the next block counted", "conv_grad.cu", "conv_grad",
     "pixel.image < g.images && pixel.column", "pixel.column"),
    ("a quotient that is too small", "divisor.cuh", "conv_grad", "<< 32) / d + 1)", "<< 32) / d)"),
    ("the lower half of a product left out", "planes.cuh", "conv_grad",
     "multiply_2x2<kColumns>(rows[1], columns[0], part_of); // low x high", ""),
    ("the planes of the second operand exchanged", "planes.cuh", "conv",
     "(rows[0], columns[1], part_of)", "(rows[1], columns[1], part_of)"),
    ("the second plane of the pixels taken for the first", "conv.cu", "conv",
     "pixels[m] + plane * pixel_plane", "pixels[m]"),
    ("sums of the weight gradient one value too near", "conv_grad_hopper.cu", "conv_grad_hopper",
     "i * 8 * extents.pitch()", "i * 8 * (extents.pitch() - 2)"),
    ("filters that are loaded from another place", "conv_hopper.cu", "conv_hopper",
     "min(begin + k * kLoaders, kPlaces * N - 1))", "min(begin + k * kLoaders, kPlaces * N - 1) + 1)"),
    ("no barrier in the sums of columns", "columns.cuh", "norm",
     "    __syncthreads();\n    const int y = ", "    const int y = "),
    ("sums of half of the rows of a warp", "columns.cuh", "pool",
     "lane_mask = kLanes; lane_mask < 32", "lane_mask = kLanes; lane_mask < 16"),
    ("a group that ends last and adds no others", "columns.cuh", "norm",
     "add(0, groups, SlabSums", "add(group, group + 1, SlabSums"),
    ("a count of blocks that is not reset", "reduce.cuh", "norm", "if (*last) *arrivals = 0;", ""),
    ("coefficients without epsilon", "norm.cuh", "norm",
     "double(gamma) / std::sqrt(double(variance) + double(epsilon))", "double(gamma) / std::sqrt(double(variance))"),
    ("running statistics of another row", "conv.cuh", "conv",
     "moving_average(old.y, batch.y", "moving_average(old.y, batch.x"),
    ("coefficients without the mean", "norm.cuh", "pool", "/ count - b * double(mean)));", "/ count));"),
    ("a linear layer too large for its kernels", "conv_choice.cu", "conv_choice",
     "g.to_c <= kMaxLinearResults", "g.to_c <= kMaxLinearResults + 1"),
    ("a first layer packed without its data gradient", "conv_choice.cu", "conv_choice",
     "first_layer = !a.data && ", "first_layer = "),
    ("a linear layer without the last results", "linear.cu", "linear",
     "if (i < e.k) sum[i] +=", "if (i + 1 < e.k) sum[i] +="),
    ("no barrier before the sums of warps are read", "linear.cu", "linear",
     "        __syncthreads();\n        const float total", "        const float total"),
    ("rows beyond the last counted", "linear.cu", "linear", "row < e.rows && result < e.k ?", "result < e.k ?"),
    ("no barrier in the tree of sums", "columns.cuh", "norm",
     "__syncthreads();\n            if (y >= step)", "if (y >= step)"),
    ("a normalisation that is not in the filters", "conv.cu", "conv", "w[i] * scale[i / size]", "w[i]"),
    ("means taken for the same", "conv.cuh", "conv", "double(mean[c]) + n * d * d", "double(mean[c])"),
    ("a step between taps forgotten", "halo.cuh", "conv",
     "(rows.first + r * rows.step) * g.s", "(rows.first + r) * g.s"),
    ("taps that are not dilated", "halo.cuh", "conv_grad", "s * g.dy_step.w", "s"),
    ("a group's filters taken for the first", "conv_groups.cu", "conv_groups",
     "first_filter = channel / a.c * a.k", "first_filter = 0 * a.k"),
    ("one result too many", "conv_groups.cu", "conv_groups",
     "distance / stride < results", "distance / stride <= results"),
    ("padding counted as pixels", "pool.cu", "pool", "max(result * stride - pad, 0)", "result * stride - pad"),
    ("a position from the image's edge", "pool.cu", "pool", "(i - top) * g.columns.window", "i * g.columns.window"),
    ("one window too many", "pool.cu", "pool",
     "row / rows.stride, rows.results - 1", "row / rows.stride, rows.results + 0"),
    ("a position of the wrong channel", "pool.cu", "pool", "uint8_t(bytes >> 8 * c)", "uint8_t(bytes)"),
    ("filters whose channels are not exchanged", "conv.cu", "conv",
     "i / k % places) * c + i / k / places", "i / k % places) * c"),
    ("a vector left out of a sum over GPUs", "sum_vectors.cu", "sum_vectors",
     "for (int s = 1; s < v.sources; ++s) {", "for (int s = 2; s < v.sources; ++s) {"),
    ("the last value of a sum over GPUs left out", "sum_vectors.cu", "sum_vectors",
     "j < count; ++j", "j + 1 < count; ++j"),
    ("one value too many", "elementwise.cuh", "elements", "if (i < count) f(i);", "if (i <= count) f(i);"),
    ("rows copied with the other tensor's step", "elements.cu", "elements",
     "from[row * from_step", "from[row * to_step"),
    ("a sum of overlapping chunks", "elements.cu", "elements",
     "first + blocks.rows < r.repeats ? first + blocks.rows : r.repeats", "r.repeats"),
    ("an update in spite of a NaN", "optimizer.cu", "optimizer",
     "        if (found_non_finite(factors.non_finite_at)) return;\n        const float g = factors.clip()",
     "        const float g = factors.clip()"),
    ("a norm of the gradients that leaves out a block", "reduce.cuh", "optimizer",
     "sums[blockIdx.x] = value;", "sums[blockIdx.x] = blockIdx.x ? value : 0;"),
    ("a loss that leaves out a block", "reduce.cuh", "loss", "i < gridDim.x; i += blockDim.x", "i < 1; i += blockDim.x"),
    ("no weight decay factor per parameter", "optimizer.cu", "optimizer",
     "return decays ? by * decays[i] : by;", "return by;"),
    ("a loss that is not looked at", "optimizer.cu", "optimizer", "if (loss && thread == 0) check(*loss, count);", ""),
    ("contrast against the mean of another image", "augment.cu", "augment", "means[k], byte(c)", "means[0], byte(c)"),
    ("an erased box with the pixels of the image", "augment.cu", "augment",
     "view.erased.has(row, column)) return 0;", "false) return 0;"),
    ("the share of a mixed image taken for that of the other", "augment.cu", "augment",
     "column, c), view.mixed_share)", "column, c), kFactor - view.mixed_share)"),
    ("a search that keeps its result", "optimizer.cu", "optimizer", "    counters[1] = 0;\n", ""),
    ("no fence before products read", "conv_hopper.cu", "conv_hopper",
     "        fence_proxy_async();\n        mbarrier_arrive_warp", "        mbarrier_arrive_warp"),
    ("no wait for products", "conv_hopper.cu", "conv_hopper", "            wgmma_wait(sum);\n", ""),
    ("a stage filled before it is free", "conv_hopper.cu", "conv_hopper",
     "(i / T::kStages + 1) % 2", "i / T::kStages % 2"),
    ("an operand's strides exchanged", "conv_hopper.cu", "conv_hopper",
     "T::kOctetBytes, T::kRowBytes);", "T::kRowBytes, T::kOctetBytes);"),
    ("no zeros to the right", "conv_hopper.cu", "conv_hopper", "i % 2 * (W + 1) * 16", "i % 2 * W * 16"),
    ("filters not turned round", "conv_hopper.cu", "conv_hopper",
     "kDgrad ? 8 - place / T::kOctets", "kDgrad ? place / T::kOctets"),
    ("channels in the wrong lanes", "conv_hopper.cu", "conv_hopper", "                transpose_quads(words);\n", ""),
    ("a residual left out", "conv_hopper.cu", "conv_hopper", "if (e.addend) {", "if (false) {"),
    ("no fence before products of a weight gradient read", "conv_grad_hopper.cu", "conv_grad_hopper",
     "        fence_proxy_async();\n        mbarrier_arrive_warp", "        mbarrier_arrive_warp"),
    ("no wait for products of a weight gradient", "conv_grad_hopper.cu", "conv_grad_hopper",
     "        wgmma_wait(outer);\n        wgmma_wait(middle);\n", ""),
    ("a stage of a weight gradient filled before it is free", "conv_grad_hopper.cu", "conv_grad_hopper",
     "(i / kStages + 1) % 2", "i / kStages % 2"),
    ("a stage of a weight gradient read before it is full", "conv_grad_hopper.cu", "conv_grad_hopper",
     "i / kStages % 2);\n        const", "(i / kStages + 1) % 2);\n        const"),
    ("strides of x exchanged in a weight gradient", "conv_grad_hopper.cu", "conv_grad_hopper",
     "descriptor(stage, T::kNextPixels, T::kOctetBytes)", "descriptor(stage, T::kOctetBytes, T::kNextPixels)"),
    ("strides of dy exchanged in a weight gradient", "conv_grad_hopper.cu", "conv_grad_hopper",
     "T::kXBytes, T::kNextPixels, T::kOctetBytes)", "T::kXBytes, T::kOctetBytes, T::kNextPixels)"),
    ("rows outside of the image in a weight gradient", "conv_grad_hopper.cu", "conv_grad_hopper",
     "select(inside(row), ", "select(true, "),
    ("no zeros to the right in a weight gradient", "conv_grad_hopper.cu", "conv_grad_hopper",
     "i % 2 * (W + 1) * 16", "i % 2 * W * 16"),
    ("a part of a weight gradient in the wrong row", "conv_grad_hopper.cu", "conv_grad_hopper", "/ C - part;", "/ C;"),
    ("half of a filter column taken twice", "conv_grad_hopper.cu", "conv_grad_hopper",
     "1 + kIndex * kHalf", "1 + 0 * kHalf"),
    ("a part of a weight gradient left out", "conv_grad_hopper.cu", "conv_grad_hopper",
     "reduce_wgrad(g, count, ", "reduce_wgrad(g, splits, "),
    ("statistics that begin with a cell that is no pixel", "conv_results.cuh", "conv_packed_hopper",
     "each = numbers[0] >= 0 ? each : 0;", ";"),
    ("zeros of a row left out", "pack_hopper.cu", "pack_hopper", "(full + stride - 1) / stride - low, small + high",
     "(full + stride - 1) / stride, small"),
    ("the last octet of packed channels taken from the one before", "pack_hopper.cu", "pack_hopper",
     "min(8 * octet, channels - 8)", "min(8 * octet, channels - 16)"),
    ("a phase of packed images taken for the first", "conv_packed_hopper.cu", "conv_packed_hopper",
     "((kDgrad ? 0 : phase) * c.chunks + chunk)", "(0 * c.chunks + chunk)"),
    ("a chunk of packed channels taken for the first", "conv_packed_hopper.cu", "conv_packed_hopper",
     "taps.place[tap]) * c.chunks + chunk;", "taps.place[tap]) * c.chunks;"),
    ("a stage of cells filled before it is free", "conv_packed_hopper.cu", "conv_packed_hopper",
     "stage_barriers.empty + stage.index, stage.parity ^ 1", "stage_barriers.empty + stage.index, stage.parity"),
    ("a slot of filters filled before it is free", "conv_packed_hopper.cu", "conv_packed_hopper",
     "slot_barriers.empty + slot.index, slot.parity ^ 1", "slot_barriers.empty + slot.index, slot.parity"),
    ("no wait for copied filters", "conv_packed_hopper.cu", "conv_packed_hopper",
     "                mbarrier_wait(slot_barriers.full + slot.index, slot.parity);\n", ""),
    ("bytes of copied cells left out", "conv_packed_hopper.cu", "conv_packed_hopper",
     "T::kOctets * c.stage_cells * 16);", "T::kOctets * c.stage_cells * 8);"),
    ("no wait for products of packed cells", "conv_packed_hopper.cu", "conv_packed_hopper",
     "wgmma_wait(sum[part]);", ";"),
    ("no barrier before results replace the stages", "conv_packed_hopper.cu", "conv_packed_hopper",
     "__syncthreads(); // both groups have read the last stage", ""),
    ("offsets of the data gradient not turned round", "conv_packed_hopper.cu", "conv_packed_hopper",
     "first + (kDgrad ? -taps.offset[tap] : taps.offset[tap])", "first + taps.offset[tap]"),
    ("cells that are no pixels counted", "conv_packed_hopper.cu", "conv_packed_hopper",
     "(p.row < rows ? min(p.column, columns) : 0)", "(p.row < rows ? p.column : 0)"),
    ("cells stored that are no pixels", "conv_packed_hopper.cu", "conv_packed_hopper",
     " || p.column >= columns) return -1;", ") return -1;"),
    ("values beyond a row in a first layer", "pack_hopper.cu", "pack_hopper",
     "at >= 0 && at < layer.row ?", "at >= 0 ?"),
    ("values of a first layer beyond the filters", "conv_grad_packed_hopper.cu", "conv_grad_packed_hopper",
     "if (channel + 8 * j + 1 < p.values) to[1]", "if (channel + 8 * j < p.values) to[1]"),
    ("a phase of x taken for the first in a weight gradient", "conv_grad_packed_hopper.cu", "conv_grad_packed_hopper",
     "p.phase[phase] * (p.channels / 8)", "p.phase[0] * (p.channels / 8)"),
    ("a halo left out in a weight gradient", "conv_grad_packed_hopper.cu", "conv_grad_packed_hopper",
     "x_cells = size + all.max_offset - all.min_offset", "x_cells = size"),
    ("no wait for products of packed gradients", "conv_grad_packed_hopper.cu", "conv_grad_packed_hopper",
     "wgmma_wait(sums[tap]);", ";"),
    ("filters of the second group taken for the first", "conv_grad_packed_hopper.cu", "conv_grad_packed_hopper",
     "kTaps == 1 ? 64 * kIndex : 0;", "0;"),
    ("statistics merged wrongly", "lane_sums.cuh", "conv_hopper",
     "d * d * float(count) * 0.5f", "d * d * float(count)"),
    ("pixels counted wrongly", "conv_hopper.cu", "conv_hopper", "(patches - of_group + 1) / 2", "patches / 2"),
    ("tiles of a block counted wrongly", "conv_hopper.cu", "conv_hopper",
     "tiles.of_block(block, int(gridDim.x))", "tiles.of_block(0, int(gridDim.x))"),
    ("no barrier before the sums of blocks are read", "conv_hopper.cu", "conv_hopper",
     "    __syncthreads();\n    if (slice > 0) return;", "    if (slice > 0) return;"),
    ("blocks left out of a reduction", "conv_hopper.cu", "conv_hopper", "block += kSlices", "block += 2 * kSlices"),
    ("a block that reduces before the others end", "conv_hopper.cu", "conv_hopper",
     "!is_last_block(arrivals + blockIdx.y, gridDim.x)", "blockIdx.x + 1 < gridDim.x"),
    ("deviations between warps left out", "conv_hopper.cu", "conv_hopper", "pixels(warp / 4) * d * d", "0 * d * d"),
    ("a row below the tile left out", "conv_hopper.cu", "conv_hopper", "(row <= T::kRows || below)", "row <= T::kRows"),
    ("each chunk of filters taken for the first", "conv_hopper.cu", "conv_hopper",
     "first_channel = int(blockIdx.y) * N;", "first_channel = int(blockIdx.y) * 0;"),
    ("coefficients of the first chunk", "conv_hopper.cu", "conv_hopper",
     "channel = int(blockIdx.y) * N + c", "channel = int(blockIdx.y) * 0 + c"),
    ("no fence before products read the filters", "conv_hopper.cu", "conv_hopper",
     "    fence_proxy_async();\n    mbarrier_arrive(barriers.consumers);", "    mbarrier_arrive(barriers.consumers);"),
    ("no wait for the filters", "conv_hopper.cu", "conv_hopper", "    mbarrier_wait(barriers.consumers, 0);\n", ""),
    ("no wait for the sums of other warps", "conv_hopper.cu", "conv_hopper",
     "    mbarrier_wait(barriers.consumers, 1);\n", ""),
    ("a gradient's sums of half of the lanes", "lane_sums.cuh", "conv_hopper",
     "sum.first += __shfl_xor_sync(kAllLanes, sum.first, lane_mask)", "sum.first += sum.first"),
    ("a sum over half of a warp", "reduce.cuh", "loss", "step = lanes / 2; step > 0; step /= 2) value +=",
     "step = lanes / 4; step > 0; step /= 2) value +="),
    ("a term of the gradient of layer norm left out", "norm.cu", "norm", "g_mean - hat * product_mean", "g_mean"),
    ("a row of layer norm normalised by another", "norm.cu", "norm", "stats[row].scale", "stats[0].scale"),
    ("all weights taken for those of the labels", "loss.cu", "loss",
     "return total() ? *total()", "return total() ? total()[1]"),
    ("weights left out of the sum of the targets", "loss.cu", "loss", "probability * target_sum", "probability"),
    ("a logit below zero taken for zero", "loss.cu", "loss", "(logits[i] < 0 ? e : 1)", "1"),
    ("a group that adds the first slabs again", "columns.cuh", "norm", "add(group * group_slabs,", "add(0,"),
    ("no barrier between the threads of a value", "conv_grad.cu", "conv_grad",
     "__syncthreads();\n    if (first > 0", "if (first > 0"),
]
ASSEMBLY_FAULTS = [
    ("the registers of a bf16 operand exchanged", "mma.cuh", "conv",
     "f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}", "f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%6,%5,%7}"),
    ("the registers of the second operand exchanged", "mma.cuh", "conv_grad",
     "{%4,%5,%6,%7}, {%8,%9}", "{%4,%5,%6,%7}, {%9,%8}"),
    ("the matrices of a load exchanged", "mma.cuh", "conv", "{%0,%1,%2,%3}, [%4]", "{%0,%2,%1,%3}, [%4]"),
    ("a load that does not transpose", "mma.cuh", "conv_grad", 'RG_LDMATRIX(ldmatrix_x4_trans, ".trans")',
     'RG_LDMATRIX(ldmatrix_x4_trans, "")'),
    ("two bf16 in the wrong order", "bf16.cuh", "conv", "bf16x2.f32 %0, %1, %2", "bf16x2.f32 %0, %2, %1"),
    ("the address of an operand not divided by 16", "hopper.cuh", "conv_hopper",
     "bytes >> 4 & 0x3fff", "bytes & 0x3fff"),
    ("a distance at the wrong bits of a descriptor", "hopper.cuh", "conv_hopper",
     "field(next_rows) << 32", "field(next_rows) << 30"),
    ("the operands of a product exchanged", "hopper.cuh", "conv_hopper",
     'RG_SUMS_16, "%16, %17", 0', 'RG_SUMS_16, "%17, %16", 0'),
    ("two sums of a product exchanged", "hopper.cuh", "conv_hopper",
     'RG_TEN() RG_TEN(1) RG_TEN(2) "%30,%31"', 'RG_TEN() RG_TEN(1) RG_TEN(2) "%31,%30"'),
    ("a product that discards the sum", "hopper.cuh", "conv_hopper",
     '", 1, 1, 1, " #transposed', '", 0, 1, 1, " #transposed'),
    ("an operand a that is not transposed", "hopper.cuh", "conv_grad_hopper", '1, 1, 1, " #transposed', '1, 1, 1, 0" '),
    ("an operand b that is not transposed", "hopper.cuh", "conv_grad_hopper", '#transposed ";"', '"0;"'),
    ("two sums of a transposed product exchanged", "hopper.cuh", "conv_grad_hopper", '%90,%91,%92', '%91,%90,%92'),
    ("the operands of a transposed product exchanged", "hopper.cuh", "conv_grad_hopper",
     '"%48, %49", 1', '"%49, %48", 1'),
    ("a bias gradient that discards its sum", "hopper.cuh", "conv_grad_hopper",
     '"%4, %5", 1', '"%4, %5, 0, 1, 1, 1, 1; //", 1'),
    ("no wait for the products", "hopper.cuh", "conv_hopper",
     'asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");', ""),
    ("a wait that leaves a product in flight", "hopper.cuh", "conv_hopper",
     "wait_group.sync.aligned 0", "wait_group.sync.aligned 1"),
    ("no fence before the products", "hopper.cuh", "conv_hopper",
     'asm volatile("wgmma.fence.sync.aligned;" ::: "memory");', ""),
    ("products that are not committed", "hopper.cuh", "conv_hopper",
     '{ asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }', "{}"),
    ("no fence between the proxies", "hopper.cuh", "conv_hopper",
     '{ asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }', "{}"),
    ("a wait for the other parity", "hopper.cuh", "conv_hopper", '"r"(parity)', '"r"(1 - parity)'),
    ("a wait that ends too soon", "hopper.cuh", "conv_hopper", "selp.b32 %0, 1, 0, over", "mov.b32 %0, 1"),
    ("an arrival too many for a barrier", "hopper.cuh", "conv_hopper", '"r"(arrivals)', '"r"(arrivals + 1)'),
    ("no arrival at a barrier", "hopper.cuh", "conv_hopper",
     'asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");', ""),
]


def run(command):
    return subprocess.run(command, capture_output=True, text=True, errors="replace")


def check():
    for name, file, _, old, _ in EXECUTOR_FAULTS + ASSEMBLY_FAULTS:
        count = (ROOT / "gpu" / file).read_text().count(old)
        if count != 1:
            sys.exit(f"plant_faults.py: {name}: expected the text once in gpu/{file}, got it {count} times; "
                     f"update the list of faults: {old!r}")


def compile_copy(command, build, folder, file, kernel, old, new):
    """Compiles the kernel file with the fault. Returns the path of the result."""
    copy = folder / "gpu"
    copy.mkdir(parents=True)
    (copy / file).write_text((ROOT / "gpu" / file).read_text().replace(old, new))
    source, result = folder / f"{kernel}{'.cu' if 'nvcc' in command[0] else '.cpp'}", folder / "result"
    source.write_text(f'#include "gpu/{kernel}.cu"\n')
    made = run([*command, "-std=c++20", f"-I{folder}", f"-I{ROOT}", str(source), "-o", str(result)])
    if made.returncode:
        sys.exit(f"plant_faults.py: {kernel}.cu with the fault does not compile:\n{made.stderr[:2000]}")
    return result


def failure_on_executor(build, folder, nvcc, file, kernel_file, *edit):
    """Returns the first failure of the tests with the fault, or None if they pass."""
    kernel = compile_copy(["c++", "-O0", "-c"], build, folder, file, kernel_file, *edit)
    objects = sorted(str(p) for p in (build / "tests" / "simt_tests.p").glob("*.o"))
    archives = sorted(str(p) for p in build.rglob("*.a"))
    libraries = run(["pkg-config", "--libs", "mpich"]).stdout.split() + ["-lpthread"]
    if nvcc:
        libraries += [f"-L{pathlib.Path(nvcc).resolve().parent.parent / 'lib64'}", "-lcudart_static", "-ldl", "-lrt"]
    linked = run(["c++", *objects, str(kernel), "-Wl,--start-group", *archives, "-Wl,--end-group",
                  *libraries, "-o", str(folder / "tests")])
    if linked.returncode:
        sys.exit(f"plant_faults.py: cannot link the tests:\n{linked.stderr[:2000]}")
    tests = "simt ops: the kernels for Hopper*" if kernel_file.endswith("hopper") else "simt ops*"
    of_file = re.findall(r"(?m)^void (\w+)\(const Call& call\)", (ROOT / "gpu" / f"{kernel_file}.cu").read_text())
    ops = ["conv2d"] if kernel_file.startswith(("conv", "linear", "pack")) else of_file or ["none"]
    result = run(["env", f"RG_SIMT_OPS={' '.join(ops)}", str(folder / "tests"), f"-tc={tests}", "--abort-after=1", "-nc"])
    if result.returncode == 0:
        return None
    lines = [line.strip() for line in result.stdout.splitlines()]
    return next((line for line in lines if line.startswith(("values:", "Error", "conv", "logged")) or "block" in line),
                f"exit status {result.returncode}")


def failure_in_interpreter(build, folder, nvcc, file, kernel, old, new):
    """Returns the first failure of the interpreter with the fault, or None if it finds none."""
    ptx = compile_copy([nvcc, "-arch=sm_90a", "-O3", "--expt-relaxed-constexpr", "-ptx"], build, folder,
                       file, kernel, old, new)
    others = [p for p in (build / "tests" / "ptx").glob("*.ptx") if p.stem != kernel]
    recorder = build / "tests" / "ptx" / "ptx_record"
    result = run([sys.executable, str(ROOT / "tests" / "ptx" / "run.py"), "--first", str(recorder), "quick", str(ptx),
                  *map(str, others)])
    return result.stdout.strip().splitlines()[-1] if result.returncode == 1 else None


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    check()
    if sys.argv[1] == "--check":
        return 0
    build = pathlib.Path(sys.argv[1]).resolve()
    if not (build / "tests" / "simt_tests").exists():
        sys.exit(f"plant_faults.py: expected tests/simt_tests in {build}, got none; "
                 f"run ninja -C {build} tests/simt_tests")
    nvcc = shutil.which("nvcc", path=os.environ.get("PATH", "") + ":/usr/local/cuda/bin")
    if not (build / "tests" / "ptx" / "ptx_record").exists():
        nvcc = None
    if not nvcc:
        print("skipped: faults in inline assembly; no nvcc, or a build without CUDA")
    def examine(fault):
        name, *edit = fault
        failure_of = failure_on_executor if fault in EXECUTOR_FAULTS else failure_in_interpreter
        with tempfile.TemporaryDirectory() as folder:
            failure = failure_of(build, pathlib.Path(folder), nvcc, *edit)
        verdict = "detected" if failure else "NOT DETECTED"
        return failure, f"{verdict}: {name} (gpu/{edit[0]}): {failure or ''}"[:230]

    words = sys.argv[2:] or [""]
    faults = [fault for fault in EXECUTOR_FAULTS + (ASSEMBLY_FAULTS if nvcc else [])
              if any(word in fault[0] for word in words)]
    undetected = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for failure, line in pool.map(examine, faults):
            print(line, flush=True)
            undetected += not failure
    return undetected > 0


sys.exit(main())
