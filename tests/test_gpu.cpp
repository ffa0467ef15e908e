// Every op on a real GPU against the reference, and a plan's graph against plain launches. Without a GPU there is
// nothing to test: the executor has run the same kernels (suite simt).
#include "core/context.h"
#include "gpu/device.h"
#include "tests/op_check.h"

#include <cstdlib>
#include <doctest/doctest.h>

using namespace rg;

namespace {

std::vector<Tensor> run_there(const OpCase& c, std::span<const Tensor> host_inputs) {
    const OpRow& r = row(c.op);
    std::vector<Tensor> in(host_inputs.begin(), host_inputs.end()), out(static_cast<size_t>(r.outputs));
    const OutputSpecs specs = r.infer(host_inputs, c.attrs);
    for (Tensor& t : in)
        if (t.defined()) {
            const Tensor host = t;
            t = Tensor::empty(host.shape(), host.dtype());
            t.copy_from(host);
        }
    for (size_t i = 0; i < out.size(); ++i)
        out[i] = int(i) < c.in_place ? in[i] : Tensor::empty(specs[i].shape, specs[i].dtype);
    execute(c.op, {c.attrs, in, out});
    std::vector<Tensor> results;
    for (const Tensor& t : out) results.push_back(t.to_host().clone());
    return results;
}

} // namespace

TEST_SUITE("gpu") {
    TEST_CASE("gpu ops: the kernels agree with the reference, and with themselves to the bit") {
        const gpu::Found found = gpu::find_devices();
        if (found.ids.empty()) {
            MESSAGE("skipped: ", found.why_none);
            return;
        }
        const std::unique_ptr<Device> device = gpu::open_device(0);
        MESSAGE(device->name());
        const Context on{.device = device.get()};
        for (const OpCase& c : op_cases()) {
            const bool convolves = c.op == Op::conv2d || c.op == Op::conv2d_dgrad || c.op == Op::conv2d_wgrad;
            if (convolves && (c.in[0].draw == Draw::special || c.in[1].draw == Draw::special)) continue; // products.cuh
            CAPTURE(describe(c));
            const std::vector<Tensor> in = draw_inputs(c, DType::f32);
            const KernelRun want = run_kernel(c, in, Backend::reference, 64);
            const ContextScope scope(on);
            const std::vector<Tensor> got = run_there(c, in), again = run_there(c, in);
            REQUIRE(got.size() == want.results.size());
            for (size_t i = 0; i < got.size(); ++i) {
                CAPTURE(i);
                CHECK(differs(got[i], want.results[i], c.tolerance) == "");
                CHECK(same_bits(again[i], got[i]));
            }
        }
    }
}
