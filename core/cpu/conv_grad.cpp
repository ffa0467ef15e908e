// The gradients of a convolution: that of the filters alone, or both, joined with the gradient of the normalisation
// that follows and the sums for the one before.
//
// An image passes once: the gradient at the convolution's result is made in scratch (batch_norm_grad, if joined), its
// products with the input go to the filters' gradient, the data gradient is convolved from it, and summed up together
// with the input while both are in cache. Filters' gradients are summed per fixed group of images and then over the
// groups in order: the bits depend on neither the number of threads nor their timing.
#include "core/cpu/dense.h"
#include "core/cpu/tile_engine.h"
#include "core/kernels.h"

#include <optional>

namespace rg::cpu {

namespace {

struct Geometry {
    Geometry(const Tensor& x, const Tensor& dy, const Tensor& dw, const Attrs& a)
        : images(x.extent(0)),
          c(x.extent(3)),
          k(dy.extent(3)),
          r(dw.extent(1)),
          s(dw.extent(2)),
          p(dy.extent(1)),
          q(dy.extent(2)),
          h(x.extent(1)),
          w(x.extent(2)),
          pad(a.pad),
          stride(a.stride),
          taps(s * c),
          pixels(joined_pixels({nullptr, k, r, s, c, 0, 0, 0, 0}, q, stride, isa().width)),
          wide(round_up(pixels * k, isa().width)),
          row_taps((s + (pixels - 1) * stride) * c),
          winograd(pixels == 1 && stride == 1 && Winograd::fits(k, r, s, c)) {}
    int64_t x_values() const { return h * w * c; }
    int64_t dy_values() const { return p * q * k; }
    Padding x_padding() const { return {h, w, c, h + 2 * pad, w + 2 * pad, pad, pad, 1}; }

    int64_t images, c, k, r, s, p, q, h, w, pad, stride, taps;
    int64_t pixels;         // neighbours in one vector, see JoinedFilters
    int64_t wide, row_taps; // their filters in whole vectors, taps of a row of their common window
    bool winograd;          // not where pixels are joined: their transforms would take longer than they save
};

/// Sums a group's part of dw [r taps wide] and db [period].
class FilterGradient {
public:
    explicit FilterGradient(const Geometry& g)
        : g_(g), padding_(g.x_padding()), winograd_(padding_, g.p, g.q, g.k), direct_{g.p,
                                                                                      g.q / g.pixels,
                                                                                      g.wide,
                                                                                      g.r,
                                                                                      g.row_taps,
                                                                                      padding_.columns * g.c,
                                                                                      g.stride,
                                                                                      g.pixels * g.stride * g.c,
                                                                                      0,
                                                                                      0} {}

    int64_t images_at_once() const { return g_.winograd ? winograd_.images_at_once() : 1; }
    /// Values of a group's sums: [r row_taps wide].
    int64_t sums() const { return g_.r * g_.row_taps * g_.wide; }
    /// Values that are summed beside them, zero at first, until end().
    int64_t transformed() const { return g_.winograd ? winograd_.floats_of_gradient() : 0; }

    template <class T>
    void add(const Images<T>& x, int64_t first, int64_t count, const float* dy, float* dw, float* transformed) const {
        if (g_.winograd)
            return winograd_.accumulate([&](int64_t i, float* to) { winograd_.padding().copy(x, first + i, to); }, dy,
                                        count, transformed);
        const Scratch<float> padded(padding_.values()), widened(in_whole_vectors() ? 0 : g_.p * g_.q * g_.wide);
        for (int64_t i = 0; i < count; ++i) {
            padding_.copy(x, first + i, padded.data());
            isa().conv->wgrad(direct_, padded, in_whole_vectors(dy + i * g_.dy_values(), widened), dw);
        }
    }
    void end(float* dw, const float* transformed) const {
        if (g_.winograd) winograd_.finish(transformed, dw);
    }

    /// dw [k r taps] from the groups' sums, in order of the groups.
    void combine(int64_t groups, const float* parts, int64_t part, const Tensor& dw) const {
        // From [r row_taps wide] to [k r taps] some taps at a time, so that both sides are touched in whole cache
        // lines; of joined pixels, each has its own part of the taps and of the lanes.
        constexpr int64_t kTapsAtOnce = 16;
        float* out = dw.data<float>();
        const int64_t all = g_.r * g_.taps, pieces = (g_.taps + kTapsAtOnce - 1) / kTapsAtOnce;
        parallel(g_.r * pieces, [&](int64_t task) {
            const int64_t row = task / pieces, first = task % pieces * kTapsAtOnce;
            const int64_t count = std::min(kTapsAtOnce, g_.taps - first);
            const Scratch<float> sum(kTapsAtOnce * g_.wide);
            for (int64_t pixel = 0; pixel < g_.pixels; ++pixel) {
                const int64_t from = (row * g_.row_taps + first + pixel * g_.stride * g_.c) * g_.wide;
                sum.zeroed();
                for (int64_t group = 0; group < groups; ++group)
                    isa().elements->f32.add(sum, parts + group * part + from, sum, count * g_.wide);
                for (int64_t i = 0; i < g_.k; ++i)
                    for (int64_t tap = 0; tap < count; ++tap) {
                        float& to = out[i * all + row * g_.taps + first + tap];
                        to = (pixel ? to : 0.0f) + sum[tap * g_.wide + pixel * g_.k + i];
                    }
            }
        });
    }

private:
    /// dy as the tiles read it: whole vectors of channels, or of those of joined pixels.
    bool in_whole_vectors() const { return g_.wide == g_.pixels * g_.k; }
    const float* in_whole_vectors(const float* dy, float* widened) const {
        if (in_whole_vectors()) return dy;
        for (int64_t i = 0; i < g_.p * g_.q; ++i) {
            std::memcpy(widened + i * g_.wide, dy + i * g_.k, size_t(g_.k) * sizeof(float));
            std::fill_n(widened + i * g_.wide + g_.k, g_.wide - g_.k, 0.0f);
        }
        return widened;
    }

    Geometry g_;
    Padding padding_;
    Winograd winograd_;
    ConvImage direct_;
};

/// The same by tiles: sums [r s k c] in whole tiles.
class TileFilterSums {
public:
    explicit TileFilterSums(const Geometry& g) : tiles_(g.x_padding(), g.p, g.q, g.k, g.r, g.s, g.stride) {}
    int64_t images_at_once() const { return tiles_.images_at_once(); }
    int64_t sums() const { return tiles_.sums(); }
    int64_t transformed() const { return 0; }
    void add(const Images<uint16_t>& x, int64_t first, int64_t count, const uint16_t* dy, float* sums, float*) const {
        tiles_.add(x, first, count, dy, sums);
    }
    void end(float*, const float*) const {}
    void combine(int64_t groups, float* parts, int64_t part, const Tensor& dw) const {
        constexpr int64_t kPiece = 4096; // of the first group's sums, to which the others are added
        parallel((sums() + kPiece - 1) / kPiece, [&](int64_t task) {
            const int64_t at = task * kPiece, count = std::min(kPiece, sums() - at);
            for (int64_t group = 1; group < groups; ++group)
                isa().elements->f32.add(parts + at, parts + group * part + at, parts + at, count);
        });
        if (groups > 0)
            tiles_.finish(parts, dw);
        else
            dw.fill(0);
    }

private:
    TileFilterGradient tiles_;
};

/// Groups of images, each with a sum of its own: enough for the threads, few enough that adding up the groups' sums
/// costs little beside making them. A function of the images alone, so that the bits are.
int64_t groups_of(int64_t images) { return std::min(images, std::clamp<int64_t>(images / 8, 4, 16)); }

/// What the gradients are computed from. T: how the images are stored.
template <class T>
struct GradientInputs {
    Images<T> x;          // normalised when read, if the network does so
    const T* dy;          // gradient at the convolution's result, or with `norm` past its normalisation
    const NormGrad* norm; // null: none
    const T* y;           // with `norm`: the convolution's result
    const T* other;       // what the data gradient is added to; null: nothing
};

/// The gradient at the results of images first .. first + count, as To: where it lies, or made in `scratch`.
template <class T, class To>
const To* make_gradient(const GradientInputs<T>& in, int64_t first, int64_t count, int64_t values, To* scratch) {
    const T *const dy = in.dy + first * values, *const y = in.y ? in.y + first * values : nullptr;
    if constexpr (std::is_same_v<T, To>) {
        if (!in.norm) return dy;
        in.norm->apply(dy, y, scratch, count * values);
    } else {
        const Scratch<T> rounded(in.norm ? values : 0);
        for (int64_t i = 0; i < count; ++i) {
            if (in.norm) in.norm->apply(dy + i * values, y + i * values, rounded.data(), values);
            isa().elements->widen(in.norm ? rounded.data() : dy + i * values, scratch + i * values, values);
        }
    }
    return scratch;
}

/// To: what the kernels compute with. dx: makes the data gradient in dx_out; null: it is not wanted. sums: those of
/// the input's normalisation.
template <class To, class T, class Filters, class Dx>
void gradients(const Geometry& g, const GradientInputs<T>& in, const Filters& filters, const Dx* dx, T* dx_out,
               NormSums* sums, const Tensor& dw, const Tensor& db) {
    const int64_t groups = groups_of(g.images), period = period_of(g.k);
    const int64_t dw_floats = filters.sums(), part_floats = dw_floats + period;
    const Scratch<float> parts(groups * part_floats); // of each group: of the filters, then db [period]
    const PerChannel zero(g.k, [](int64_t) { return 0.0f; });
    parallel(groups, [&](int64_t group) {
        float *const my_dw = parts + group * part_floats, *const my_db = my_dw + dw_floats;
        std::fill_n(my_dw, part_floats, 0.0f);
        const Scratch<float> transformed(filters.transformed());
        transformed.zeroed();
        const int64_t end = g.images * (group + 1) / groups, batch = filters.images_at_once();
        const Scratch<To> made(in.norm || !std::is_same_v<T, To> ? batch * g.dy_values() : 0);
        const Scratch<float> image_db(2 * period);
        for (int64_t first = g.images * group / groups, count; first < end; first += count) {
            count = std::min(batch, end - first);
            const To* const dy = make_gradient(in, first, count, g.dy_values(), made.data());
            filters.add(in.x, first, count, dy, my_dw, transformed);
            for (int64_t i = 0; i < count; ++i) {
                float* const sum = image_db.zeroed();
                kernels<To>().channel_sums(dy + i * g.dy_values(), g.dy_values(), period, zero, sum, sum + period);
                isa().elements->f32.add(my_db, sum, my_db, period);
            }
            if (!dx) continue;
            T* const out = dx_out + first * g.x_values();
            (*dx)(Images<To>{dy, g.p, g.q, g.k}, 0, count, out);
            if (in.other) kernels<T>().add(out, in.other + first * g.x_values(), out, count * g.x_values());
            for (int64_t i = 0; sums && i < count; ++i)
                sums->add(first + i, out + i * g.x_values(), in.x.data + (first + i) * g.x_values(), g.x_values());
        }
        filters.end(my_dw, transformed);
    });
    filters.combine(groups, parts, part_floats, dw);
    for (int64_t i = 0; i < g.k; ++i) {
        float sum = 0;
        for (int64_t group = 0; group < groups; ++group)
            for (int64_t j = i; j < period; j += g.k) sum += parts[group * part_floats + dw_floats + j];
        db.data<float>()[i] = sum;
    }
}

/// w: the filters, if the data gradient is wanted, which goes to dx.
template <class T>
void all_gradients(const Geometry& g, const GradientInputs<T>& in, const Tensor& w, const Tensor& dx, NormSums* sums,
                   const Tensor& dw, const Tensor& db) {
    const PaddedBias none({}, g.c);
    T* const dx_out = dx.defined() ? stored<T>(dx) : nullptr;
    const auto by = [&]<class To>(To, const auto& filters) {
        if (!dx.defined())
            return gradients<To, T, std::remove_cvref_t<decltype(filters)>, DataGradient<Direct, T>>(
                g, in, filters, nullptr, dx_out, sums, dw, db);
        constexpr bool kRounded = !std::is_same_v<T, float>;
        with_gradient_engine<
            To>(w, kRounded, g.stride, g.pad, {g.images, g.p, g.q, g.k}, dx.shape(), [&](const auto& engine) {
            const DataGradient<std::remove_cvref_t<decltype(engine)>, T> gradient{engine, none.data(), g.x_values()};
            gradients<To>(g, in, filters, &gradient, dx_out, sums, dw, db);
        });
    };
    if constexpr (!std::is_same_v<T, float>)
        if (isa().tiles) return by(T{}, TileFilterSums(g));
    by(float{}, FilterGradient(g));
}

} // namespace

void conv2d_wgrad(const Call& call) {
    const Tensor &dy = call.in[0], &x = call.in[1], &dw = call.out[0];
    const Geometry g(x, dy, dw, call.attrs);
    if (dense::fits(x, g.r, g.s, call.attrs)) return dense::filters(dy, x, dw, call.out[1]);
    with_stored(x, [&](auto t) {
        using T = decltype(t);
        all_gradients<T>(g, {images_of<T>(x), stored<T>(dy), nullptr, nullptr, nullptr}, {}, {}, nullptr, dw,
                         call.out[1]);
    });
}

void conv2d_norm_grad(const Call& call) {
    const Tensor &dz = call.in[0], &y = call.in[1], &x = call.in[6], &w = call.in[10];
    const Attrs& a = call.attrs;
    const Geometry g(x, y, w, a);
    const Norm norm(call.in[2], call.in[3], call.in[4], a.epsilon, a.relu);
    const NormGrad grad(norm, call.in[5], double(y.numel() / g.k));
    std::optional<Norm> input;
    if (call.in[7].defined()) input.emplace(call.in[7], call.in[8], call.in[9], a.epsilon, a.input_relu);
    std::optional<NormSums> sums;
    if (a.stats) sums.emplace(*input, g.images);
    const Tensor& other = call.in[11];
    with_stored(x, [&](auto t) {
        using T = decltype(t);
        all_gradients<T>(g,
                         {images_of<T>(x, input ? &*input : nullptr), stored<T>(dz), &grad, stored<T>(y),
                          other.defined() ? stored<T>(other) : nullptr},
                         w, call.out[2], sums ? &*sums : nullptr, call.out[0], call.out[1]);
    });
    if (sums) sums->finish(call.out[3], call.out[4]);
}

} // namespace rg::cpu
