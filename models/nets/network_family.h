// The interface of networks that programs choose by name, with --net. networks.h makes a network by its name.
#pragma once

#include "core/layers.h"
#include "core/options.h"

#include <functional>
#include <memory>

namespace rg {

/// A part of a network: a layer, a block, or a function without parameters.
using NetworkPart = std::function<Tensor(const Tensor& x, Mode mode)>;

/// The numbers that decide the shapes of a network: extents of images, the number of classes, and the number of targets
/// (numbers or labels per image). `seed` is for its initial values.
struct ImageTask {
    int64_t height = 0, width = 0, channels = 0, classes = 0;
    uint64_t seed = 0;
    int64_t targets = 0;
    /// Returns true if height or width is at most 64 pixels. ResNet and MobileNet then have smaller strides.
    bool is_small() const { return height <= 64 || width <= 64; }
};

/// One or several networks that share their options, for example all residual networks.
class NetworkFamily {
public:
    explicit NetworkFamily(std::vector<std::string> names) : names_(std::move(names)) {}
    virtual ~NetworkFamily() = default;
    NetworkFamily(const NetworkFamily&) = delete; // declared options point to its members
    NetworkFamily& operator=(const NetworkFamily&) = delete;

    const std::vector<std::string>& names() const { return names_; }
    /// Declares the options, whose values are members of this object. All are Option::fixed().
    virtual void declare(Options&) {}
    /// Makes the network `name`, one of names(). Throws Error if the network cannot take images as in `task`, or leaves
    /// this check to forward() (see expect_images()).
    virtual std::unique_ptr<Network> make(const std::string& name, const ImageTask& task) const = 0;

private:
    std::vector<std::string> names_;
};

/// Throws Error unless x is a batch of images [n height width channels] with this number of channels, and with height
/// and width of at least `smallest`. `network` is the name of the network for the error message.
void expect_images(const char* network, const Tensor& x, int64_t channels, int64_t smallest);

/// Returns the spec of a convolution without bias, with `same` padding, batch norm and ReLU.
ConvNorm::Spec conv_spec(int64_t out, int64_t kernel, int64_t in, int64_t stride = 1);

} // namespace rg
