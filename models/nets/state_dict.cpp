// See state_dict.h.
#include "ringgrad/models/nets/state_dict.h"

#include <cmath>
#include <set>

namespace rg {

namespace {

Shape file_shape(const Shape& s) { return s.rank() == 4 ? Shape{s[0], s[3], s[1], s[2]} : s; }

/// Copies a filter between `krsc`, our layout, and `oihw`, PyTorch's layout, both in host memory: to `oihw` if
/// `to_oihw`, else to `krsc`. Tensors of other ranks have the same layout in both.
void permute(const Tensor& krsc, const Tensor& oihw, bool to_oihw) {
    const Shape& s = krsc.shape();
    float *a = krsc.data<float>(), *b = oihw.data<float>();
    if (s.rank() != 4) {
        to_oihw ? std::copy_n(a, krsc.numel(), b) : std::copy_n(b, krsc.numel(), a);
        return;
    }
    for (int64_t k = 0; k < s[0]; ++k)
        for (int64_t r = 0; r < s[1]; ++r)
            for (int64_t q = 0; q < s[2]; ++q)
                for (int64_t c = 0; c < s[3]; ++c) {
                    float& ours = a[((k * s[1] + r) * s[2] + q) * s[3] + c];
                    float& theirs = b[((k * s[3] + c) * s[1] + r) * s[2] + q];
                    to_oihw ? theirs = ours : ours = theirs;
                }
}

void check_finite(const std::string& source, const std::string& name, const Tensor& t) {
    for (int64_t i = 0; i < t.numel(); ++i)
        if (const float value = t.data<float>()[i]; !std::isfinite(value))
            fail(source, ": expected finite values, got ", std::isnan(value) ? "nan" : cat(value), " in ", name,
                 " (value ", i, " of ", t.numel(), "); the file is damaged or from another program");
}

Tensor running_row(const Parameters::State& state, int64_t row) {
    return state.running.slice(row * state.channels, {state.channels});
}

} // namespace

std::vector<NamedTensor> state_dict(const Parameters& parameters) {
    std::vector<NamedTensor> tensors;
    for (const auto& e : parameters.entries()) {
        tensors.push_back({e.name, Tensor::on_host(file_shape(e.shape))});
        permute(e.value.to_host(), tensors.back().value, true);
    }
    const int64_t tracked = parameters.batches_tracked;
    for (const auto& s : parameters.states()) {
        tensors.push_back({s.name + ".running_mean", running_row(s, 0).clone().to_host()});
        tensors.push_back({s.name + ".running_var", running_row(s, 1).clone().to_host()});
        tensors.push_back({s.name + ".num_batches_tracked", Tensor::of<int64_t>({}, {&tracked, 1})});
    }
    return tensors;
}

void load_state_dict(Parameters& parameters, const TensorFile& file) {
    std::set<std::string> known;
    const auto need = [&](const std::string& name, DType type, const Shape& shape) -> const Tensor& {
        known.insert(name);
        const Tensor& tensor = file.tensor(name, type, shape);
        if (type == DType::f32) check_finite(file.source, name, tensor);
        return tensor;
    };
    for (const auto& e : parameters.entries()) need(e.name, DType::f32, file_shape(e.shape));
    int64_t tracked = 0;
    for (const auto& s : parameters.states()) {
        need(s.name + ".running_mean", DType::f32, {s.channels});
        for (const float variance : need(s.name + ".running_var", DType::f32, {s.channels}).span<float>())
            RG_CHECK(variance >= 0, file.source, ": expected variances of at least 0, got ", variance, " in ", s.name,
                     ".running_var; the file is damaged or from another program");
        tracked = *need(s.name + ".num_batches_tracked", DType::i64, {}).data<int64_t>();
    }
    for (const NamedTensor& t : file.tensors)
        RG_CHECK(known.contains(t.name), file.source, ": expected only tensors of this network, got ", t.name,
                 "; use the --width and --depth of the file");

    for (const auto& e : parameters.entries()) {
        const Tensor value = Tensor::on_host(e.shape);
        permute(value, *file.find(e.name), false);
        e.value.copy_from(value);
    }
    for (const auto& s : parameters.states()) {
        running_row(s, 0).copy_from(*file.find(s.name + ".running_mean"));
        running_row(s, 1).copy_from(*file.find(s.name + ".running_var"));
    }
    parameters.batches_tracked = tracked;
}

} // namespace rg
