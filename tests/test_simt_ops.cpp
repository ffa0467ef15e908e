// Every CUDA kernel, thread by thread on the executor: over the cases of op_cases.h against the reference, with guards
// around every buffer, and the same bits in whatever order the threads run.
#include "gpu/kernels.h"
#include "gpu/simt/executor.h"
#include "tests/op_check.h"

#include <doctest/doctest.h>

using namespace rg;

namespace {

/// f32 is multiplied in two parts (products.cuh), of which an infinity has none: it becomes a NaN in convolutions.
bool infinite_products(const OpCase& c) {
    const bool convolves = c.op == Op::conv2d || c.op == Op::conv2d_dgrad || c.op == Op::conv2d_wgrad;
    return convolves && (c.in[0].draw == Draw::special || c.in[1].draw == Draw::special);
}

} // namespace

TEST_SUITE("simt") {
    TEST_CASE("simt ops: the kernels agree with the reference, within their buffers, in every order of threads") {
        for (const OpCase& c : op_cases()) {
            if (infinite_products(c)) continue;
            CAPTURE(describe(c));
            const std::vector<Tensor> in = draw_inputs(c, DType::f32);
            const KernelRun want = run_kernel(c, in, Backend::reference, 64);
            std::vector<Tensor> first;
            for (const simt::Order order : {simt::Order::forward, simt::Order::reverse, simt::Order::shuffled}) {
                // Blocks of a large case run the text that those of a small one run: once will do.
                if (order != simt::Order::forward && GradientCase::work(c) > 3e4) continue;
                CAPTURE(int(order));
                simt::settings().order = order;
                const KernelRun got = run_kernel(c, in, gpu_on_host::kernel(c.op), 64);
                CHECK(got.error == "");
                REQUIRE(got.results.size() == want.results.size());
                for (size_t i = 0; i < want.results.size(); ++i) {
                    CAPTURE(i);
                    if (first.size() <= i) {
                        CHECK(differs(got.results[i], want.results[i], c.tolerance) == "");
                        first.push_back(got.results[i]);
                    } else {
                        CHECK(same_bits(got.results[i], first[i]));
                    }
                }
            }
        }
        simt::settings() = {};
    }
}
