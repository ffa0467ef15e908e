// Computes the layout and the initial values. Filters are [k r s c] and dense weights [k c], where k is the number of
// outputs and c that of inputs. So fan_in is the product of all extents except the first, and fan_out the product of
// all extents except the last.
#include "core/parameters.h"

#include "core/cpu/parallel.h"
#include "core/ops/elements.h"
#include "core/rng.h"

#include <algorithm>

namespace rg {

namespace {

int64_t aligned(int64_t elements) { return (elements + 15) / 16 * 16; }

double initial_variance(const Shape& s, Init init) {
    const double fan_in = double(s.numel() / s[0]), fan_out = double(s.numel() / s[s.rank() - 1]);
    switch (init) {
    case Init::he: return 2 / fan_in;
    case Init::glorot: return 2 / (fan_in + fan_out);
    case Init::narrow_normal: return 1e-4;
    case Init::he_fan_out: return s.rank() == 4 ? 2 / fan_out : 1 / (3 * fan_in);
    case Init::he_fan_out_narrow: return s.rank() == 4 ? 2 / fan_out : 1e-4;
    case Init::dirac: return 1 / (3 * fan_in);
    }
    fail("parameters: expected an initial distribution, got ", int(init));
}

/// Makes the first filters of [k r s c] copy the channels of the input; see Init::dirac.
void copy_channels(const Tensor& filters) {
    const Shape& s = filters.shape();
    const int64_t centre = (s[1] / 2 * s[2] + s[2] / 2) * s[3], copies = std::min(s[0], s[3]);
    const std::span<float> values = filters.span<float>();
    std::fill_n(values.begin(), copies * s[1] * s[2] * s[3], 0.0f);
    for (int64_t i = 0; i < copies; ++i) values[size_t(i * s[1] * s[2] * s[3] + centre + i)] = 1;
}

void draw_values(const Tensor& t, Init init, Rng random) {
    const Shape& s = t.shape();
    const double variance = initial_variance(s, init);
    const Tensor values = Tensor::empty_on_host(s);
    for (float& v : values.span<float>()) v = float(std::sqrt(variance)) * random.normal();
    if (init == Init::dirac && s.rank() == 4) copy_channels(values);
    t.copy_from(values.to(t.dtype()));
}

} // namespace

void Parameters::expect_not_allocated(const std::string& name) const {
    RG_CHECK(!values_.defined(), "parameters: expected all declarations before allocate(), got ", name,
             " after it; declare it earlier");
}

const Tensor& Parameters::add(std::string name, const Shape& shape, Entry::Start start) {
    expect_not_allocated(name);
    RG_CHECK(shape.numel() > 0, "parameters: expected extents of at least 1, got ", shape.str(), " (", name, ")");
    for (const Entry& e : entries_)
        RG_CHECK(e.name != name, "parameters: expected distinct names, got ", name, " twice; rename one of the two");
    entries_.push_back({.name = std::move(name), .shape = shape, .start = start});
    return entries_.back().value;
}

const Parameters::State& Parameters::add_state(std::string name, int64_t channels, float momentum) {
    expect_not_allocated(name);
    states_.push_back({.name = std::move(name), .channels = channels, .momentum = momentum});
    return states_.back();
}

std::vector<Parameters::Entry*> Parameters::entries_of(const std::string& layer) {
    std::vector<Entry*> entries;
    std::string layers;
    for (Entry& e : entries_) {
        if (e.name.starts_with(layer + ".")) entries.push_back(&e);
        const std::string outermost = e.name.substr(0, e.name.find('.')) + " ";
        if (!layers.ends_with(outermost)) layers += outermost;
    }
    RG_CHECK(!entries.empty(), "expected a layer of ", layers, "or one within these, got ", layer);
    return entries;
}

void Parameters::freeze(const std::string& layer) {
    for (Entry* e : entries_of(layer)) {
        e->rate = 0;
        if (e->gradient.has_memory()) e->gradient.fill(0); // no later step computes it
    }
    for (State& s : states_)
        if (s.name == layer || s.name.starts_with(layer + ".")) s.frozen = true;
}

uint32_t Parameters::add_random_stream() {
    expect_not_allocated("a layer with random numbers");
    return random_streams_++;
}

void Parameters::allocate(uint64_t seed, Init init, DType type) {
    RG_CHECK(!values_.defined(), "parameters: expected one call of allocate(), got a second; remove one of them");
    int64_t total = 0, state_total = 0;
    for (auto e = entries_.rbegin(); e != entries_.rend(); ++e) e->offset = total, total += aligned(e->shape.numel());
    for (State& s : states_) s.offset = state_total, state_total += aligned(2 * s.channels);
    all_ = Tensor::empty({total + state_total}, type);
    values_ = all_.slice(0, {total});
    state_ = all_.slice(total, {state_total});
    const bool trains = !Scope::current().only_predicts;
    if (trains) gradients_ = Tensor::zeros({total}, type);
    seed_ = seed;
    if (random_streams_ > 0) step_seed_ = Tensor::zeros({2}, DType::i32);
    for (Entry& e : entries_) {
        e.value = values_.slice(e.offset, e.shape);
        if (trains) e.gradient = gradients_.slice(e.offset, e.shape);
    }
    for (State& s : states_) s.running = state_.slice(s.offset, {2, s.channels});
    if (DryRun::active()) return;
    const Tensor start = all_.device() ? Tensor::empty_on_host(all_.shape(), type) : all_;
    start.fill(0);
    parallel(std::ssize(entries_), [&](int64_t i) { // each entry has random numbers of its own
        const Entry& e = entries_[size_t(i)];
        const Tensor value = start.slice(e.offset, e.shape);
        if (e.start == Entry::Start::ones) value.fill(1);
        if (e.start == Entry::Start::random && trains)
            draw_values(value, init, Rng(seed, Purpose::init, 0, uint64_t(i)));
    });
    for (const State& s : states_) start.slice(total + s.offset + s.channels, {s.channels}).fill(1);
    if (all_.device()) all_.copy_from(start);
}

void Parameters::begin_step(int64_t step, int64_t first) {
    RG_CHECK(values_.defined(), "parameters: expected begin_step() after allocate(), got it before; call allocate() ",
             "first");
    RG_CHECK(!Scope::current().trace,
             "parameters: expected begin_step() before a traced function is called, got it in ",
             "the function, whose replays would not repeat it");
    step_begun_ = true;
    if (!step_seed_.defined() || DryRun::active()) return;
    Rng random(seed_, Purpose::step, 0, uint64_t(step) << 32 ^ uint64_t(first));
    const uint64_t low = random.next();
    step_seed_.copy_from(seed_tensor(uint64_t{random.next()} << 32 | low));
}

const Tensor& Parameters::step_seed() const {
    RG_CHECK(step_begun_,
             "parameters: expected begin_step() before a layer draws random numbers, got none; call it in ",
             "each step");
    return step_seed_;
}

void Parameters::place_gradients(std::byte* memory) {
    RG_CHECK(gradients_.defined(), "parameters: expected place_gradients() after allocate(), got it before; call ",
             "allocate() first");
    gradients_ = Tensor::borrow(memory, gradients_.shape(), gradients_.dtype());
    gradients_.fill(0);
    for (Entry& e : entries_) e.gradient = gradients_.slice(e.offset, e.shape);
}

Parameters::Entry& Parameters::entry(const std::string& name) {
    for (Entry& entry : entries_)
        if (entry.name == name) return entry;
    fail("parameters: expected the name of a parameter, got ", name);
}

int64_t Parameters::count() const {
    int64_t n = 0;
    for (const Entry& e : entries_) n += e.shape.numel();
    return n;
}

} // namespace rg
