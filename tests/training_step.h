// Defines the training step that tests of whole networks replay, on the CPU or on a device.
#pragma once

#include "core/accelerate.h"
#include "core/layers.h"
#include "core/ops.h"
#include "core/tape.h"

namespace rg {

/// Returns a function of images and labels, which converts the images to `type`. In training, it writes the gradients
/// of the cross-entropy and returns this loss. Otherwise it returns the scores. `net` must outlive the function.
inline Accelerated training_step(const Network& net, DType type = DType::f32) {
    return Accelerated([&net, type](std::span<const Tensor> in, bool training) -> std::vector<Tensor> {
        const Tensor x = cast(in[0], type);
        if (!training) return {net.forward(x, Mode::evaluate)};
        Tape tape;
        const Tensor loss = cross_entropy(net.forward(x, Mode::train), in[1]);
        tape.gradients(loss, net.parameters);
        return {loss};
    });
}

} // namespace rg
