// Finds networks by their names, declares their options, and makes them.
//
// The file of a trained model stores the name and the options of its network, and the size of its images. So a program
// can make the network again without the options of the training:
//
//     const TensorFile file = load_tensors("runs/NAME/model.safetensors");
//     const std::unique_ptr<Network> network = make_network(file); // with the file's values
//
// A program registers a network of its own with RegisterNetwork, if the constructor takes an ImageTask. A family has
// several networks, or networks with options:
//
//     const RegisterNetwork<OwnNetwork> own_network("own");
//
//     struct OwnNetworks final : NetworkFamily {
//         OwnNetworks() : NetworkFamily({"own"}) {}
//         std::unique_ptr<Network> make(const std::string&, const ImageTask& task) const override {
//             return std::make_unique<OwnNetwork>(task.channels, task.classes, task.seed);
//         }
//     };
//     inline const RegisterNetworks<OwnNetworks> own_networks;
#pragma once

#include "core/safetensors.h"
#include "models/nets/network_family.h"

namespace rg {

using MakeFamily = std::function<std::unique_ptr<NetworkFamily>()>;
/// Registers a family, beside the built-in CifarNets, DigitsNets, MobileNets and ResNets. The names of its networks
/// must differ from those of all other families.
void register_networks(MakeFamily make);

/// Makes an object of the class Family, as register_networks() needs it.
template <class Family>
std::unique_ptr<NetworkFamily> make_family() {
    return std::make_unique<Family>();
}

/// A global variable of this type registers the family `Family` before main() begins.
template <class Family>
struct RegisterNetworks {
    RegisterNetworks() { register_networks(make_family<Family>); }
};

/// A global variable of this type registers a network without options, whose constructor takes an ImageTask.
template <class Net>
struct RegisterNetwork {
    explicit RegisterNetwork(std::string name) {
        register_networks(
            [name = std::move(name)]() -> std::unique_ptr<NetworkFamily> { return std::make_unique<Family>(name); });
    }

private:
    struct Family final : NetworkFamily {
        explicit Family(const std::string& name) : NetworkFamily({name}) {}
        std::unique_ptr<Network> make(const std::string&, const ImageTask& task) const override {
            return std::make_unique<Net>(task);
        }
    };
};

/// The network that --net chooses among several registered ones, and its options.
class NetworkChoice {
public:
    /// Takes the names of the networks. The first one is the default. Throws Error if there is none, or if one is not
    /// registered.
    explicit NetworkChoice(std::vector<std::string> names);
    /// Declares --net, if there are several networks, and the options of all of them.
    void declare(Options& options);
    /// Throws Error if the command line gives an option of another family, which the chosen network does not have.
    void check(const Options& options) const;
    std::unique_ptr<Network> make(const ImageTask& task) const { return chosen().make(name_, task); }
    /// Returns the name and the options, as a model's file stores them: {"name": "cifar", "width": 32, ...}.
    Json describe() const;

private:
    NetworkFamily& chosen() const;

    std::vector<std::string> names_;
    std::string name_;
    std::vector<std::unique_ptr<NetworkFamily>> families_;
};

/// Returns the extents of the images and the numbers of classes and targets that the file of a model gives. The seed is
/// 0. Throws Error if a value is malformed, or if the extents or the classes are missing.
ImageTask stored_task(const TensorFile& file);

/// Returns the network that the file of a model describes, with the values in the file. Throws Error if the file
/// describes no registered network, or if its tensors do not fit (see load_state_dict() in state_dict.h). Allocates the
/// network only after the names and shapes in the file are checked. It only predicts: it has no gradients.
std::unique_ptr<Network> make_network(const TensorFile& file);

} // namespace rg
