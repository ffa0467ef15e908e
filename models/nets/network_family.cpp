// See network_family.h.
#include "ringgrad/models/nets/network_family.h"

namespace rg {

void expect_images(const char* network, const Tensor& x, int64_t channels, int64_t smallest) {
    RG_CHECK(x.shape().rank() == 4 && x.extent(1) >= smallest && x.extent(2) >= smallest && x.extent(3) == channels,
             network, ": expected images [n h w ", channels, "] with h and w of at least ", smallest, ", got ",
             x.shape().str());
}

} // namespace rg
