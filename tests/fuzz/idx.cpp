// Fuzzes parse_idx with unchanged files, gzipped or not, and with headers that have the right number of values.
// Accepted tensors have the shape of the header and the values of the file.
#include "ringgrad/data/idx.h"
#include "ringgrad/data/inflate.h"
#include "ringgrad/tests/fuzz/fuzz.h"

#include <bit>

namespace rg::fuzz {
namespace {

using namespace rg::data;

/// Returns value i of the file according to its type.
double value_at(Bytes body, int type, size_t i) {
    const auto big_endian = [&](size_t bytes) {
        uint64_t value = 0;
        for (size_t b = 0; b < bytes; ++b) value = value << 8 | body[i * bytes + b];
        return value;
    };
    switch (type) {
    case 0x08: return double(big_endian(1));
    case 0x09: return double(int8_t(big_endian(1)));
    case 0x0B: return double(int16_t(big_endian(2)));
    case 0x0C: return double(int32_t(big_endian(4)));
    case 0x0D: return double(std::bit_cast<float>(uint32_t(big_endian(4))));
    default: return std::bit_cast<double>(big_endian(8));
    }
}

void check(const Tensor& tensor, Bytes file) {
    const size_t rank = file[3], header = 4 + 4 * rank;
    require(size_t(tensor.shape().rank()) == rank, "rank");
    for (size_t i = 0; i < rank; ++i) require(tensor.extent(int(i)) == load_be32(&file[4 + 4 * i]), "extents");
    const Tensor values = tensor.to(DType::f64);
    for (size_t i = 0; i < size_t(values.numel()); ++i) {
        const double expected = value_at(file.subspan(header), file[2], i), got = values.data<double>()[i];
        require(got == expected || (got != got && expected != expected), "values");
    }
}

} // namespace

void fuzz(Input input) {
    constexpr uint8_t kTypes[] = {0x08, 0x09, 0x0B, 0x0C, 0x0D, 0x0E};
    if (input.byte() & 1) {
        const Bytes file = input.rest();
        const auto tensor = accepted([&] { return parse_idx(file, "fuzz"); });
        if (tensor && !is_gzip(file)) check(*tensor, file);
        return;
    }
    const uint8_t type = kTypes[input.byte() % 6], rank = uint8_t(1 + input.byte() % 4);
    Vec file{0, 0, type, rank};
    size_t bytes = type < 0x0B ? 1 : type == 0x0B ? 2 : type == 0x0E ? 8 : 4;
    for (int i = 0; i < rank; ++i) {
        const uint32_t extent = 1 + input.byte() % 6;
        append_be32(file, extent);
        bytes *= extent;
    }
    for (; bytes > 0; --bytes) file.push_back(input.byte());
    check(parse_idx(file, "fuzz"), file);
}

} // namespace rg::fuzz
