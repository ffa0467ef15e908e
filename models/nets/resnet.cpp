// See resnet.h.
#include "models/nets/resnet.h"

namespace rg {

namespace {

enum class BlockKind : uint8_t {
    basic,      // two 3 x 3 convolutions
    bottleneck, // convolutions 1 x 1, 3 x 3, and 1 x 1 with four times as many channels
    wide        // batch norm, 3 x 3, batch norm, 3 x 3
};

/// A row of the table in resnet.h.
struct Architecture {
    const char* name;
    BlockKind kind;
    std::vector<int64_t> blocks; // number of blocks in each stage
    int64_t stem, width;         // channels: of the stem; of 3 x 3 in stage 1, which each later stage doubles
    bool by_size;                // true: Stem::automatic depends on the size of the images; false: it means Stem::cifar
};

const Architecture& architecture_of(const std::string& name) {
    static const Architecture kRows[] = {{"resnet18", BlockKind::basic, {2, 2, 2, 2}, 64, 64, true},
                                         {"resnet20", BlockKind::basic, {3, 3, 3}, 16, 16, false},
                                         {"resnet50", BlockKind::bottleneck, {3, 4, 6, 3}, 64, 64, true},
                                         {"wrn16-4", BlockKind::wide, {2, 2, 2}, 16, 64, false}};
    for (const Architecture& row : kRows)
        if (row.name == name) return row;
    fail("resnet: expected resnet18, resnet20, resnet50 or wrn16-4, got ", name);
}

/// The settings of a block. `in`: channels of its input; `width`: filters of each of its 3 x 3 convolutions.
struct BlockSpec {
    std::string name;
    int64_t in, width, stride;
    bool zero_last_gamma;
};

int64_t channels_of(BlockKind kind, int64_t width) { return kind == BlockKind::bottleneck ? 4 * width : width; }

/// Returns `spec` without ReLU, for the end of a branch or of a shortcut: there, ReLU follows the sum of both.
ConvNorm::Spec last_spec(ConvNorm::Spec spec, bool zero_gamma = false) {
    spec.activation = Activation::none, spec.zero_gamma = zero_gamma;
    return spec;
}
Convolution::Spec plain_spec(int64_t out, int64_t kernel, int64_t in, int64_t stride = 1) {
    return {.out = out, .kernel = kernel, .in = in, .conv = {.stride = stride, .pad = same(kernel)}, .bias = false};
}

ConvNorm::Names numbered(const std::string& block, int i) { return {cat(block, ".conv", i), cat(block, ".bn", i)}; }

/// Returns a block relu(branch(x) + shortcut(x)), where shortcut(x) is x or a 1 x 1 convolution with batch norm.
NetworkPart residual_block(Parameters& p, BlockKind kind, const BlockSpec& block) {
    const int64_t in = block.in, width = block.width, out = channels_of(kind, width), stride = block.stride;
    std::vector<ConvNorm::Spec> specs{conv_spec(width, 3, in, stride), conv_spec(out, 3, width)};
    if (kind == BlockKind::bottleneck)
        specs = {conv_spec(width, 1, in), conv_spec(width, 3, width, stride), conv_spec(out, 1, width)};
    specs.back() = last_spec(specs.back(), block.zero_last_gamma);
    std::vector<ConvNorm> branch;
    for (const ConvNorm::Spec& spec : specs) branch.emplace_back(p, numbered(block.name, int(branch.size()) + 1), spec);
    const bool identity = stride == 1 && in == out;
    ConvNorm shortcut;
    if (!identity)
        shortcut = ConvNorm(p, ConvNorm::Names{block.name + ".downsample.0", block.name + ".downsample.1"},
                            last_spec(conv_spec(out, 1, in, stride)));
    return [=, name = block.name](const Tensor& x, Mode mode) {
        Tensor y = x;
        for (const ConvNorm& layer : branch) y = layer(y, mode);
        return stage(name, relu(add(y, identity ? x : shortcut(x, mode))));
    };
}

/// Returns a block branch(y) + x, where y = relu(norm(x)). If size or channels change: branch(y) + conv1x1(y).
NetworkPart wide_block(Parameters& p, const BlockSpec& block) {
    const int64_t in = block.in, width = block.width, stride = block.stride;
    const Norm before(p, block.name + ".bn1", {.channels = in});
    const ConvNorm first(p, ConvNorm::Names{block.name + ".conv1", block.name + ".bn2"},
                         conv_spec(width, 3, in, stride));
    const Convolution second(p, block.name + ".conv2", plain_spec(width, 3, width));
    const bool identity = stride == 1 && in == width;
    Convolution shortcut;
    if (!identity) shortcut = Convolution(p, block.name + ".downsample.0", plain_spec(width, 1, in, stride));
    return [=, name = block.name](const Tensor& x, Mode mode) {
        const Tensor y = before(x, mode), z = second(first(y, mode));
        return stage(name, add(z, identity ? x : shortcut(y)));
    };
}

/// Returns the stem. In a wide network it has no batch norm, since the first block begins with one.
NetworkPart stem_of(Parameters& p, const Architecture& row, Stem stem, int64_t channels) {
    RG_CHECK(row.by_size || stem == Stem::cifar, "--stem: expected cifar or auto for ", row.name,
             ", got imagenet; omit --stem");
    if (row.kind == BlockKind::wide) {
        const Convolution conv(p, "conv1", plain_spec(row.stem, 3, channels));
        return [=](const Tensor& x, Mode) { return conv(x); };
    }
    const ConvNorm::Names names{"conv1", "bn1"};
    if (stem == Stem::cifar) return ConvNorm(p, names, conv_spec(row.stem, 3, channels));
    const ConvNorm conv(p, names, conv_spec(row.stem, 7, channels, 2));
    return [=](const Tensor& x, Mode mode) {
        return max_pool2d(conv(x, mode), {.window = 3, .stride = 2, .pad = 1, .drop_rest = true});
    };
}

} // namespace

ResNet::ResNet(const Options& options) : options_(options) {
    const Architecture& row = architecture_of(options.name);
    RG_CHECK(options.classes >= 1 && options.channels >= 1, "resnet: expected at least one class and channel, got ",
             options.classes, " and ", options.channels);
    layers_.push_back(stem_of(parameters, row, options.stem, options.channels));
    int64_t channels = row.stem, width = row.width;
    for (size_t stage = 0; stage < row.blocks.size(); ++stage, width *= 2)
        for (int64_t i = 0; i < row.blocks[stage]; ++i) {
            const BlockSpec block{cat("layer", stage + 1, ".", i), channels, width, stage > 0 && i == 0 ? 2 : 1,
                                  options.zero_last_gamma};
            layers_.push_back(row.kind == BlockKind::wide ? wide_block(parameters, block)
                                                          : residual_block(parameters, row.kind, block));
            channels = channels_of(row.kind, width);
        }
    if (row.kind == BlockKind::wide) layers_.push_back(Norm(parameters, "bn1", {.channels = channels}));
    fc_ = Dense(parameters, "fc", options.classes, channels);
    parameters.allocate(options.seed, Init::he_fan_out, options.dtype);
}

Tensor ResNet::forward(const Tensor& x, Mode mode) const {
    expect_images(options_.name.c_str(), x, options_.channels, 1);
    Tensor y = x;
    for (const NetworkPart& layer : layers_) y = layer(y, mode);
    return fc_(global_avg_pool(y));
}

void ResNets::declare(rg::Options& o) {
    o.add(
        "stem", &stem_, {{"auto", Stem::automatic}, {"imagenet", Stem::imagenet}, {"cifar", Stem::cifar}},
        "resnet18, resnet50: first layers; imagenet: 7 x 7 with stride 2 and max pooling; cifar: 3 x 3; auto: imagenet "
        "if both sides of the images exceed 64 pixels");
    o.add("zero-last-gamma", &zero_last_gamma_,
          "resnet: the last batch norm of each residual branch begins with weights 0, so blocks begin as shortcuts");
}

std::unique_ptr<Network> ResNets::make(const std::string& name, const ImageTask& task) const {
    const Architecture& row = architecture_of(name);
    RG_CHECK(!zero_last_gamma_ || row.kind != BlockKind::wide,
             "--zero-last-gamma: expected a network whose branches end ", "with batch norm, got ", name,
             "; omit the option");
    const bool cifar = task.is_small() || !row.by_size;
    const Stem stem = stem_ != Stem::automatic ? stem_ : cifar ? Stem::cifar : Stem::imagenet;
    return std::make_unique<ResNet>(ResNet::Options{.name = name,
                                                    .classes = task.classes,
                                                    .channels = task.channels,
                                                    .stem = stem,
                                                    .zero_last_gamma = zero_last_gamma_,
                                                    .seed = task.seed});
}

} // namespace rg
