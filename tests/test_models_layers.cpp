// Tests the layers of networks.
#include "ringgrad/core/layers.h"
#include "ringgrad/tests/temp_dir.h"

#include <doctest/doctest.h>

using namespace rg;

TEST_SUITE("models") {
    TEST_CASE("layers: report parameters that were not allocated") {
        Parameters parameters;
        const Dense dense(parameters, "fc", 2, 3);
        const ConvNorm conv(parameters, "block1.0", {4, 3, 3});
        const Tensor x = Tensor::zeros({2, 3}), images = Tensor::zeros({2, 5, 5, 3});
        const std::string error = "layer: expected allocated parameters, got none; call Parameters::allocate() "
                                  "after all layers are made (layer ";
        CHECK(error_of([&] { dense(x); }) == error + "fc)");
        for (const Mode mode : {Mode::train, Mode::evaluate})
            CHECK(error_of([&] { conv(images, mode); }) == error + "block1.0)");
        parameters.allocate(0, Init::he);
        CHECK(dense(x).shape() == Shape{2, 2});
        CHECK(conv(images, Mode::train).shape() == Shape{2, 3, 3, 4});
    }

    TEST_CASE("layers: a convolution in groups has filters for the channels of a group") {
        Parameters parameters;
        const ConvNorm conv(parameters, "depthwise", {.out = 6, .kernel = 3, .in = 3, .conv = {.groups = 3}});
        parameters.allocate(0, Init::he);
        for (const Mode mode : {Mode::train, Mode::evaluate})
            CHECK(conv(Tensor::zeros({2, 5, 5, 3}), mode).shape() == Shape{2, 3, 3, 6});
    }
}
