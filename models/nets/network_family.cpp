// See network_family.h.
#include "ringgrad/models/nets/network_family.h"

namespace rg {

void expect_images(const char* network, const Tensor& x, int64_t channels, int64_t smallest) {
    const bool images = x.shape().rank() == 4 && x.extent(3) == channels;
    RG_CHECK(images && x.extent(1) >= smallest && x.extent(2) >= smallest, network, ": expected images [n h w ",
             channels, "] with h and w of at least ", smallest, ", got ", x.shape().str(),
             images ? "; give a larger --size" : "");
}

} // namespace rg
