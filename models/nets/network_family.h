// Defines what networks share that programs choose by name. networks.h has the list of them.
#pragma once

#include "ringgrad/core/layers.h"
#include "ringgrad/core/options.h"

#include <memory>

namespace rg {

/// The images and the classes that a network is made for, and the seed of its initial values.
struct ImageTask {
    int64_t height = 0, width = 0, channels = 0, classes = 0;
    uint64_t seed = 0;
};

/// Networks that share their options.
class NetworkFamily {
public:
    explicit NetworkFamily(std::vector<std::string> names) : names_(std::move(names)) {}
    virtual ~NetworkFamily() = default;
    NetworkFamily(const NetworkFamily&) = delete; // options point into this object
    NetworkFamily& operator=(const NetworkFamily&) = delete;

    const std::vector<std::string>& names() const { return names_; }
    /// Declares the options, whose values are members of this object.
    virtual void declare(Options&) {}
    /// Makes the network of that name, which is one of names(). Throws Error if it cannot take such images.
    virtual std::unique_ptr<Network> make(const std::string& name, const ImageTask& task) const = 0;

private:
    std::vector<std::string> names_;
};

/// Throws Error unless x is a batch of images [n h w channels] with h and w of at least `smallest`. `network` is for
/// the error text.
void expect_images(const char* network, const Tensor& x, int64_t channels, int64_t smallest);

} // namespace rg
