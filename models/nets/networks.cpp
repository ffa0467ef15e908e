// See networks.h and network_family.h.
#include "models/nets/networks.h"

#include "models/nets/cifar_net.h"
#include "models/nets/digits_net.h"
#include "models/nets/mobilenet.h"
#include "models/nets/resnet.h"
#include "models/nets/state_dict.h"

#include <algorithm>

namespace rg {

namespace {

std::vector<MakeFamily>& registry() {
    static std::vector<MakeFamily> families{make_family<CifarNets>, make_family<DigitsNets>, make_family<MobileNets>,
                                            make_family<ResNets>};
    return families;
}

bool has(const NetworkFamily& family, const std::string& name) {
    return std::find(family.names().begin(), family.names().end(), name) != family.names().end();
}

/// Returns the family with the network of that name, or null if there is none. Throws Error if several have it.
std::unique_ptr<NetworkFamily> find_family(const std::string& name) {
    std::unique_ptr<NetworkFamily> found;
    for (const MakeFamily& make : registry()) {
        std::unique_ptr<NetworkFamily> family = make();
        if (!has(*family, name)) continue;
        RG_CHECK(!found, "networks: expected distinct names, got ", name, " twice; rename one of the two networks");
        found = std::move(family);
    }
    return found;
}

/// Returns the options that a family declares, with their values.
Json options_of(NetworkFamily& family) {
    Options options("", "");
    family.declare(options);
    return options.to_json();
}

} // namespace

void expect_images(const char* network, const Tensor& x, int64_t channels, int64_t smallest) {
    const bool images = x.shape().rank() == 4 && x.extent(3) == channels;
    RG_CHECK(images && x.extent(1) >= smallest && x.extent(2) >= smallest, network, ": expected images [n h w ",
             channels, "] with h and w of at least ", smallest, ", got ", x.shape().str(),
             images ? "; give a larger --size" : "");
}

ConvNorm::Spec conv_spec(int64_t out, int64_t kernel, int64_t in, int64_t stride) {
    return {.out = out, .kernel = kernel, .in = in, .conv = {.stride = stride, .pad = same(kernel)}, .bias = false};
}

void register_networks(MakeFamily make) { registry().push_back(make); }

NetworkChoice::NetworkChoice(std::vector<std::string> names) : names_(std::move(names)) {
    RG_CHECK(!names_.empty(), "networks: expected the name of a network, got none");
    name_ = names_.front();
    for (const std::string& name : names_) {
        if (std::any_of(families_.begin(), families_.end(), [&](const auto& f) { return has(*f, name); })) continue;
        std::unique_ptr<NetworkFamily> family = find_family(name);
        RG_CHECK(family, "networks: expected a registered network, got ", name, "; register it with RegisterNetworks");
        families_.push_back(std::move(family));
    }
}

void NetworkChoice::declare(Options& options) {
    if (names_.size() > 1) options.add("net", &name_, "network").one_of(names_).basic().fixed();
    options.fix(true);
    for (const auto& family : families_) family->declare(options);
    options.fix(false);
}

void NetworkChoice::check(const Options& options) const {
    for (const auto& family : families_) {
        if (family.get() == &chosen()) continue;
        const Json others = options_of(*family);
        for (const auto& [name, value] : others.as_object())
            RG_CHECK(!options.was_given(name), "--", name, ": expected --net ", family->names().front(), ", got --net ",
                     name_, ", which has no such option; omit one of them");
    }
}

Json NetworkChoice::describe() const {
    Json network = Json::object().set("name", name_);
    const Json values = options_of(chosen());
    for (const auto& [name, value] : values.as_object()) {
        RG_CHECK(name != "name", "network ", name_,
                 ": expected options with other names than \"name\", which files of ",
                 "models have for the network itself; rename the option");
        network.set(name, value);
    }
    return network;
}

NetworkFamily& NetworkChoice::chosen() const {
    for (const auto& family : families_)
        if (has(*family, name_)) return *family;
    fail("networks: expected a known name, got ", name_);
}

ImageTask stored_task(const TensorFile& file) {
    const Json image = Json::parse(file.text("image"), file.source + ": image");
    const Json classes = Json::parse(file.text("classes"), file.source + ": classes");
    RG_CHECK(image.as_array().size() == 3, file.source, ": image: expected [height, width, channels], got ",
             image.dump());
    ImageTask task;
    for (const auto& [i, extent] : {std::pair(0, &task.height), {1, &task.width}, {2, &task.channels}}) {
        *extent = image.as_array()[size_t(i)].as_int();
        RG_CHECK(*extent >= 1 && *extent <= 65536, file.source, ": image: expected extents from 1 to 65536, got ",
                 image.dump());
    }
    task.classes = int64_t(classes.as_array().size());
    RG_CHECK(task.classes >= 1, file.source, ": classes: expected at least one, got none");
    if (file.find_text("image_targets")) task.targets = file.number("image_targets");
    RG_CHECK(task.targets >= 0 && task.targets <= 65536, file.source, ": image_targets: expected 0 to 65536, got ",
             task.targets);
    return task;
}

std::unique_ptr<Network> make_network(const TensorFile& file) {
    const std::string* text = file.find_text("network");
    RG_CHECK(text, file.source, ": expected the file of a model, with \"network\" in its metadata, got none; to give ",
             "these values to a network, start its training with --init");
    const Json description = Json::parse(*text, file.source + ": network");
    const std::string& name = description.at("name").as_string();
    const std::unique_ptr<NetworkFamily> family = find_family(name);
    const std::string* const program = file.find_text("trained_by");
    RG_CHECK(family, file.source, ": expected a network that this program knows, got ", name, "; use the program that ",
             "has trained it, ",
             program ? cat("as in build/", *program, " predict RUN IMAGE.png") : "which registers it");
    Options options(file.source + ": network", "");
    family->declare(options);
    for (const auto& [key, value] : description.as_object())
        if (key != "name") options.set(key, value.is_string() ? value.as_string() : value.dump());
    const ImageTask task = stored_task(file);
    {
        const DryRun without_memory; // a damaged file must not make the program allocate more than the file has
        check_state_dict(family->make(name, task)->parameters, file);
    }
    const Setting<bool> only_predicts(Scope::current().only_predicts, true);
    std::unique_ptr<Network> network = family->make(name, task);
    load_state_dict(network->parameters, file);
    return network;
}

} // namespace rg
