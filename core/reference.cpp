// Defines every op by plain loops. Values and sums are double, and are rounded once to the type of the result (f32,
// bf16 or f64).
//
// The loops follow the formulas, so that a reader can check them; they are not fast. Tests compare each backend with
// these loops, and check the gradients here against finite differences.
#include "core/context.h"
#include "core/kernels.h"
#include "core/rng.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace rg::ref {

namespace {

using Values = std::vector<double>;

Values read(const Tensor& t) {
    const Tensor wide = t.to(DType::f64);
    const auto span = wide.span<double>();
    return {span.begin(), span.end()};
}

/// Returns the filters, rounded to bf16 if the activations x are bf16.
Values read_filters(const Tensor& w, const Tensor& x) { return read(x.dtype() == DType::bf16 ? w.to(DType::bf16) : w); }

void write(const Tensor& t, const Values& values) {
    const Tensor narrow = Tensor::of<double>(t.shape(), values).to(t.dtype());
    if (t.bytes()) std::copy_n(narrow.bytes_data(), t.bytes(), t.bytes_data());
}

/// Computes the flat index of an element in a tensor of four extents.
struct Index4 {
    explicit Index4(const Shape& s) : b(s[1]), c(s[2]), d(s[3]) {}
    size_t operator()(int64_t i, int64_t j, int64_t k, int64_t l) const {
        return size_t(((i * b + j) * c + k) * d + l);
    }
    int64_t b, c, d;
};

/// Calls f(y index, x index, w index) for every product y[n p q k] += x[n h w c] * w[k r s c] of a convolution.
template <class F>
void for_each_product(const Shape& x, const Shape& w, const Shape& y, const Attrs& a, F f) {
    const Index4 xi(x), wi(w), yi(y);
    for (int64_t n = 0; n < y[0]; ++n)
        for (int64_t p = 0; p < y[1]; ++p)
            for (int64_t q = 0; q < y[2]; ++q)
                for (int64_t k = 0; k < y[3]; ++k)
                    for (int64_t r = 0; r < w[1]; ++r)
                        for (int64_t s = 0; s < w[2]; ++s) {
                            const int64_t h = p * a.stride - a.pad + r, v = q * a.stride - a.pad + s;
                            if (h < 0 || h >= x[1] || v < 0 || v >= x[2]) continue;
                            const size_t y_index = yi(n, p, q, k), x_index = xi(n, h, v, 0), w_index = wi(k, r, s, 0);
                            for (size_t c = 0; c < size_t(x[3]); ++c) f(y_index, x_index + c, w_index + c);
                        }
}

/// Calls f(y index, x index, position in the window) for every element of every pooling window.
template <class F>
void for_each_window(const Shape& x, const Shape& y, const Attrs& a, F f) {
    const Index4 xi(x), yi(y);
    for (int64_t n = 0; n < y[0]; ++n)
        for (int64_t p = 0; p < y[1]; ++p)
            for (int64_t q = 0; q < y[2]; ++q)
                for (int64_t c = 0; c < y[3]; ++c)
                    for (int64_t r = 0; r < a.window; ++r)
                        for (int64_t s = 0; s < a.window; ++s)
                            f(yi(n, p, q, c), xi(n, p * a.stride + r, q * a.stride + s, c), r * a.window + s);
}

/// Returns [2 c]: the mean and the biased variance of each channel, in two passes over x.
Values moments(const Values& x, size_t channels) {
    Values stats(2 * channels, 0.0);
    const double count = double(x.size() / channels);
    if (count == 0) return stats;
    for (size_t i = 0; i < x.size(); ++i) stats[i % channels] += x[i] / count;
    for (size_t i = 0; i < x.size(); ++i) {
        const double d = x[i] - stats[i % channels];
        stats[channels + i % channels] += d * d / count;
    }
    return stats;
}

/// Batch norm of single elements: hat(i) is x^ = (x - mean) / sqrt(variance + epsilon), value(i) is gamma * x^ + beta.
struct Normalised {
    Normalised(const Tensor& x, const Tensor& stats, const Tensor& gamma, const Tensor& beta, const Attrs& a)
        : x_(read(x)), stats_(read(stats)), gamma_(read(gamma)), beta_(read(beta)), epsilon_(a.epsilon) {}
    size_t size() const { return x_.size(); }
    size_t channels() const { return gamma_.size(); }
    double scale(size_t c) const { return 1 / std::sqrt(stats_[channels() + c] + epsilon_); }
    double hat(size_t i) const { return (x_[i] - stats_[i % channels()]) * scale(i % channels()); }
    double value(size_t i) const { return gamma_[i % channels()] * hat(i) + beta_[i % channels()]; }
    double gamma(size_t c) const { return gamma_[c]; }

private:
    Values x_, stats_, gamma_, beta_;
    double epsilon_;
};

} // namespace

void conv2d(const Call& call) {
    const Tensor &x = call.in[0], &w = call.in[1], &b = call.in[2], &y = call.out[0];
    const Values xv = read(x), wv = read_filters(w, x);
    Values yv(size_t(y.numel()), 0.0);
    if (b.defined()) {
        const Values bv = read(b);
        for (size_t i = 0; i < yv.size(); ++i) yv[i] = bv[i % bv.size()];
    }
    for_each_product(x.shape(), w.shape(), y.shape(), call.attrs,
                     [&](size_t yi, size_t xi, size_t wi) { yv[yi] += xv[xi] * wv[wi]; });
    write(y, yv);
    if (call.attrs.stats) write(call.out[1], moments(yv, size_t(y.extent(3))));
}

void conv2d_dgrad(const Call& call) {
    const Tensor &dy = call.in[0], &w = call.in[1], &dx = call.out[0];
    const Values dyv = read(dy), wv = read_filters(w, dy);
    Values dxv(size_t(dx.numel()), 0.0);
    for_each_product(dx.shape(), w.shape(), dy.shape(), call.attrs,
                     [&](size_t yi, size_t xi, size_t wi) { dxv[xi] += dyv[yi] * wv[wi]; });
    if (call.in[2].defined()) {
        const Values addend = read(call.in[2]);
        for (size_t i = 0; i < dxv.size(); ++i) dxv[i] += addend[i];
    }
    write(dx, dxv);
}

void conv2d_wgrad(const Call& call) {
    const Tensor &dy = call.in[0], &x = call.in[1], &dw = call.out[0], &db = call.out[1];
    const Values dyv = read(dy), xv = read(x);
    Values dwv(size_t(dw.numel()), 0.0), dbv(size_t(db.numel()), 0.0);
    for_each_product(x.shape(), dw.shape(), dy.shape(), call.attrs,
                     [&](size_t yi, size_t xi, size_t wi) { dwv[wi] += dyv[yi] * xv[xi]; });
    for (size_t i = 0; i < dyv.size(); ++i) dbv[i % dbv.size()] += dyv[i];
    write(dw, dwv);
    write(db, dbv);
}

void channel_stats(const Call& call) { write(call.out[0], moments(read(call.in[0]), size_t(call.in[0].extent(3)))); }

void batch_norm(const Call& call) {
    const Normalised x(call.in[0], call.in[1], call.in[2], call.in[3], call.attrs);
    Values y(x.size());
    for (size_t i = 0; i < y.size(); ++i) y[i] = call.attrs.relu && x.value(i) <= 0 ? 0 : x.value(i); // keeps a NaN
    write(call.out[0], y);
}

void batch_norm_sums(const Call& call) {
    const Values dy = read(call.in[0]);
    const Normalised x(call.in[1], call.in[2], call.in[3], call.in[4], call.attrs);
    Values dgamma(x.channels(), 0.0), dbeta(x.channels(), 0.0);
    for (size_t i = 0; i < dy.size(); ++i) {
        if (call.attrs.relu && x.value(i) <= 0) continue;
        dgamma[i % x.channels()] += dy[i] * x.hat(i);
        dbeta[i % x.channels()] += dy[i];
    }
    write(call.out[0], dgamma);
    write(call.out[1], dbeta);
}

// The closed form of Ioffe and Szegedy (2015), section 3. With the sums of dy and dy * x^ over all values of a channel,
// dx = gamma / sigma * (dy - sum(dy) / count - x^ * sum(dy x^) / count). If ranks share statistics, the loss is the sum
// of f_j * (loss of rank j), where f_j is the rank's fraction of the mini-batch. Here `count` is this rank's own count.
// rank_sums weights the sums by f_j; so dx is the gradient of this rank's loss.
void batch_norm_grad(const Call& call) {
    const Values dy = read(call.in[0]), sums = read(call.in[5]);
    const Normalised x(call.in[1], call.in[2], call.in[3], call.in[4], call.attrs);
    const size_t channels = x.channels();
    const double count = double(x.size() / channels);
    Values dx(x.size());
    for (size_t i = 0; i < dx.size(); ++i) {
        const size_t c = i % channels;
        const double g = call.attrs.relu && x.value(i) <= 0 ? 0 : dy[i];
        dx[i] = x.gamma(c) * x.scale(c) * (g - sums[channels + c] / count - x.hat(i) * sums[c] / count);
    }
    write(call.out[0], dx);
}

// Sums f * mean and f * (variance + mean^2) over the ranks, where f is a rank's fraction of the mini-batch. Double is
// accurate enough to do without a second all-reduce of the deviations.
void rank_stats(const Call& call) {
    Values moments = read(call.in[0]);
    SyncGroup* group = context().sync;
    const size_t c = moments.size() / 2;
    if (group) {
        for (size_t i = 0; i < c; ++i) {
            moments[c + i] = group->share * (moments[c + i] + moments[i] * moments[i]);
            moments[i] *= group->share;
        }
        group->sum(moments);
        for (size_t i = 0; i < c; ++i) moments[c + i] = std::max(0.0, moments[c + i] - moments[i] * moments[i]);
    }
    write(call.out[0], moments);
}

// Sums dgamma and dbeta over all ranks, weighted by each rank's fraction; batch_norm_grad explains why.
void rank_sums(const Call& call) {
    const Values dgamma = read(call.in[0]), dbeta = read(call.in[1]);
    SyncGroup* group = context().sync;
    const double share = group ? group->share : 1;
    Values sums;
    for (const Values* values : {&dgamma, &dbeta})
        for (const double v : *values) sums.push_back(share * v);
    if (group) group->sum(sums);
    write(call.out[0], sums);
}

void running_update(const Call& call) {
    Values running = read(call.in[0]);
    const Values stats = read(call.in[1]);
    const SyncGroup* group = context().sync;
    const int64_t images = group ? group->samples : call.attrs.height;
    const double count = double(images * call.attrs.width), momentum = call.attrs.rate;
    for (size_t i = 0; i < running.size(); ++i) {
        const bool is_variance = i >= running.size() / 2;
        const double unbias = is_variance && count > 1 ? count / (count - 1) : 1;
        running[i] = (1 - momentum) * running[i] + momentum * stats[i] * unbias;
    }
    write(call.out[0], running);
}

void relu(const Call& call) {
    Values x = read(call.in[0]);
    for (double& v : x) v = v <= 0 ? 0 : v; // keeps a NaN
    write(call.out[0], x);
}

void cast(const Call& call) {
    const Tensor converted = call.in[0].to(call.attrs.dtype);
    if (converted.bytes()) std::copy_n(converted.bytes_data(), converted.bytes(), call.out[0].bytes_data());
}

void slice(const Call& call) {
    const Values x = read(call.in[0]);
    const auto first = x.begin() + call.attrs.begin;
    write(call.out[0], Values(first, first + call.out[0].numel()));
}

void slice_grad(const Call& call) {
    const Values dy = read(call.in[0]);
    Values dx(size_t(call.out[0].numel()), 0.0);
    std::copy(dy.begin(), dy.end(), dx.begin() + call.attrs.begin);
    write(call.out[0], dx);
}

void relu_grad(const Call& call) {
    Values dy = read(call.in[0]);
    const Values y = read(call.in[1]);
    for (size_t i = 0; i < dy.size(); ++i)
        if (y[i] <= 0) dy[i] = 0;
    write(call.out[0], dy);
}

void add(const Call& call) {
    Values a = read(call.in[0]);
    const Values b = read(call.in[1]);
    for (size_t i = 0; i < a.size(); ++i) a[i] += b[i];
    write(call.out[0], a);
}

void max_pool2d(const Call& call) {
    const Values x = read(call.in[0]);
    Values y(size_t(call.out[0].numel()), -std::numeric_limits<double>::infinity()), position(y.size(), 0.0);
    for_each_window(call.in[0].shape(), call.out[0].shape(), call.attrs, [&](size_t yi, size_t xi, int64_t tap) {
        // A NaN counts as the largest value, so that pooling does not hide a diverged network.
        if (x[xi] > y[yi] || (std::isnan(x[xi]) && !std::isnan(y[yi]))) y[yi] = x[xi], position[yi] = double(tap);
    });
    write(call.out[0], y);
    write(call.out[1], position);
}

void max_pool2d_grad(const Call& call) {
    const Values dy = read(call.in[0]), position = read(call.in[1]);
    Values dx(size_t(call.out[0].numel()), 0.0);
    for_each_window(call.out[0].shape(), call.in[0].shape(), call.attrs, [&](size_t yi, size_t xi, int64_t tap) {
        if (double(tap) == position[yi]) dx[xi] += dy[yi];
    });
    write(call.out[0], dx);
}

void avg_pool2d(const Call& call) {
    const Values x = read(call.in[0]);
    Values y(size_t(call.out[0].numel()), 0.0);
    const double scale = 1 / double(call.attrs.window * call.attrs.window);
    for_each_window(call.in[0].shape(), call.out[0].shape(), call.attrs,
                    [&](size_t yi, size_t xi, int64_t) { y[yi] += scale * x[xi]; });
    write(call.out[0], y);
}

void avg_pool2d_grad(const Call& call) {
    const Values dy = read(call.in[0]);
    Values dx(size_t(call.out[0].numel()), 0.0);
    const double scale = 1 / double(call.attrs.window * call.attrs.window);
    for_each_window(call.out[0].shape(), call.in[0].shape(), call.attrs,
                    [&](size_t yi, size_t xi, int64_t) { dx[xi] += scale * dy[yi]; });
    write(call.out[0], dx);
}

namespace {

/// Returns the softmax of each row of k values. Subtracts the maximum first, so that exp() does not overflow.
Values softmax_rows(Values x, size_t k) {
    for (size_t row = 0; row + k <= x.size() && k; row += k) {
        const double largest = *std::max_element(&x[row], &x[row] + k);
        double sum = 0;
        for (size_t j = row; j < row + k; ++j) sum += x[j] = std::exp(x[j] - largest);
        for (size_t j = row; j < row + k; ++j) x[j] /= sum;
    }
    return x;
}

/// Returns the target probability of class j. The label gets 1 - smoothing; all k classes share `smoothing` equally.
double target(size_t j, int32_t label, double smoothing, size_t k) {
    return (int32_t(j) == label ? 1 - smoothing : 0) + smoothing / double(k);
}

} // namespace

void softmax(const Call& call) { write(call.out[0], softmax_rows(read(call.in[0]), size_t(call.in[0].extent(1)))); }

void softmax_grad(const Call& call) {
    const Values dy = read(call.in[0]), y = read(call.in[1]);
    const size_t k = size_t(call.in[1].extent(1));
    Values dx(y.size());
    for (size_t row = 0; row < y.size(); row += k) {
        double dot = 0;
        for (size_t j = row; j < row + k; ++j) dot += dy[j] * y[j];
        for (size_t j = row; j < row + k; ++j) dx[j] = y[j] * (dy[j] - dot);
    }
    write(call.out[0], dx);
}

void cross_entropy(const Call& call) {
    const Values x = read(call.in[0]);
    const auto labels = call.in[1].span<int32_t>();
    const size_t k = size_t(call.in[0].extent(1));
    double loss = 0;
    for (size_t n = 0; n < labels.size(); ++n) {
        const double largest = *std::max_element(&x[n * k], &x[n * k] + k);
        double sum = 0;
        for (size_t j = 0; j < k; ++j) sum += std::exp(x[n * k + j] - largest);
        for (size_t j = 0; j < k; ++j)
            loss -= target(j, labels[n], call.attrs.rate, k) * (x[n * k + j] - largest - std::log(sum));
    }
    write(call.out[0], {labels.empty() ? 0 : loss / double(labels.size())});
    write(call.out[1], softmax_rows(x, k));
}

void cross_entropy_grad(const Call& call) {
    Values p = read(call.in[0]);
    const auto labels = call.in[1].span<int32_t>();
    const size_t k = size_t(call.in[0].extent(1));
    const double scale = read(call.in[2])[0] / double(labels.size());
    for (size_t i = 0; i < p.size(); ++i) p[i] = scale * (p[i] - target(i % k, labels[i / k], call.attrs.rate, k));
    write(call.out[0], p);
}

void mse_loss(const Call& call) {
    const Values a = read(call.in[0]), b = read(call.in[1]);
    double sum = 0;
    for (size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
    write(call.out[0], {a.empty() ? 0 : sum / double(a.size())});
}

void mse_loss_grad(const Call& call) {
    Values a = read(call.in[0]);
    const Values b = read(call.in[1]);
    const double scale = 2 * read(call.in[2])[0] / double(a.size());
    for (size_t i = 0; i < a.size(); ++i) a[i] = scale * (a[i] - b[i]);
    write(call.out[0], a);
}

void dropout(const Call& call) {
    Values x = read(call.in[0]);
    const double keep = 1 - double(call.attrs.rate);
    for (size_t i = 0; i < x.size(); ++i) {
        Rng random(seed_of(call.in[1].data<int32_t>()), Purpose::dropout, call.attrs.stream, i);
        x[i] = random.uniform() < call.attrs.rate ? 0 : x[i] / keep;
    }
    write(call.out[0], x);
}

void sgdm_update(const Call& call) {
    Values p = read(call.in[0]), v = read(call.in[1]);
    const Values gradient = read(call.in[2]);
    const double lr = read(call.in[3])[0];
    const Attrs& a = call.attrs;
    for (size_t i = 0; i < p.size() && !found_non_finite(call.in[4]); ++i) {
        const double g = gradient[i] + double(a.weight_decay) * p[i];
        v[i] = double(a.momentum) * v[i] + g;
        p[i] -= lr * (a.nesterov ? g + double(a.momentum) * v[i] : v[i]);
    }
    write(call.out[0], p);
    write(call.out[1], v);
}

void adam_update(const Call& call) {
    Values p = read(call.in[0]), m = read(call.in[1]), v = read(call.in[2]);
    const Values gradient = read(call.in[3]), lr_and_step = read(call.in[4]);
    const double lr = lr_and_step[0], step = lr_and_step[1];
    const Attrs& a = call.attrs;
    for (size_t i = 0; i < p.size() && !found_non_finite(call.in[5]); ++i) {
        const double g = gradient[i] + double(a.weight_decay) * p[i];
        m[i] = a.beta1 * m[i] + (1 - a.beta1) * g;
        v[i] = a.beta2 * v[i] + (1 - a.beta2) * g * g;
        const double mean = m[i] / (1 - std::pow(a.beta1, step)), square = v[i] / (1 - std::pow(a.beta2, step));
        p[i] -= lr * mean / (std::sqrt(square) + double(a.epsilon));
    }
    write(call.out[0], p);
    write(call.out[1], m);
    write(call.out[2], v);
}

void first_non_finite(const Call& call) {
    Values x = read(call.in[0]);
    if (call.in[1].defined()) x.push_back(read(call.in[1])[0]);
    size_t i = 0;
    while (i < x.size() && std::isfinite(x[i])) ++i;
    write(call.out[0], {i < x.size() ? double(i) : -1});
}

void augment(const Call& call) {
    const Tensor &images = call.in[0], &y = call.out[0];
    const Values pixels = read(images), index = read(call.in[1]), view = read(call.in[2]), stats = read(call.in[3]);
    const Index4 image_index(images.shape()), y_index(y.shape());
    const int64_t height = images.extent(1), width = images.extent(2), channels = images.extent(3);
    Values out(size_t(y.numel()));
    for (int64_t n = 0; n < y.extent(0); ++n)
        for (int64_t h = 0; h < y.extent(1); ++h)
            for (int64_t w = 0; w < y.extent(2); ++w)
                for (int64_t c = 0; c < channels; ++c) {
                    const double* const v = &view[size_t(3 * n)];
                    int64_t row = int64_t(v[1]) + h, column = int64_t(v[2]) + (v[0] != 0 ? y.extent(2) - 1 - w : w);
                    const bool outside = row < 0 || row >= height || column < 0 || column >= width;
                    row = height - 1 - std::abs(height - 1 - std::abs(row)); // mirrors once
                    column = width - 1 - std::abs(width - 1 - std::abs(column));
                    const double byte = outside && !call.attrs.reflect
                                            ? 0
                                            : pixels[image_index(int64_t(index[size_t(n)]), row, column, c)];
                    out[y_index(n, h, w, c)] = (byte / 255 - stats[size_t(c)]) / stats[size_t(channels + c)];
                }
    write(y, out);
}

// ---- fused ops: each calls the ops that it consists of ------------------------------------------------------------

namespace {

using Tensors = std::vector<Tensor>;

Tensor empty_like(const Tensor& t) { return Tensor::empty(t.shape(), t.dtype()); }

/// Returns the batch norm of x, optionally with ReLU; `in` is {x, stats, gamma, beta}. Returns x if stats is undefined.
Tensor normalised(std::span<const Tensor> in, float epsilon, bool relu) {
    if (!in[1].defined()) return in[0];
    const Tensors z{empty_like(in[0])};
    batch_norm({{.relu = relu, .epsilon = epsilon}, in, z});
    return z[0];
}

} // namespace

void norm_conv2d(const Call& call) {
    conv2d({call.attrs,
            Tensors{normalised(call.in.first(4), call.attrs.epsilon, call.attrs.relu), call.in[4], call.in[5]},
            call.out});
}

void conv2d_norm(const Call& call) {
    const Attrs &a = call.attrs, conv{.stride = a.stride, .pad = a.pad};
    const OutputSpec spec = row(Op::conv2d).infer(call.in.first(3), conv)[0];
    const Tensor y = Tensor::empty(spec.shape, spec.dtype);
    conv2d({conv, call.in.first(3), Tensors{y, {}}});
    const Tensors norm{y, call.in[3], call.in[4], call.in[5]};
    if (a.window <= 1) return batch_norm({a, norm, call.out});
    const Tensor z = empty_like(y), positions = Tensor::empty(call.out[0].shape(), DType::u8);
    batch_norm({a, norm, Tensors{z}});
    max_pool2d({{.stride = a.window, .window = a.window}, Tensors{z}, Tensors{call.out[0], positions}});
}

void conv2d_norm_grad(const Call& call) {
    const Attrs& a = call.attrs;
    const Tensor &x = call.in[6], &w = call.in[10], dy = empty_like(call.in[1]);
    batch_norm_grad({a, call.in.first(6), Tensors{dy}});
    Attrs conv{.stride = a.stride, .pad = a.pad, .height = w.extent(1), .width = w.extent(2)};
    conv2d_wgrad({conv, Tensors{dy, normalised(call.in.subspan(6, 4), a.epsilon, a.input_relu)}, call.out.first(2)});
    if (!call.out[2].defined()) return;
    conv.height = x.extent(1), conv.width = x.extent(2);
    conv2d_dgrad({conv, Tensors{dy, w, call.in[11]}, call.out.subspan(2, 1)});
    if (a.stats)
        batch_norm_sums({{.relu = a.input_relu, .epsilon = a.epsilon},
                         Tensors{call.out[2], x, call.in[7], call.in[8], call.in[9]},
                         call.out.subspan(3, 2)});
}

void norm_max_pool2d(const Call& call) {
    max_pool2d({call.attrs, Tensors{normalised(call.in, call.attrs.epsilon, call.attrs.relu)}, call.out});
}

void norm_avg_pool2d(const Call& call) {
    avg_pool2d({call.attrs, Tensors{normalised(call.in, call.attrs.epsilon, call.attrs.relu)}, call.out});
}

void norm_pool2d_grad(const Call& call) {
    if (call.in[1].defined())
        max_pool2d_grad({call.attrs, call.in.first(2), call.out.first(1)});
    else
        avg_pool2d_grad({call.attrs, call.in.first(1), call.out.first(1)});
    batch_norm_sums(
        {call.attrs, Tensors{call.out[0], call.in[2], call.in[3], call.in[4], call.in[5]}, call.out.subspan(1)});
}

void norm_add(const Call& call) {
    const float epsilon = call.attrs.epsilon;
    const Tensors parts{normalised(call.in.first(4), epsilon, false), normalised(call.in.subspan(4), epsilon, false)};
    const Tensors sum{empty_like(call.out[0])};
    add({call.attrs, parts, sum});
    if (call.attrs.relu)
        relu({call.attrs, sum, call.out});
    else
        add({call.attrs, parts, call.out});
}

void norm_add_grad(const Call& call) {
    const Attrs norm{.epsilon = call.attrs.epsilon};
    relu_grad({norm, call.in.first(2), call.out.first(1)});
    for (size_t b : {size_t(0), size_t(1)}) {
        const auto x = call.in.subspan(2 + 4 * b, 4);
        if (x[0].defined())
            batch_norm_sums({norm, Tensors{call.out[0], x[0], x[1], x[2], x[3]}, call.out.subspan(1 + 2 * b, 2)});
    }
}

void cross_entropy_with_grad(const Call& call) {
    cross_entropy({call.attrs, call.in.first(2), call.out});
    cross_entropy_grad({call.attrs, Tensors{call.out[1], call.in[1], call.in[2]}, call.out.subspan(1)});
}

} // namespace rg::ref
