// The trainable values of a network, their gradients, and its batch-norm state: one flat buffer each.
//
// So the optimizer is one op, a checkpoint one write, and a piece of the gradient that is ready to be summed over the
// ranks one range. A network declares what it has, in order of use, and then allocates once; the buffers are laid out
// in the opposite order, which is the order in which the backward pass finishes the gradients. Every tensor starts at
// a multiple of 64 bytes; the gaps hold zeros and stay so.
#pragma once

#include "core/tensor.h"

#include <deque>
#include <string>

namespace rg {

/// Random initial weights, from (seed, Purpose::init, position of the parameter). Normal distributions:
/// he: variance 2 / fan_in (He et al., 2015); glorot: 2 / (fan_in + fan_out) (Glorot and Bengio, 2010);
/// narrow_normal: standard deviation 0.01.
enum class Init : uint8_t { he, glorot, narrow_normal };

class Parameters {
public:
    struct Entry {
        std::string name;
        Shape shape;
        enum class Start : uint8_t { random, zeros, ones } start = Start::zeros;
        int64_t offset = 0; // elements from the start of the flat buffer
        Tensor value, gradient;
    };
    struct State {
        std::string name;
        int64_t channels;
        int64_t offset = 0;
        Tensor running; // [2 c]: mean, variance
    };

    Parameters() = default;
    Parameters(const Parameters&) = delete; // the references that add() gives stay valid
    Parameters& operator=(const Parameters&) = delete;

    /// Declares a parameter. The tensor is undefined until allocate().
    const Tensor& add(std::string name, const Shape& shape, Entry::Start start);
    /// Declares the running statistics of a batch-norm layer: mean 0, variance 1.
    const Tensor& add_state(std::string name, int64_t channels);

    /// Makes the buffers and the initial values. Once, after the last add(). f64 for checks on the reference backend.
    void allocate(uint64_t seed, Init init, DType type = DType::f32);

    /// Bytes of the gradients' buffer; and puts it elsewhere, into memory of the caller's that must outlive this (where
    /// the ranks of a node share it, they sum without copying). Before any use of the gradients.
    int64_t gradient_bytes() const { return gradients_.bytes(); }
    void place_gradients(std::byte* memory);

    const std::deque<Entry>& entries() const { return entries_; }
    const std::deque<State>& states() const { return states_; }
    /// Number of trainable values, without the gaps.
    int64_t count() const;

    const Tensor& values() const { return values_; }
    const Tensor& gradients() const { return gradients_; }
    const Tensor& state() const { return state_; }
    /// The entries' values and gradients as lists, as Tape::gradients() takes them.
    std::vector<Tensor> value_list() const;
    std::vector<Tensor> gradient_list() const;

    /// Training steps that the running statistics have seen; whoever trains counts them.
    int64_t batches_tracked = 0;

private:
    std::deque<Entry> entries_;
    std::deque<State> states_;
    Tensor values_, gradients_, state_;
};

} // namespace rg
