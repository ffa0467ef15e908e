// The functions that networks are written with. Each runs a row of the op table and records on the active tape.
//
// Shapes: images [n h w c], filters [k r s c], vectors [n c], labels i32 [n]. Images may be f32 or bf16; then what is
// computed from them is bf16, too, while parameters, statistics, sums and losses stay f32, and so does the arithmetic
// (filters are rounded to bf16 as operands). The reference backend also takes f64. Errors name the op, what it
// expected and what it got.
#pragma once

#include "core/op_table.h"

namespace rg {

struct Conv {
    int64_t stride = 1;
    int64_t pad = 0;
};

/// Zero padding that keeps the extent at stride 1, for an odd kernel.
constexpr int64_t same(int64_t kernel) { return (kernel - 1) / 2; }

/// Cross-correlation: x [n h w c], w [k r s c], b [k] or undefined -> [n h' w' k].
Tensor conv2d(const Tensor& x, const Tensor& w, const Tensor& b = {}, Conv conv = {});

/// conv2d, and with it the batch statistics of its result (see channel_stats), taken while it is in cache.
struct WithStats {
    Tensor y, stats;
};
WithStats conv2d_stats(const Tensor& x, const Tensor& w, const Tensor& b = {}, Conv conv = {});

/// x [n c], w [k c], b [k] or undefined -> [n k].
Tensor linear(const Tensor& x, const Tensor& w, const Tensor& b = {});

/// Mean (row 0) and biased variance (row 1) of each channel: x [n h w c] -> [2 c].
Tensor channel_stats(const Tensor& x);

/// Batch normalisation with given statistics [2 c], then ReLU if asked (Ioffe and Szegedy, 2015). In training the
/// statistics are those of x itself (channel_stats), and the gradient takes their dependence on x into account; in
/// evaluation they are the running ones (frozen). Under Context::sync, training statistics are those of all ranks.
struct BatchNorm {
    float epsilon = 1e-5f;
    bool relu = false;
    bool frozen = false; // the statistics are constants (evaluation), not those of x
};
Tensor batch_norm(const Tensor& x, const Tensor& stats, const Tensor& gamma, const Tensor& beta,
                  BatchNorm options = {});

/// running = (1 - momentum) * running + momentum * stats, with the variance unbiased for images * pixels values per
/// channel (as PyTorch does); under Context::sync, for the images of all ranks. Both [2 c]; in place.
void update_running(const Tensor& running, const Tensor& stats, int64_t images, int64_t pixels, float momentum);

/// Statistics over all ranks of Context::sync, weighted by their shares; the same tensor when there is none.
Tensor combine_stats(const Tensor& stats);

Tensor relu(const Tensor& x);
Tensor add(const Tensor& a, const Tensor& b);
/// Element-wise conversion; x itself when it has that type already.
Tensor cast(const Tensor& x, DType to);

/// Copies elements [begin, begin + shape.numel()) of x, in the order of its memory: image i of [n h w c] begins at
/// i * h * w * c. Gradients flow through it, but not through the view that Tensor::slice() makes. The gradient of each
/// call has the size of x.
Tensor slice(const Tensor& x, int64_t begin, const Shape& shape);

/// Says how pooling treats rows and columns at the end of an image that no window covers (1 of 7 by windows of 2).
enum class Uncovered : uint8_t { error, drop };

/// Windows without padding: [n h w c] -> [n h' w' c]. Max takes the first of equal values. With a stride beyond the
/// window, the gaps between windows are no error.
Tensor max_pool2d(const Tensor& x, int64_t window, int64_t stride, Uncovered rest = Uncovered::error);
Tensor avg_pool2d(const Tensor& x, int64_t window, int64_t stride, Uncovered rest = Uncovered::error);

/// Over the last extent: [n k] -> [n k].
Tensor softmax(const Tensor& x);

/// Mean over the batch of -log softmax(logits)[label], with label smoothing (Szegedy et al., 2016); a scalar.
Tensor cross_entropy(const Tensor& logits, const Tensor& labels, float smoothing = 0);

/// Mean of the squared differences; a scalar.
Tensor mse_loss(const Tensor& prediction, const Tensor& target);

// What differs from step to step - seed, learning rate, number of the step - the following read from memory, so that a
// traced function can be replayed with other values: it takes them as tensors, inputs of its own or tensors that are
// written between the steps. Outside of a trace they may be plain numbers.

/// Inverted dropout (Srivastava et al., 2014). The mask is a function of the seed, use a fresh one each step, and of
/// `stream`, below 2^24, which tells the layers that share a seed apart.
Tensor dropout(const Tensor& x, float probability, const Tensor& seed, uint32_t stream = 0);
Tensor dropout(const Tensor& x, float probability, uint64_t seed, uint32_t stream = 0);
/// A seed as dropout reads it: i32 [2], in this machine's memory.
Tensor seed_tensor(uint64_t seed);

/// SGD with momentum over flat buffers, as PyTorch defines it: g += weight_decay * p; v = momentum * v + g;
/// p -= lr * (nesterov ? g + momentum * v : v). In place. With a tensor, f32 [1], lr is what it holds. With a place
/// that first_non_finite() has found, in a tensor as well, everything stays as it is.
struct Sgdm {
    float lr = 0.1f, momentum = 0.9f, weight_decay = 0;
    bool nesterov = false;
};
void sgdm_update(const Tensor& parameters, const Tensor& velocity, const Tensor& gradients, const Sgdm& options);
void sgdm_update(const Tensor& parameters, const Tensor& velocity, const Tensor& gradients, const Sgdm& options,
                 const Tensor& lr, const Tensor& unless_found = {});

/// Adam (Kingma and Ba, 2015) over flat buffers, as PyTorch defines it, with t the number of the step, from 1:
/// g += weight_decay * p; m = beta1 * m + (1 - beta1) * g; v = beta2 * v + (1 - beta2) * g^2;
/// p -= lr * m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + epsilon). In place; m and v begin as zeros. With a tensor,
/// f32 [2], lr and t are what it holds. With a place that first_non_finite() has found everything stays as it is.
struct Adam {
    float lr = 1e-3f;
    double beta1 = 0.9, beta2 = 0.999;
    float epsilon = 1e-8f, weight_decay = 0;
};
void adam_update(const Tensor& parameters, const Tensor& m, const Tensor& v, const Tensor& gradients,
                 const Adam& options, int64_t step);
void adam_update(const Tensor& parameters, const Tensor& m, const Tensor& v, const Tensor& gradients,
                 const Adam& options, const Tensor& lr_and_step, const Tensor& unless_found = {});

/// Views of images that are all in memory, normalised: images u8 [N h w c], up to 4 channels; which of them, i32 [n];
/// for each where its window begins, perhaps outside, and whether it is flipped left to right, i32 [n 3] (flip, y0,
/// x0); mean and standard deviation [2 c] -> [n height width c]. The bits are those of data/augment.h.
struct Window {
    int64_t height, width;
    bool reflect = false; // outside of the image: mirrored at the edge pixel; else black, byte 0
    DType dtype = DType::f32;
};
Tensor augment(const Tensor& images, const Tensor& indices, const Tensor& views, const Tensor& statistics,
               const Window& window);

/// The place of the first NaN or infinity in a flat buffer, behind which a loss may stand; -1 if there is none; i32, a
/// scalar, written into `found` if that is given. One pass over memory.
Tensor first_non_finite(const Tensor& values, const Tensor& loss = {}, const Tensor& found = {});

} // namespace rg
