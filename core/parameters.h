// Holds the trainable values of a network, its batch-norm state and its gradients in flat buffers.
//
// With flat buffers, one op updates all parameters, and ranks can sum several gradients at once as one range of memory.
// Values and state form one buffer, all(), since code that averages, exchanges or compares networks must treat both
// alike: averaged weights with other statistics are another network. A network declares its parameters in the order in
// which it uses them, and then allocates all of them once. In memory, parameters and gradients have the opposite order,
// because the backward pass finishes the gradients in that order. Every tensor starts at a multiple of 64 bytes; the
// gaps between tensors always hold zeros.
#pragma once

#include "core/one_caller.h"
#include "core/tensor.h"

#include <deque>
#include <limits>
#include <string>

namespace rg {

/// Says from which normal distribution (mean 0) initial weights are drawn. `he` has variance 2 / fan_in (He et al.,
/// 2015), `glorot` has variance 2 / (fan_in + fan_out) (Glorot and Bengio, 2010), and `narrow_normal` has standard
/// deviation 0.01. `he_fan_out` has variance 2 / fan_out for filters (He et al., 2015) and 1 / (3 fan_in) for dense
/// weights, like the residual networks of torchvision; `he_fan_out_narrow` has `narrow_normal` for dense weights, like
/// its MobileNets. `dirac` has PyTorch's default variance, 1 / (3 fan_in), but of the k filters [r s c], the first
/// min(k, c) copy the channels of the input: filter i is 1 at its centre in channel i, and 0 elsewhere (Zagoruyko and
/// Komodakis, "DiracNets", 2017). Each parameter has a stream of random numbers of its own (rng.h): Rng(seed,
/// Purpose::init, 0, number of parameters that are declared before it).
enum class Init : uint8_t { he, glorot, narrow_normal, he_fan_out, he_fan_out_narrow, dirac };

class Parameters {
public:
    struct Entry {
        std::string name;
        Shape shape;
        enum class Start : uint8_t { random, zeros, ones } start = Start::zeros;
        /// Optimizer (models/run/optimizer.h) applies the next three, rate, decay and epochs; sgdm_update() and
        /// adam_update() alone do not. Set the three before the Optimizer is made and the network is traced.
        float rate = 1;  // factor of the learning rate; 0: no gradient is computed, and the value does not change
        float decay = 1; // factor of the weight decay
        static constexpr int64_t kAllEpochs = std::numeric_limits<int64_t>::max();
        int64_t epochs = kAllEpochs; // number of epochs after which the value no longer changes
        bool scale_free = false;     // filters before a batch norm (ConvNorm), to which their scale makes no difference
        int64_t offset = 0;          // elements from the start of values(), and of gradients()
        Tensor value = {}, gradient = {};
    };
    struct State {
        std::string name;
        int64_t channels;
        int64_t offset = 0;  // elements from the start of state()
        float momentum = 1;  // weight of the newest mini-batch in `running`
        bool frozen = false; // training uses the statistics, as evaluation does, and does not update them
        Tensor running = {}; // [2 c]: mean, variance
    };

    Parameters() = default;
    Parameters(const Parameters&) = delete; // add() returns references into this object
    Parameters& operator=(const Parameters&) = delete;

    /// Declares a parameter and returns its tensor, which is undefined until allocate(). The reference stays valid.
    /// Throws Error if the name is taken, or an extent is 0.
    const Tensor& add(std::string name, const Shape& shape, Entry::Start start);
    /// Declares the running statistics of a batch-norm layer, and returns them like add(). allocate() sets the means to
    /// 0 and the variances to 1. `momentum` is the weight of the newest mini-batch in them.
    const State& add_state(std::string name, int64_t channels, float momentum = 0.1f);

    /// Declares a layer that draws random numbers in training. Returns the number of its random stream, which dropout()
    /// takes (ops/elements.h).
    uint32_t add_random_stream();

    /// Allocates the buffers and sets the initial values. Call it once, after all add() and add_state(). f64 is for
    /// checks on the reference backend. With Scope::only_predicts, random values are 0, and there are no gradients.
    void allocate(uint64_t seed, Init init, DType type = DType::f32);

    /// Returns the number of bytes in the buffer of the gradients.
    int64_t gradient_bytes() const { return gradients_.bytes(); }
    /// Makes gradient_bytes() bytes of host memory the buffer of the gradients, and sets them to zero. `memory` must be
    /// aligned to 64 bytes and must outlive this object. If it is memory that the ranks of a node share, they can sum
    /// the gradients without a copy. Call this after allocate(), and before any code keeps a tensor of the gradients.
    void place_gradients(std::byte* memory);

    const std::deque<Entry>& entries() const { return entries_; }
    /// Returns the entry of that name, to change how the optimizer treats it. Throws Error if there is none.
    Entry& entry(const std::string& name);
    const std::deque<State>& states() const { return states_; }
    /// Returns the parameters of a layer, or of all layers whose names begin with `layer` and a dot. Throws Error,
    /// which lists the layers, if there are none.
    std::vector<Entry*> entries_of(const std::string& layer);
    /// Freezes all layers of entries_of(layer): sets the rates of their parameters to 0, and makes their batch norms
    /// use the running statistics in training, too. Sets their gradients to 0. Call it before the optimizer is made and
    /// the network is traced. Throws Error as entries_of().
    void freeze(const std::string& layer);
    /// Returns the number of values of all parameters. The flat buffers are larger: each entry begins at a multiple of
    /// 16 values.
    int64_t count() const;

    /// Gives the layers that draw random numbers, such as Dropout, the seed for a step, counted from 1, and for the
    /// part of its mini-batch that begins with sample `first`. Call it before each forward pass in training, and before
    /// it is traced, as Trainer does. Throws Error in a traced function.
    void begin_step(int64_t step, int64_t first = 0);
    /// Returns the seed that begin_step() has set, i32 [2], for layers that draw random numbers. Throws Error if
    /// begin_step() was never called.
    const Tensor& step_seed() const;

    /// Returns values() and after them state(), as one flat tensor.
    const Tensor& all() const { return all_; }
    const Tensor& values() const { return values_; }
    const Tensor& gradients() const { return gradients_; }
    const Tensor& state() const { return state_; }

    /// The number of training steps that have updated the running statistics. The training loop counts them.
    int64_t batches_tracked = 0;

    mutable OneCaller differentiator; // finds threads that call Tape::gradients() for these parameters at the same time

private:
    void expect_not_allocated(const std::string& name) const;
    std::deque<Entry> entries_;
    std::deque<State> states_;
    Tensor all_, values_, gradients_, state_; // values_ and state_ are slices of all_
    uint32_t random_streams_ = 0;
    uint64_t seed_ = 0;
    Tensor step_seed_; // undefined without random streams
    bool step_begun_ = false;
};

} // namespace rg
