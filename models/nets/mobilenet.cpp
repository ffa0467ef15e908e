// See mobilenet.h.
#include "models/nets/mobilenet.h"

#include <algorithm>

namespace rg {

namespace {

/// One or several consecutive blocks. The first one has the stride; the others have stride 1.
struct MobileBlocks {
    int64_t kernel;   // of the depthwise convolution
    int64_t expanded; // channels of the depthwise convolution; in version 2, a factor of the channels of the input
    int64_t out, stride;
    Activation activation;
    bool squeeze = false;
    int64_t count = 1;
};

/// A row of the table in mobilenet.h. `stem` is the number of filters of the first convolution. `last` is that of the
/// last convolution in version 2, and the number of outputs of the first dense layer in version 3.
struct MobileArchitecture {
    const char* name;
    bool version3;
    int64_t stem, last;
    std::vector<MobileBlocks> blocks;
};

const MobileArchitecture& mobile_architecture(const std::string& name) {
    constexpr Activation kRelu6 = Activation::relu6, kRelu = Activation::relu, kSwish = Activation::hardswish;
    // clang-format off
    static const MobileArchitecture kRows[] = {
        {"mobilenet_v2", false, 32, 1280,
         {{3, 1, 16, 1, kRelu6}, {3, 6, 24, 2, kRelu6, false, 2}, {3, 6, 32, 2, kRelu6, false, 3},
          {3, 6, 64, 2, kRelu6, false, 4}, {3, 6, 96, 1, kRelu6, false, 3}, {3, 6, 160, 2, kRelu6, false, 3},
          {3, 6, 320, 1, kRelu6}}},
        {"mobilenet_v3_small", true, 16, 1024,
         {{3, 16, 16, 2, kRelu, true}, {3, 72, 24, 2, kRelu}, {3, 88, 24, 1, kRelu}, {5, 96, 40, 2, kSwish, true},
          {5, 240, 40, 1, kSwish, true, 2}, {5, 120, 48, 1, kSwish, true}, {5, 144, 48, 1, kSwish, true},
          {5, 288, 96, 2, kSwish, true}, {5, 576, 96, 1, kSwish, true, 2}}},
        {"mobilenet_v3_large", true, 16, 1280,
         {{3, 16, 16, 1, kRelu}, {3, 64, 24, 2, kRelu}, {3, 72, 24, 1, kRelu}, {5, 72, 40, 2, kRelu, true},
          {5, 120, 40, 1, kRelu, true, 2}, {3, 240, 80, 2, kSwish}, {3, 200, 80, 1, kSwish},
          {3, 184, 80, 1, kSwish, false, 2}, {3, 480, 112, 1, kSwish, true}, {3, 672, 112, 1, kSwish, true},
          {5, 672, 160, 2, kSwish, true}, {5, 960, 160, 1, kSwish, true, 2}}}};
    // clang-format on
    for (const MobileArchitecture& row : kRows)
        if (row.name == name) return row;
    fail("mobilenet: expected mobilenet_v2, mobilenet_v3_small or mobilenet_v3_large, got ", name);
}

/// Returns the multiple of 8 that is nearest to `channels`, but at least 8 and at least nine tenths of `channels`.
int64_t round_channels(double channels) {
    const int64_t nearest = std::max<int64_t>(8, int64_t(channels + 4) / 8 * 8);
    return double(nearest) < 0.9 * channels ? nearest + 8 : nearest;
}

/// Makes the layers of one network, and declares their parameters.
struct MobileLayers {
    Parameters& parameters;
    bool version3;

    ConvNorm conv_norm(const ConvNorm::Names& names, ConvNorm::Spec spec, Activation activation) const {
        if (version3) spec.norm = {.epsilon = 1e-3f, .momentum = 0.01f};
        spec.activation = activation;
        return {parameters, names, spec};
    }
    NetworkPart conv(const std::string& name, const ConvNorm::Spec& spec, Activation activation) const {
        const ConvNorm layer = conv_norm({name + ".0", name + ".1"}, spec, activation);
        return [=](const Tensor& x, Mode mode) { return stage(name, layer(x, mode)); };
    }
    /// Multiplies each channel of an image by a factor that depends on the means of all channels.
    NetworkPart squeeze(const std::string& name, int64_t channels) const {
        const int64_t few = round_channels(double(channels / 4));
        const Convolution fc1(parameters, name + ".fc1", {.out = few, .in = channels}),
            fc2(parameters, name + ".fc2", {.out = channels, .in = few});
        return [=](const Tensor& x, Mode) {
            const int64_t n = x.extent(0);
            const Tensor means = global_avg_pool(x).reshape({n, 1, 1, channels});
            return mul(x, activation(fc2(relu(fc1(means))), Activation::hardsigmoid).reshape({n, channels}));
        };
    }
    /// A block that adds its input to its result if `adds` is true.
    NetworkPart block(const std::string& name, int64_t in, int64_t expanded, int64_t out, const MobileBlocks& blocks,
                      int64_t stride, bool adds) const {
        std::vector<NetworkPart> branch;
        const auto next = [&] { return cat(name, version3 ? ".block." : ".conv.", branch.size()); };
        if (expanded != in) branch.push_back(conv(next(), conv_spec(expanded, 1, in), blocks.activation));
        ConvNorm::Spec depthwise = conv_spec(expanded, blocks.kernel, expanded, stride);
        depthwise.conv.groups = expanded;
        branch.push_back(conv(next(), depthwise, blocks.activation));
        if (blocks.squeeze) branch.push_back(squeeze(next(), expanded));
        ConvNorm::Names names{next() + ".0", next() + ".1"};
        if (!version3) names = {next(), cat(name, ".conv.", branch.size() + 1)};
        branch.push_back(conv_norm(names, conv_spec(out, 1, expanded), Activation::none));
        return [=](const Tensor& x, Mode mode) {
            Tensor y = x;
            for (const NetworkPart& layer : branch) y = layer(y, mode);
            return stage(name, adds ? add(x, y) : y);
        };
    }
};

} // namespace

MobileNet::MobileNet(const Options& options) : options_(options) {
    const MobileArchitecture& row = mobile_architecture(options.name);
    RG_CHECK(options.classes >= 1 && options.channels >= 1, "mobilenet: expected at least one class and channel, got ",
             options.classes, " and ", options.channels);
    const auto scaled = [&](int64_t channels) { return round_channels(double(channels) * options.width); };
    const auto name = [&] { return cat("features.", layers_.size()); };
    int64_t reduced = options.small_images ? 2 : 0; // number of strides that still become 1
    const auto with_stride = [&](int64_t stride) { return stride == 2 && reduced-- > 0 ? 1 : stride; };
    const MobileLayers layers{parameters, row.version3};
    const Activation ends = row.version3 ? Activation::hardswish : Activation::relu6;
    int64_t channels = scaled(row.stem);
    layers_.push_back(layers.conv(name(), conv_spec(channels, 3, options.channels, with_stride(2)), ends));
    for (const MobileBlocks& blocks : row.blocks)
        for (int64_t i = 0; i < blocks.count; ++i) {
            const int64_t expanded = row.version3 ? scaled(blocks.expanded) : blocks.expanded * channels,
                          out = scaled(blocks.out);
            const int64_t stride = i == 0 ? blocks.stride : 1; // that of large images decides what values fit
            layers_.push_back(layers.block(name(), channels, expanded, out, blocks, with_stride(stride),
                                           stride == 1 && channels == out));
            channels = out;
        }
    // In version 2, a width below 1 does not change the last convolution.
    const int64_t last = row.version3 ? 6 * channels : round_channels(double(row.last) * std::max(1.0, options.width));
    layers_.push_back(layers.conv(name(), conv_spec(last, 1, channels), ends));
    layers_.push_back([](const Tensor& x, Mode) { return global_avg_pool(x); });
    channels = last;
    if (row.version3) {
        const Dense hidden(parameters, "classifier.0", channels = scaled(row.last), last);
        layers_.push_back([=](const Tensor& x, Mode) { return activation(hidden(x), Activation::hardswish); });
    }
    layers_.push_back(Dropout(parameters, float(options.dropout)));
    const Dense scores(parameters, row.version3 ? "classifier.3" : "classifier.1", options.classes, channels);
    layers_.push_back([=](const Tensor& x, Mode) { return scores(x); });
    parameters.allocate(options.seed, Init::he_fan_out_narrow, options.dtype);
}

Tensor MobileNet::forward(const Tensor& x, Mode mode) const {
    expect_images(options_.name.c_str(), x, options_.channels, 1);
    Tensor y = x;
    for (const NetworkPart& layer : layers_) y = layer(y, mode);
    return y;
}

void MobileNets::declare(rg::Options& o) {
    o.add("width-mult", &width_, "mobilenet: factor of the channels of all convolutions, which stay multiples of 8")
        .range(0.1, 4);
    o.add("dropout", &dropout_, "mobilenet: probability of a zero before the last dense layer").range(0, 0.99);
}

std::unique_ptr<Network> MobileNets::make(const std::string& name, const ImageTask& task) const {
    return std::make_unique<MobileNet>(MobileNet::Options{.name = name,
                                                          .classes = task.classes,
                                                          .channels = task.channels,
                                                          .width = width_,
                                                          .dropout = dropout_,
                                                          .small_images = task.is_small(),
                                                          .seed = task.seed});
}

} // namespace rg
