// See perturb.h.
#include "tests/perturb.h"

#include "core/context.h"
#include "tests/host_device.h"
#include "tests/op_cases.h"

#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <map>
#include <tuple>

namespace rg {

namespace {

struct Settings {
    bool on = false;
    uint64_t seed = 0;
    double times = 1;
};

const Settings& settings() {
    static const Settings kSettings = [] {
        const char* const seed = std::getenv("RG_PERTURB");
        const char* const times = std::getenv("RG_PERTURB_TIMES");
        return Settings{seed != nullptr, seed ? std::strtoull(seed, nullptr, 10) : 0, times ? std::atof(times) : 1};
    }();
    return kSettings;
}

/// The inputs that a call has, as bits.
template <class T, class IsDefined>
uint32_t present(std::span<const T> inputs, IsDefined is_defined) {
    uint32_t bits = 0;
    for (size_t i = 0; i < inputs.size(); ++i) bits |= uint32_t(is_defined(inputs[i])) << i;
    return bits;
}

/// The attribute on which it depends whether an op rounds: ReLU selects values, the other activations compute.
int variant(Op op, const Attrs& attrs) {
    if (op == op::activation) return int(attrs.as<ActivationOp>().activation.kind);
    if (op == op::activation_grad) return int(attrs.as<ActivationGradOp>().activation.kind);
    return 0;
}

/// True if every case of the op with this variant and these inputs expects the exact result: it rounds nothing, so no
/// processor gives another. False for inputs that no case has.
bool exact(Op op, const Call& call) {
    using Key = std::tuple<Op, int, uint32_t>;
    static const std::map<Key, bool> kExactCalls = [] {
        std::map<Key, bool> all_exact;
        for (const OpCase& c : op_cases()) {
            const uint32_t inputs = present(std::span(c.in), [](const Input& i) { return i.draw != Draw::absent; });
            all_exact.try_emplace({c.op, variant(c.op, c.attrs), inputs}, true).first->second &=
                c.tolerance == kExact;
        }
        return all_exact;
    }();
    const uint32_t inputs = present(call.in, [](const Tensor& t) { return t.defined(); });
    const auto known = kExactCalls.find({op, variant(op, call.attrs), inputs});
    return known != kExactCalls.end() && known->second;
}

/// Returns true if an update was skipped because of a gradient that is not finite.
bool skipped(Op op, const Call& call) {
    const int input = op == op::sgdm_update   ? int(SgdmUpdateOp::non_finite_at)
                      : op == op::adam_update ? int(AdamUpdateOp::non_finite_at)
                      : op == op::rescale     ? int(RescaleOp::non_finite_at)
                                              : -1;
    if (input < 0) return false;
    const Tensor& found = call.in[size_t(input)];
    int32_t position = -1;
    if (found.defined()) std::memcpy(&position, found.bytes_data(), sizeof position);
    return position >= 0;
}

/// splitmix64 (Steele, Lea and Flood, 2014).
uint64_t mix(uint64_t x) {
    x += 0x9E3779B97F4A7C15;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9;
    x = (x ^ x >> 27) * 0x94D049BB133111EB;
    return x ^ x >> 31;
}

float perturbed(float value) {
    const double u = double(int64_t(mix(settings().seed << 32 ^ std::bit_cast<uint32_t>(value)))) * 0x1p-63; // [-1, 1)
    return std::isfinite(value) ? float(value * (1 + settings().times * 0x1p-22 * u)) : value;
}

bf16 perturbed(bf16 value) {
    const float wide = to_float(value);
    const double u = double(mix(settings().seed << 32 ^ std::bit_cast<uint32_t>(wide))) * 0x1p-64; // in [0, 1)
    const bool changes = u < settings().times * settings().times / 64;
    return changes && std::isfinite(wide) && wide != 0 ? std::bit_cast<bf16>(uint16_t(std::bit_cast<uint16_t>(value) ^ 1))
                                                       : value;
}

template <class T>
void perturb(const Tensor& t) {
    T* const values = reinterpret_cast<T*>(t.bytes_data());
    for (int64_t i = 0; i < t.numel(); ++i) values[i] = perturbed(values[i]);
}

void after_op_on_host(Op op, const Call& call) {
    const Device* const device = context().device;
    if (!device || dynamic_cast<const HostDevice*>(device)) perturb(op, call);
}

} // namespace

void perturb(Op op, const Call& call) {
    if (!settings().on || exact(op, call) || skipped(op, call)) return;
    for (const Tensor& t : call.out) {
        if (!t.defined() || t.numel() == 0) continue;
        if (t.dtype() == DType::f32) perturb<float>(t);
        if (t.dtype() == DType::bf16) perturb<bf16>(t);
    }
}

void install_perturbation() {
    if (settings().on) after_op = after_op_on_host;
}

} // namespace rg
