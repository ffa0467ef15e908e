// CUDA C++ on the host: implements the interface of gpu/cuda.cuh for compilers other than nvcc.
#pragma once

#include "tests/simt/language.h"
#include "tests/simt/shared.h"
#include "tests/simt/warp.h"

#include <type_traits>

// Defines a reference to an array, so that sizeof and indexing work as with __shared__. The address of `_key`
// identifies the array; it is unique also for each instance of a template.
#define SHARED(type, name, count)                                                                                      \
    static const char name##_key = 0;                                                                                  \
    type(&name)[count] = ::rg::simt::shared_array<type[count]>(&name##_key, #name)
#define DYNAMIC_SHARED(type, name) type* const name = reinterpret_cast<type*>(::rg::simt::dynamic_shared_bytes(#name))

namespace rg::RG_GPU {

template <class... P>
void launch(void (*kernel)(P...), const char* name, dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t,
            std::type_identity_t<P>... args) {
    if (simt::interceptor) {
        [[maybe_unused]] const auto bytes = [](const auto& value) {
            const std::span view = std::as_bytes(std::span(&value, 1));
            return std::vector(view.begin(), view.end());
        };
        return simt::interceptor->launch(
            {reinterpret_cast<const void*>(kernel), grid, block, shared_bytes, {bytes(args)...}});
    }
    simt::run_grid(name, grid, block, shared_bytes, [&] { kernel(args...); });
}

} // namespace rg::RG_GPU
