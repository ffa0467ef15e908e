// Tests convolution by tiles. The suite runs this with emulated instructions, too (core/emulated_isa.h).
#include "core/cpu/isa.h"
#include "tests/op_check.h"

#include <doctest/doctest.h>
#include <string>
#include <vector>

namespace rg {

TEST_SUITE("core") {
    TEST_CASE("tiles: small convolutions agree with the reference") {
        MESSAGE("instruction set: ", std::string(cpu::isa().name));
        constexpr int64_t kMost = 1 << 20; // products in a case, since the emulation is slow
        int64_t cases = 0;
        for (const OpCase& c : op_cases()) {
            if (c.op != op::conv2d && c.op != op::conv2d_grad) continue;
            const std::vector<Tensor> in = draw_inputs(c, DType::f32);
            const Tensor &image = in[0], &w = in[c.op == op::conv2d ? int(Conv2dOp::w) : int(Conv2dGradOp::w)];
            const bool special = c.in[0].draw == Draw::special || c.in[1].draw == Draw::special;
            if (special || image.numel() / image.extent(3) * w.numel() > kMost) continue;
            CAPTURE(describe(c));
            const KernelRun want = run_kernel(c, in, Backend::reference, 16), got = run_kernel(c, in, Backend::cpu, 16);
            CHECK(got.error == "");
            for (size_t i = 0; i < want.results.size(); ++i)
                CHECK(differs(got.results[i], want.results[i], c.tolerance) == "");
            ++cases;
        }
        CHECK(cases > 100);
    }
}

} // namespace rg
