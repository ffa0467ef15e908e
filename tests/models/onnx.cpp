// Tests which networks ONNX files can hold. tests/e2e/onnx.py reads the files, and runs them in ONNX Runtime.
#include "core/atomic_file.h"
#include "core/op_table.h"
#include "models/nets/digits_net.h"
#include "models/run/onnx.h"
#include "tests/temp_dir.h"

#include <doctest/doctest.h>

#include <set>

using namespace rg;

namespace {

/// Returns the file of a prediction of one result, for images [8 8 4].
std::string encode(const Parameters& parameters, const std::function<Tensor(const Tensor&)>& predict) {
    return encode_onnx([&](auto in) { return std::vector{predict(in[0])}; }, parameters, {{8, 8, 4}});
}

/// Returns the error of encode() without parameters.
std::string refused(const std::function<Tensor(const Tensor&)>& predict) {
    const Parameters none;
    return error_of([&] { encode(none, predict); });
}

/// Returns the error for a name of an output that the graph has already.
std::string taken(const std::string& name) {
    return cat("onnx: expected names of outputs that nothing else has, got '", name,
               "'; give each result a name of its own");
}

} // namespace

TEST_SUITE("models") {
    TEST_CASE("onnx: every op has a node, or is no part of predictions") {
        const std::set<Op> training = {
            op::conv2d_grad, op::channel_stats, op::combine_stats, op::batch_norm_grad_sums, op::combine_sums,
            op::batch_norm_grad, op::running_update, op::layer_norm_grad, op::max_pool2d_grad, op::avg_pool2d_grad,
            op::activation_grad, op::sum_grad, op::slice_grad, op::concat_grad, op::dropout, op::softmax_grad,
            op::cross_entropy, op::cross_entropy_grad, op::binary_cross_entropy, op::binary_cross_entropy_grad,
            op::mse_loss, op::mse_loss_grad, op::sgdm_update, op::adam_update, op::rescale, op::average_update,
            op::first_non_finite, op::augment};
        for (const Op op : kOps) {
            CAPTURE(op->name);
            CHECK(has_onnx_node(op) != training.contains(op)); // add a new op to kMappings of onnx.cpp, or to this list
        }
    }

    TEST_CASE("onnx: images change their order only where a network needs it") {
        Parameters parameters;
        const ConvNorm conv(parameters, "conv", {4, 3, 4, {.pad = 1}});
        const Dense flat(parameters, "flat", 2, 8 * 8 * 4), pooled(parameters, "pooled", 2, 4);
        const LayerNorm norm(parameters, "norm", 4);
        const Convolution wide(parameters, "wide", {16, 1, 4}), narrow(parameters, "narrow", {4, 1, 16});
        parameters.allocate(0, Init::he);
        const auto features = [&](const Tensor& x) { return add(x, concat({conv(x, Mode::evaluate)})); };

        const std::string plain = encode(parameters, [&](const Tensor& x) {
            return pooled(global_avg_pool(upsample(max_pool2d(features(x), {.window = 2, .stride = 2}), 3)));
        });
        CHECK(contains(plain, "Resize_1"));
        CHECK(contains(plain, "pooled.weight"));
        CHECK(!contains(plain, "flat.weight")); // not used
        CHECK(!contains(plain, "Concat_2"));    // half of upsample()
        CHECK(!contains(plain, "Transpose"));

        const std::string dense = encode(parameters, [&](const Tensor& x) { return flat(features(x)); });
        CHECK(contains(dense, "Transpose_1"));
        CHECK(!contains(dense, "Transpose_2"));

        // A block of ConvNeXt: the dense layers between the norm and the sum take the channels last.
        const std::string block = encode(parameters, [&](const Tensor& x) {
            const Tensor y = features(x);
            return add(y, narrow(gelu(wide(norm(y)))));
        });
        CHECK(contains(block, "Gemm_2"));
        CHECK(contains(block, "Transpose_2"));
        CHECK(!contains(block, "Transpose_3"));
    }

    TEST_CASE("onnx: casts are left out, and constants have the names of parameters") {
        Parameters parameters;
        const Convolution conv(parameters, "conv", {4, 3, 4});
        const Tensor& factor = parameters.add("factor", {}, Parameters::Entry::Start::ones);
        parameters.allocate(0, Init::he);
        const std::string plain = encode(parameters, [&](const Tensor& x) { return scale(relu(conv(x)), factor); });
        CHECK(plain == encode(parameters, [&](const Tensor& x) {
                  return scale(cast(relu(conv(cast(x, DType::bf16))), DType::f32), factor);
              }));
        CHECK(contains(plain, "factor"));
        CHECK(!contains(plain, "constant_1"));
        CHECK(contains(encode(parameters, [&](const Tensor& x) { return scale(x, Tensor::constant({}, 3)); }),
                       "constant_1"));
    }

    TEST_CASE("onnx: a file is the same on each call, and vectors are a possible input") {
        const DigitsNet net(DigitsNet::Options{});
        const TempDir folder;
        save_onnx(folder / "a.onnx", net, {{28, 28, 1}}, {.metadata = {{"classes", "[]"}}});
        save_onnx(folder / "b.onnx", net, {{28, 28, 1}}, {.metadata = {{"classes", "[]"}}});
        CHECK(read_file(folder / "a.onnx") == read_file(folder / "b.onnx"));

        Parameters parameters;
        const Dense dense(parameters, "dense", 3, 2);
        parameters.allocate(0, Init::he);
        const PredictFunction predict = [&](auto in) { return std::vector{softmax(dense(in[0])), dense(in[0])}; };
        CHECK(contains(encode_onnx(predict, parameters, {{2}}, {.outputs = {"p", "scores"}}), "Softmax_1"));
        const auto error = [&](const std::vector<Shape>& inputs, const OnnxOptions& options = {}) {
            return error_of([&] { encode_onnx(predict, parameters, inputs, options); });
        };
        CHECK(error({{2}}) == "onnx: expected as many names of outputs as results, got 1 names and 2 results");
        CHECK(error({{2}}, {.outputs = {"p", "p"}}) == taken("p"));
        CHECK(error({{2}}, {.outputs = {"p", "dense.bias"}}) == taken("dense.bias"));
        CHECK(error({{5, 2}}) ==
              "onnx: expected the shape of one image [h w c] or vector [k], got [5 2]; leave out the batch");
        CHECK(error({{28, 28, 17}}) == "onnx: expected at most 16 channels, got 17");
        CHECK(error_of([&] { save_onnx(folder / "c.onnx", net, {{28, 28, 1}}, {.normalise = {{0.5f}, {0}}}); }) ==
              "onnx: expected deviations above 0, got 0 for channel 0; give one per channel");
    }

    TEST_CASE("onnx: numbers beside an image are a second input") {
        Parameters parameters;
        const Dense dense(parameters, "dense", 3, 4 + 2);
        parameters.allocate(0, Init::he);
        const PredictFunction predict = [&](auto in) {
            return std::vector{dense(concat({global_avg_pool(in[0]), in[1]}))};
        };
        const std::string file = encode_onnx(predict, parameters, {{8, 8, 4}, {2}});
        CHECK(contains(file, "image"));
        CHECK(contains(file, "numbers"));
        CHECK(error_of([&] { encode_onnx(predict, parameters, {{8, 8, 4}, {2}}, {.outputs = {"numbers"}}); }) ==
              taken("numbers"));
        const std::string wrong = "onnx: expected the shape of one image or vector, and perhaps of its numbers [k], got ";
        CHECK(error_of([&] { encode_onnx(predict, parameters, {}); }) == wrong + "0 shapes");
        CHECK(error_of([&] { encode_onnx(predict, parameters, {{8, 8, 4}, {8, 8, 4}}); }) ==
              wrong + "2 shapes, the last one [8 8 4]");
    }

    TEST_CASE("onnx: networks that it cannot write are errors") {
        Parameters parameters;
        const ConvNorm conv(parameters, "conv", {4, 3, 4});
        parameters.allocate(0, Init::he);
        CHECK(error_of([&] { encode(parameters, [&](const Tensor& x) { return conv(x, Mode::train); }); }) ==
              "onnx: expected ops that have a counterpart in ONNX, got running_update; leave it out of the prediction");
        CHECK(refused([](const Tensor& x) {
                  const Tensor stats = Tensor::constant({4}, 1);
                  return batch_norm(x, conv2d_stats(x, Tensor::constant({4, 1, 1, 4}, 1)).stats, stats, stats);
              }) == "onnx: batch_norm: expected running statistics, got those of the batch; predict with "
                    "Mode::evaluate");
        const Tensor seed = seed_tensor(1);
        CHECK(refused([&](const Tensor& x) { return dropout(x, 0.5f, seed); }) ==
              "onnx: expected ops that have a counterpart in ONNX, got dropout; leave it out of the prediction");
        CHECK(contains(refused([](const Tensor& x) { return relu(x.slice(0, {3})); }), "that Tensor::slice() made"));
        CHECK(contains(refused([](const Tensor& x) { return slice(x, 0, {x.extent(0), 4}); }),
                       "expected a part of fixed size"));
        const std::string depends = "onnx: expected a prediction that computes the same for any size of the batch, got "
                                    "one that depends on it";
        CHECK(refused([](const Tensor& x) { return slice(x, 0, {x.extent(0) / 2, 4}); }) == depends);
        CHECK(refused([](const Tensor& x) { return scale(x, 1 / float(x.extent(0))); }) == depends);
        CHECK(refused([](const Tensor& x) { return add(x, Tensor::constant(x.shape(), 1)); }) == depends);
        CHECK(refused([](const Tensor& x) { return x.reshape({x.extent(0) * 8, 32}); }) == "");
    }
}
