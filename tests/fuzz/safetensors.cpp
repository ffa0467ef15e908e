// Fuzzes decode_tensors with unchanged files, and with a header and a given number of data bytes. Writes accepted
// tensors and reads them again.
#include "core/safetensors.h"
#include "tests/fuzz/fuzz.h"

namespace rg::fuzz {

void fuzz(Input input) {
    std::string file;
    if (input.byte() & 1) {
        file = input.text();
    } else {
        const std::string data(input.below(256), '\x5a'), header = input.text();
        const uint64_t length = header.size();
        file.assign(reinterpret_cast<const char*>(&length), sizeof length);
        file += header + data;
    }
    const auto read = accepted([&] { return decode_tensors(file, "fuzz"); });
    if (!read) return;
    int64_t bytes = 0;
    for (const NamedTensor& t : read->tensors) bytes += t.value.bytes();
    require(bytes <= int64_t(file.size()), "all data are in the file");

    const TensorFile again = decode_tensors(encode_tensors(read->tensors, read->metadata), "again");
    require(again.metadata == read->metadata && again.tensors.size() == read->tensors.size(), "metadata and number");
    for (size_t i = 0; i < again.tensors.size(); ++i) {
        const NamedTensor &a = read->tensors[i], &b = again.tensors[i];
        require(a.name == b.name && a.value.dtype() == b.value.dtype() && a.value.shape() == b.value.shape(), "forms");
        require(a.value.bytes() == 0 ||
                    std::memcmp(a.value.bytes_data(), b.value.bytes_data(), size_t(a.value.bytes())) == 0,
                "values");
    }
}

} // namespace rg::fuzz
