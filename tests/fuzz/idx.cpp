// Fuzzes parse_idx with unchanged files, gzipped or not, and with headers that have the right number of values.
// Accepted tensors have the shape of the header and the values of the file.
#include "data/idx.h"
#include "data/inflate.h"
#include "tests/fuzz/fuzz.h"

#include <algorithm>

namespace rg::fuzz {
namespace {

using namespace rg::data;

void check(const Tensor& tensor, Bytes file) {
    const size_t rank = file[3], header = 4 + 4 * rank;
    require(size_t(tensor.shape().rank()) == rank, "rank");
    for (size_t i = 0; i < rank; ++i) require(tensor.extent(int(i)) == load_be32(&file[4 + 4 * i]), "extents");
    require(std::ranges::equal(tensor.span<uint8_t>(), file.subspan(header)), "values");
}

} // namespace

void fuzz(Input input) {
    if (input.byte() & 1) {
        const Bytes file = input.rest();
        const auto tensor = accepted([&] { return parse_idx(file, "fuzz"); });
        if (tensor && !is_gzip(file)) check(*tensor, file);
        return;
    }
    const auto rank = uint8_t(1 + input.byte() % 4);
    Vec file{0, 0, 8, rank};
    size_t bytes = 1;
    for (int i = 0; i < rank; ++i) {
        const uint32_t extent = 1 + input.byte() % 6;
        append_be32(file, extent);
        bytes *= extent;
    }
    for (; bytes > 0; --bytes) file.push_back(input.byte());
    check(parse_idx(file, "fuzz"), file);
}

} // namespace rg::fuzz
