// Two ways to convolve in groups. A third way is Winograd, see winograd.cpp. conv_choice.cpp chooses between them.
//
// With few channels in a group, each lane of a vector computes one channel of the result (LaneConv). A channel of the
// result multiplies c channels of its group, so there are c copies of each pixel. In copy j, lane i holds channel j of
// the group of result channel i. A depthwise convolution of f32 with as many results as channels needs no copy: it
// reads the image itself. Taps that lie in the padding are left out. So the rows and the columns of the result are
// split into stretches, whose results all use the same taps. For example, with stride 1, 3 x 3 filters and padding 1
// there are three stretches of a row: the first pixel, the last pixel, and all between them.
//
// With more channels, each group is a convolution of its own, on copies of its channels: then the products cost much
// more than the copies.
#include "core/cpu/conv_groups.h"

#include "core/cpu/conv_choice.h"
#include "core/cpu/conv_engine.h"

namespace rg::cpu {

namespace {

/// Approximate number of floats of copied pixels that a thread takes at once. They fit into its second-level cache.
/// Images with long rows need more (kLeastBand).
constexpr int64_t kBandFloats = 1 << 16;
/// The least number of rows of the result in a band, if the image has that many. A band is the rows that a thread
/// computes at once. Neighbouring bands load some rows of the image twice.
constexpr int64_t kLeastBand = 4;

/// One axis of a convolution, or of its data gradient, from a source (x or dy) to a result (y or dx).
struct ConvAxis {
    Pass pass;
    int64_t extent, results, taps; // numbers of pixels in source and result, and of taps in the filter
    int64_t stride, pad, dilation;

    /// Returns the pixel of the source that a tap multiplies for a pixel of the result, or -1 if there is none.
    int64_t source(int64_t result, int64_t tap) const {
        int64_t pixel = result * stride - pad + tap * dilation;
        if (pass == Pass::dgrad) {
            pixel = result + pad - tap * dilation;
            if (pixel % stride != 0) return -1;
            pixel /= stride;
        }
        return pixel < extent ? std::max<int64_t>(pixel, -1) : -1;
    }
    /// Returns the distance between results that use the same taps, except at the edges of the source.
    int64_t result_step() const { return pass == Pass::forward ? 1 : stride; }
    /// Returns the distance between the pixels of the source that a tap multiplies for results result_step() apart.
    int64_t source_step() const { return pass == Pass::forward ? stride : 1; }
    bool same_taps(int64_t result, int64_t other) const {
        for (int64_t tap = 0; tap < taps; ++tap)
            if ((source(result, tap) < 0) != (source(other, tap) < 0)) return false;
        return true;
    }
};

/// Results of an axis that use the same taps, ConvAxis::result_step() apart.
struct Stretch {
    int64_t first, count;
};

/// Divides the results of an axis into stretches.
class Stretches {
public:
    explicit Stretches(const ConvAxis& axis) : stretches_(axis.results) {
        const int64_t step = axis.result_step();
        for (int64_t first = 0; first < std::min(step, axis.results); ++first)
            for (int64_t result = first; result < axis.results; result += step)
                if (result == first || !axis.same_taps(result, result - step))
                    stretches_[count_++] = {result, 1};
                else
                    ++stretches_[count_ - 1].count;
    }
    const Stretch* begin() const { return stretches_; }
    const Stretch* end() const { return stretches_ + count_; }

private:
    Scratch<Stretch> stretches_;
    int64_t count_ = 0;
};

/// Prepares a convolution for the kernels isa().lanes (lanes_isa.cpp), in which each lane of a vector computes one
/// channel of the result. Packs the filters. For each band, the rows of the result that a thread computes at once,
/// copies pixels and lists the taps of the filters. The source is x [h w c] and the result y [p q k], or for
/// Pass::dgrad, dy [p q k] and dx [h w c].
class LaneConv {
public:
    LaneConv(Pass pass, const Tensor& w, const Conv& conv, const Shape& from, const Shape& to, bool to_bf16);

    /// Returns the number of rows of the result in a band. The last band of an image may have fewer.
    int64_t band() const { return band_; }
    /// Returns the number of floats that the copies of a band's pixels need.
    int64_t copied_floats() const { return source_rows(band_) * row_; }
    /// Returns the number of floats in the filters, and in their gradient: [r s c][lanes in whole vectors].
    int64_t filter_floats() const { return rows_.taps * columns_.taps * copies_ * filter_step_; }
    int64_t filter_step() const { return filter_step_; }

    /// Calls f(row, first column, stretch of the row, image) for all stretches of the rows [first, first + rows) of the
    /// result of image n. The taps of a stretch are offsets in `image`. `copied` has room for copied_floats() floats.
    template <class T, class F>
    void each_stretch(const Images<T>& images, int64_t n, int64_t first, int64_t rows, float* copied, F f) const;
    const float* filters() const { return filters_; }

private:
    /// Returns an upper bound of the number of rows of the source that `rows` rows of the result need.
    int64_t source_rows(int64_t rows) const {
        return std::min(rows_.extent, (rows - 1) * rows_.stride + (rows_.taps - 1) * rows_.dilation + 1);
    }
    void find_sources(int64_t groups);
    void pack(const Tensor& w, int64_t groups, bool to_bf16);
    /// Returns rows [begin, end) of the source as f32, with all copies of their pixels. Writes them to `copied`, unless
    /// the memory of `images` has this form already.
    template <class T>
    const float* load(const Images<T>& images, int64_t n, int64_t begin, int64_t end, float* copied) const;
    /// Lists the taps of a pixel of the result, and returns their number. The image that load() returned begins at row
    /// `begin` of the source.
    int64_t list_taps(int64_t row, int64_t column, int64_t begin, GroupedConvTap* taps) const;

    ConvAxis rows_, columns_;
    int64_t lanes_, copies_; // channels of the result; copies of each pixel
    int64_t row_;            // floats in a row of the image that load() returns
    int64_t filter_step_, band_ = 0;
    Scratch<LaneSources> sources_; // one for each vector of the copies of a pixel
    const Stretches row_stretches_, column_stretches_;
    PreparedArray<float> filters_;
};

LaneConv::LaneConv(Pass pass, const Tensor& w, const Conv& conv, const Shape& from, const Shape& to, bool to_bf16)
    : rows_{pass, from[1], to[1], w.extent(1), conv.stride.h, conv.pad.h, conv.dilation.h},
      columns_{pass, from[2], to[2], w.extent(2), conv.stride.w, conv.pad.w, conv.dilation.w},
      lanes_(to[3]),
      copies_(from[3] / conv.groups),
      row_(from[2] * copies_ * lanes_),
      filter_step_(round_up(lanes_, isa().width)),
      sources_(divide_up(copies_ * lanes_, isa().width)),
      row_stretches_(rows_),
      column_stretches_(columns_),
      filters_(filter_floats()) {
    band_ = std::min(to[1], std::max(kLeastBand, kBandFloats / (row_ * rows_.source_step())));
    find_sources(conv.groups);
    pack(w, conv.groups, to_bf16);
}

void LaneConv::find_sources(int64_t groups) {
    const int64_t lanes_per_group = lanes_ / groups, width = isa().width, count = copies_ * lanes_;
    for (int64_t i = 0; i < count; i += width) {
        int32_t channels[16], last = 0;
        LaneSources& sources = sources_[i / width] = {INT32_MAX, 0, {}};
        const int64_t lanes = std::min(width, count - i);
        for (int64_t j = 0; j < lanes; ++j) {
            channels[j] = int32_t((i + j) % lanes_ / lanes_per_group * copies_ + (i + j) / lanes_);
            sources.first = std::min(sources.first, channels[j]), last = std::max(last, channels[j]);
        }
        sources.reach = last - sources.first + 1;
        for (int64_t j = 0; j < lanes; ++j) sources.place[j] = channels[j] - sources.first;
    }
}

void LaneConv::pack(const Tensor& w, int64_t groups, bool to_bf16) {
    const int64_t c = w.extent(3), taps = rows_.taps * columns_.taps, lanes_per_group = lanes_ / groups;
    if (filters_.ready()) return;
    const float* const values = w.data<float>();
    std::fill_n(filters_.data(), filter_floats(), 0.0f);
    for (int64_t tap = 0; tap < taps * copies_; ++tap)
        for (int64_t i = 0; i < lanes_; ++i) {
            const int64_t copy = tap % copies_;
            const bool forward = rows_.pass == Pass::forward;
            const int64_t filter = forward ? i : i / lanes_per_group * copies_ + copy,
                          channel = forward ? copy : i % lanes_per_group;
            const float value = values[(filter * taps + tap / copies_) * c + channel];
            filters_[tap * filter_step_ + i] = to_bf16 ? to_float(rg::to_bf16(value)) : value;
        }
}

template <class T>
const float* LaneConv::load(const Images<T>& images, int64_t n, int64_t begin, int64_t end, float* copied) const {
    const int64_t row = images.w * images.c, pixels = (end - begin) * images.w;
    const bool permutes = copies_ > 1 || images.c != lanes_;
    if constexpr (std::is_same_v<T, float>) {
        const float* const from = images.data + n * images.values() + begin * row;
        if (!permutes) return from;
        isa().lanes->gather(from, pixels, images.c, sources_, copies_ * lanes_, copied);
    } else {
        const Scratch<float> wide(permutes ? pixels * images.c : 0);
        images.read(n, begin * row, (end - begin) * row, permutes ? wide.data() : copied);
        if (permutes) isa().lanes->gather(wide, pixels, images.c, sources_, copies_ * lanes_, copied);
    }
    return copied;
}

int64_t LaneConv::list_taps(int64_t row, int64_t column, int64_t begin, GroupedConvTap* taps) const {
    int64_t count = 0;
    const int64_t taps_in_filter = rows_.taps * columns_.taps;
    for (int64_t t = 0; t < taps_in_filter; ++t) {
        // The kernels expect the taps of a row from left to right, and prefetch below the last one.
        const int64_t tap = rows_.pass == Pass::forward ? t : taps_in_filter - 1 - t;
        const int64_t i = rows_.source(row, tap / columns_.taps), j = columns_.source(column, tap % columns_.taps);
        for (int64_t copy = 0; copy < copies_ && i >= 0 && j >= 0; ++copy)
            taps[count++] = {(i - begin) * row_ + (j * copies_ + copy) * lanes_, (tap * copies_ + copy) * filter_step_};
    }
    return count;
}

/// Returns the value of GroupedConvRow::reuse for taps, if neighbouring result pixels read the image `step` floats
/// apart.
int reuse_of_neighbours(std::span<const GroupedConvTap> taps, int64_t step) {
    for (const int reuse : {1, 2}) {
        bool fits = !taps.empty() && taps.size() % 3 == 0 && step % reuse == 0;
        for (size_t t = 1; t < taps.size(); ++t)
            fits = fits && (t % 3 == 0 || taps[t].image - taps[t - 1].image == step / reuse);
        if (fits) return reuse;
    }
    return 0;
}

template <class T, class F>
void LaneConv::each_stretch(const Images<T>& images, int64_t n, int64_t first, int64_t rows, float* copied, F f) const {
    int64_t begin = rows_.extent, end = 0; // range of all source rows that the taps reach; at first empty
    for (int64_t row = first; row < first + rows; ++row)
        for (int64_t r = 0; r < rows_.taps; ++r)
            if (const int64_t i = rows_.source(row, r); i >= 0) begin = std::min(begin, i), end = std::max(end, i + 1);
    const float* const image = begin < end ? load(images, n, begin, end, copied) : copied;
    const Scratch<GroupedConvTap> taps(rows_.taps * columns_.taps * copies_);
    const int64_t row_step = rows_.result_step(), pixel = copies_ * lanes_, step = columns_.source_step() * pixel;
    for (const Stretch& rows_alike : row_stretches_) {
        const int64_t end_row = std::min(rows_alike.first + rows_alike.count * row_step, first + rows),
                      skipped = std::max<int64_t>(0, divide_up(first - rows_alike.first, row_step)),
                      begin_row = rows_alike.first + skipped * row_step;
        for (const Stretch& columns : column_stretches_) {
            if (begin_row >= end_row) break;
            const int64_t count = list_taps(begin_row, columns.first, begin, taps);
            const GroupedConvRow lane_row{.q = columns.count,
                                          .lanes = lanes_,
                                          .count = count,
                                          .taps = taps,
                                          .step = step,
                                          .y_step = columns_.result_step() * lanes_,
                                          .reuse = reuse_of_neighbours({taps.data(), size_t(count)}, step),
                                          .next = rows_.source_step() * row_,
                                          .y_next = row_step * columns_.results * lanes_};
            const float* from = image;
            for (int64_t row = begin_row; row < end_row; row += row_step, from += rows_.source_step() * row_)
                f(row, columns.first, lane_row, from);
        }
    }
}

/// Calls f(image, first row of a band, number of rows) for bands [begin, end). The bands of all images are numbered in
/// order.
template <class F>
void each_band(const LaneConv& conv, int64_t rows, int64_t begin, int64_t end, F f) {
    const int64_t bands = divide_up(rows, conv.band());
    for (int64_t i = begin; i < end; ++i) {
        const int64_t first = i % bands * conv.band();
        f(i / bands, first, std::min(conv.band(), rows - first));
    }
}
int64_t bands_of(const LaneConv& conv, const Shape& result) { return result[0] * divide_up(result[1], conv.band()); }

/// Computes all images of `to` from those of `from`, band by band.
template <class T>
void convolve(const LaneConv& conv, const Tensor& from, const Tensor& bias, const Tensor& to) {
    constexpr bool kWide = std::is_same_v<T, float>;
    const int64_t rows = to.extent(1), lanes = to.extent(3), row_values = to.extent(2) * lanes;
    const PaddedBias padded_bias(bias, lanes);
    parallel(bands_of(conv, to.shape()), [&](int64_t task) {
        const Scratch<float> copied(conv.copied_floats()), wide(kWide ? 0 : conv.band() * row_values);
        each_band(conv, rows, task, task + 1, [&](int64_t n, int64_t first, int64_t count) {
            T* const out = stored<T>(to) + (n * rows + first) * row_values;
            float* result = wide;
            if constexpr (kWide) result = out;
            conv.each_stretch(images_of<T>(from), n, first, count, copied,
                              [&](int64_t row, int64_t column, const GroupedConvRow& lane_row, const float* image) {
                                  isa().lanes->forward(lane_row, image, conv.filters(), padded_bias.data(),
                                                       result + (row - first) * row_values + column * lanes);
                              });
            if constexpr (!kWide) isa().elements->narrow(wide, out, count * row_values);
        });
    });
}

/// Adds the gradients of bands [begin, end) to dw, which has filter_floats() floats, and to db [period_of(k)].
template <class T>
void add_gradients(const LaneConv& conv, const Tensor& x, const Tensor& dy, int64_t begin, int64_t end, float* dw,
                   float* db) {
    constexpr bool kWide = std::is_same_v<T, float>;
    const int64_t rows = dy.extent(1), k = dy.extent(3), row_values = dy.extent(2) * k, period = period_of(k);
    const Scratch<float> copied(conv.copied_floats()), wide(kWide ? 0 : conv.band() * row_values), squares(period);
    const PerChannel zero(k, [](int64_t) { return 0.0f; });
    squares.zeroed();
    each_band(conv, rows, begin, end, [&](int64_t n, int64_t first, int64_t count) {
        const T* const from = stored<T>(dy) + (n * rows + first) * row_values;
        const float* gradient = wide;
        if constexpr (kWide)
            gradient = from;
        else
            isa().elements->widen(from, wide, count * row_values);
        conv.each_stretch(images_of<T>(x), n, first, count, copied,
                          [&](int64_t row, int64_t column, const GroupedConvRow& lane_row, const float* image) {
                              isa().lanes->wgrad(lane_row, image, gradient + (row - first) * row_values + column * k,
                                                 dw);
                          });
        isa().elements->f32.channel_sums(gradient, count * row_values, period, zero, db, squares);
    });
}

/// Computes dw and dbias. The bands are summed in a fixed number of parts, which are then added in order, so that the
/// bits do not depend on the number of threads.
template <class T>
void filter_gradient(const LaneConv& conv, const Tensor& x, const Tensor& dy, const Tensor& dw, const Tensor& dbias) {
    constexpr int64_t kParts = 16;
    const int64_t k = dy.extent(3), period = period_of(k), bands = bands_of(conv, dy.shape());
    const int64_t parts = std::min(kParts, bands), filters = conv.filter_floats(), floats = filters + period;
    const Scratch<float> sums((parts + 1) * floats);
    sums.zeroed();
    parallel(parts, [&](int64_t part) {
        float* const dw_part = sums + (part + 1) * floats;
        add_gradients<T>(conv, x, dy, bands * part / parts, bands * (part + 1) / parts, dw_part, dw_part + filters);
    });
    for (int64_t part = 1; part <= parts; ++part) isa().elements->f32.add(sums, sums + part * floats, sums, floats);
    const int64_t taps = dw.numel() / k;
    float *const weights = dw.data<float>(), *const biases = dbias.data<float>();
    for (int64_t i = 0; i < k; ++i) {
        biases[i] = 0;
        for (int64_t lane = i; lane < period; lane += k) biases[i] += sums[filters + lane];
        for (int64_t tap = 0; tap < taps; ++tap) weights[i * taps + tap] = sums[tap * conv.filter_step() + i];
    }
}

/// The channels of one group of a tensor [n h w c], which may be undefined, as a tensor of their own.
class GroupChannels {
public:
    GroupChannels(const Tensor& all, int64_t groups) : all_(all), memory_(all.defined() ? all.bytes() / groups : 0) {
        if (!all.defined()) return;
        const Shape& s = all.shape();
        group = Tensor::borrow(memory_, {s[0], s[1], s[2], s[3] / groups}, all.dtype());
    }
    Tensor group;
    /// Copy the channels of group number i: read() from the tensor to `group`, write() back.
    void read(int64_t i) const { copy(i, true); }
    void write(int64_t i) const { copy(i, false); }

private:
    void copy(int64_t i, bool read) const {
        if (!all_.defined()) return;
        const int64_t size = group.extent(3) * size_of(all_.dtype()), step = all_.extent(3) * size_of(all_.dtype());
        const int64_t pixels = all_.extent(1) * all_.extent(2);
        parallel(all_.extent(0), [&](int64_t image) {
            std::byte* own = group.bytes_data() + image * pixels * size;
            std::byte* whole = all_.bytes_data() + image * pixels * step + i * size;
            for (int64_t pixel = 0; pixel < pixels; ++pixel, own += size, whole += step)
                std::memcpy(read ? own : whole, read ? whole : own, size_t(size));
        });
    }
    Tensor all_;
    Scratch<std::byte> memory_;
};

/// Returns the filters or biases of group number `group`; the first axis of `t` counts filters. Returns an undefined or
/// empty tensor as it is.
Tensor filters_of_group(const Tensor& t, int64_t group, int64_t groups) {
    if (!t.defined() || t.numel() == 0) return t;
    const int64_t k = t.extent(0) / groups;
    const Shape part = t.shape().rank() == 1 ? Shape{k} : Shape{k, t.extent(1), t.extent(2), t.extent(3)};
    return t.slice(group * part.numel(), part);
}

} // namespace

void lanes::conv2d(const Call& call) {
    using O = Conv2dOp;
    const auto& attrs = call.attrs.as<O>();
    const Tensor &x = call.in[O::x], &w = call.in[O::w], &b = call.in[O::bias], &y = call.out[O::y];
    with_stored(x, [&]<class T>(T) {
        const LaneConv engine(Pass::forward, w, attrs.conv, x.shape(), y.shape(), x.dtype() == DType::bf16);
        convolve<T>(engine, x, b, y);
    });
    if (attrs.with_stats) op::channel_stats->cpu({{}, {{y}}, {{call.out[O::stats]}}});
}

void lanes::conv2d_grad(const Call& call) {
    using O = Conv2dGradOp;
    const auto& attrs = call.attrs.as<O>();
    const Tensor &dy = call.in[O::dy], &x = call.in[O::x], &w = call.in[O::w], &dx = call.out[O::dx];
    with_stored(dy, [&]<class T>(T) {
        if (attrs.filters)
            filter_gradient<T>(LaneConv(Pass::forward, w, attrs.conv, x.shape(), dy.shape(), false), x, dy,
                               call.out[O::dw], call.out[O::dbias]);
        if (attrs.data)
            convolve<T>(LaneConv(Pass::dgrad, w, attrs.conv, dy.shape(), dx.shape(), dy.dtype() == DType::bf16), dy, {},
                        dx);
    });
}

void group_by_group::conv2d(const Call& call) {
    using O = Conv2dOp;
    O attrs = call.attrs.as<O>();
    const Tensor &w = call.in[O::w], &b = call.in[O::bias], &y = call.out[O::y];
    const int64_t groups = attrs.conv.groups;
    const GroupChannels x_group(call.in[O::x], groups), y_group(y, groups);
    attrs.conv.groups = 1, attrs.with_stats = false;
    for (int64_t i = 0; i < groups; ++i) {
        Tensor in[kMaxInputs], out[2] = {y_group.group, {}};
        in[O::x] = x_group.group, in[O::w] = filters_of_group(w, i, groups),
        in[O::bias] = filters_of_group(b, i, groups);
        x_group.read(i);
        op::conv2d->cpu({attrs, in, out});
        y_group.write(i);
    }
    if (call.attrs.as<O>().with_stats) op::channel_stats->cpu({{}, {{y}}, {{call.out[O::stats]}}});
}

void group_by_group::conv2d_grad(const Call& call) {
    using O = Conv2dGradOp;
    O attrs = call.attrs.as<O>();
    const int64_t groups = attrs.conv.groups;
    attrs.conv.groups = 1;
    const GroupChannels dy_group(call.in[O::dy], groups), x_group(attrs.filters ? call.in[O::x] : Tensor(), groups),
        dx_group(attrs.data ? call.out[O::dx] : Tensor(), groups);
    for (int64_t i = 0; i < groups; ++i) {
        Tensor in[kMaxInputs], out[kMaxOutputs];
        in[O::dy] = dy_group.group, in[O::x] = x_group.group, in[O::w] = filters_of_group(call.in[O::w], i, groups);
        out[O::dw] = filters_of_group(call.out[O::dw], i, groups),
        out[O::dbias] = filters_of_group(call.out[O::dbias], i, groups), out[O::dx] = dx_group.group;
        dy_group.read(i), x_group.read(i);
        op::conv2d_grad->cpu({attrs, in, out});
        dx_group.write(i);
    }
}

} // namespace rg::cpu
