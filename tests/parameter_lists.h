// Lists of the tensors of a network, as Tape::gradients() expects them.
#pragma once

#include "core/parameters.h"

namespace rg {

/// Returns the values of all entries.
inline std::vector<Tensor> value_list(const Parameters& parameters) {
    std::vector<Tensor> list;
    for (const Parameters::Entry& e : parameters.entries()) list.push_back(e.value);
    return list;
}

/// Returns the gradients of all entries.
inline std::vector<Tensor> gradient_list(const Parameters& parameters) {
    std::vector<Tensor> list;
    for (const Parameters::Entry& e : parameters.entries()) list.push_back(e.gradient);
    return list;
}

} // namespace rg
