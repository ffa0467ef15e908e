// See state_dict.h.
#include "models/nets/state_dict.h"

#include "core/cpu/parallel.h"

#include <algorithm>
#include <cmath>
#include <set>

namespace rg {

namespace {

Shape file_shape(const Shape& s) { return s.rank() == 4 ? Shape{s[0], s[3], s[1], s[2]} : s; }

/// Copies filters from `krsc`, in our layout, to `oihw`, in PyTorch's layout, or back if `to_oihw` is false. Both are
/// f32 in host memory; state_dict.h describes the layouts. Tensors of another rank than 4 are copied unchanged.
void permute(const Tensor& krsc, const Tensor& oihw, bool to_oihw) {
    const Shape& s = krsc.shape();
    float *a = krsc.data<float>(), *b = oihw.data<float>();
    if (s.rank() != 4) {
        to_oihw ? std::copy_n(a, krsc.numel(), b) : std::copy_n(b, krsc.numel(), a);
        return;
    }
    parallel(s[0], [&](int64_t k) {
        for (int64_t r = 0; r < s[1]; ++r)
            for (int64_t q = 0; q < s[2]; ++q)
                for (int64_t c = 0; c < s[3]; ++c) {
                    float& ours = a[((k * s[1] + r) * s[2] + q) * s[3] + c];
                    float& theirs = b[((k * s[3] + c) * s[1] + r) * s[2] + q];
                    to_oihw ? theirs = ours : ours = theirs;
                }
    });
}

void check_finite(const std::string& source, const std::string& name, const Tensor& t) {
    for (int64_t i = 0; i < t.numel(); ++i)
        if (const float value = t.data<float>()[i]; !std::isfinite(value))
            fail(source, ": expected finite values, got ", std::isnan(value) ? "nan" : cat(value), " in ", name,
                 " (value ", i, " of ", t.numel(), "); the file is damaged or from another program");
}

Tensor row_of(const Tensor& running, int64_t row) {
    return running.slice(row * running.extent(1), {running.extent(1)});
}

/// Returns true if `name` is `layer`, or begins with `layer` and a dot.
bool is_within(const std::string& name, const std::string& layer) {
    return cat(name, ".").starts_with(cat(layer, "."));
}

bool is_within(const std::string& name, const std::vector<std::string>& layers) {
    return std::ranges::any_of(layers, [&](const std::string& layer) { return is_within(name, layer); });
}

/// Returns the name of the layer with this tensor: all of the name before its last dot.
std::string layer_of(const std::string& name) { return name.substr(0, name.rfind('.')); }

} // namespace

Tensor channels_first(const Tensor& channels_last) {
    const Tensor copy = Tensor::empty_on_host(file_shape(channels_last.shape()));
    permute(channels_last.to_host(), copy, true);
    return copy;
}

std::vector<NamedTensor> state_dict(const Parameters& parameters) {
    std::vector<NamedTensor> tensors;
    const Tensor all = parameters.all().to_host(); // one copy for all, since each copy from a device has a latency
    for (const auto& e : parameters.entries())
        tensors.push_back({e.name, channels_first(all.slice(e.offset, e.shape))});
    const int64_t tracked = parameters.batches_tracked;
    for (const auto& s : parameters.states()) {
        const Tensor running = all.slice(parameters.values().numel() + s.offset, s.running.shape());
        tensors.push_back({s.name + ".running_mean", row_of(running, 0).clone()});
        tensors.push_back({s.name + ".running_var", row_of(running, 1).clone()});
        tensors.push_back({s.name + ".num_batches_tracked", Tensor::of<int64_t>({}, {&tracked, 1})});
    }
    return tensors;
}

void check_state_dict(const Parameters& parameters, const TensorFile& file, const std::vector<std::string>& skip) {
    std::set<std::string> known;
    std::set<std::string> unused(skip.begin(), skip.end());
    const auto is_skipped = [&](const std::string& name) {
        std::erase_if(unused, [&](const std::string& layer) { return is_within(name, layer); });
        return is_within(name, skip);
    };
    const auto need = [&](const std::string& name, DType type, const Shape& shape) -> const Tensor& {
        known.insert(name);
        const Tensor& tensor = file.tensor(name, type, shape);
        if (type == DType::f32) check_finite(file.source, name, tensor);
        return tensor;
    };
    for (const auto& e : parameters.entries()) {
        if (is_skipped(e.name)) continue;
        const Tensor* tensor = file.find(e.name);
        const bool other_stem = tensor && e.name == "conv1.weight" && e.shape.rank() == 4 && // see Stem
                                tensor->shape() == Shape{e.shape[0], e.shape[3], 7, 7};
        RG_CHECK(!tensor || tensor->shape() == file_shape(e.shape), file.source, ": expected tensor ", e.name, " of ",
                 file_shape(e.shape).str(), ", got ", tensor->shape().str(), "; ",
                 other_stem
                     ? "give --stem imagenet"
                     : cat("load a file of the same network, or omit the tensor with --init-skip ", layer_of(e.name)));
        need(e.name, DType::f32, file_shape(e.shape));
    }
    for (const auto& s : parameters.states()) {
        const std::string mean = s.name + ".running_mean", var = s.name + ".running_var";
        if (!is_skipped(mean)) need(mean, DType::f32, {s.channels});
        if (!is_skipped(var))
            for (const float variance : need(var, DType::f32, {s.channels}).span<float>())
                RG_CHECK(variance >= 0, file.source, ": expected variances of at least 0, got ", variance, " in ", var,
                         "; the file is damaged or from another program");
        const std::string tracked = s.name + ".num_batches_tracked"; // PyTorch before 0.4.1 does not save it
        if (!is_skipped(tracked) && file.find(tracked)) need(tracked, DType::i64, {});
    }
    for (const NamedTensor& t : file.tensors)
        RG_CHECK(is_skipped(t.name) || known.contains(t.name), file.source,
                 ": expected only tensors of this network, got ", t.name,
                 "; load a file of the same network, or omit the tensor with --init-skip ", layer_of(t.name));
    RG_CHECK(unused.empty(), "--init-skip: expected layers of the network or of ", file.source, ", got ",
             *unused.begin());
}

void load_state_dict(Parameters& parameters, const TensorFile& file, const std::vector<std::string>& skip) {
    RG_CHECK(parameters.values().defined(), "state dict: expected allocated parameters, got none; call allocate()");
    check_state_dict(parameters, file, skip);
    for (const auto& e : parameters.entries()) {
        if (is_within(e.name, skip)) continue;
        const Tensor value = e.value.device() ? Tensor::empty_on_host(e.shape) : e.value;
        permute(value, *file.find(e.name), false);
        e.value.device() ? e.value.copy_from(value) : e.value.note_write();
    }
    parameters.batches_tracked = 0;
    const auto kept = [&](const std::string& name) { return is_within(name, skip) ? nullptr : file.find(name); };
    for (const auto& s : parameters.states()) {
        if (const Tensor* mean = kept(s.name + ".running_mean")) row_of(s.running, 0).copy_from(*mean);
        if (const Tensor* variance = kept(s.name + ".running_var")) row_of(s.running, 1).copy_from(*variance);
        if (const Tensor* tracked = kept(s.name + ".num_batches_tracked"))
            parameters.batches_tracked = *tracked->data<int64_t>();
    }
}

} // namespace rg
