// Fuzzes decode_torch_file with unchanged files, and with the instructions of a pickle between the other parts of a zip
// file or of the older format, with storages "0" and "1" of a given number of bytes.
#include "core/torch_file.h"
#include "tests/fuzz/fuzz.h"

#include <set>

namespace rg::fuzz {
namespace {

std::string le(uint64_t value, size_t size) { return {reinterpret_cast<const char*>(&value), size}; }

std::string zip(const std::string& pickle, const std::string& data) {
    std::string file, directory;
    for (const auto& [name, bytes] :
         {std::pair<std::string, std::string>("n/data.pkl", pickle), {"n/data/0", data}, {"n/data/1", data}}) {
        const std::string sizes = le(bytes.size(), 4) + le(bytes.size(), 4) + le(name.size(), 2);
        directory += "PK\1\2" + std::string(16, '\0') + sizes + std::string(12, '\0') + le(file.size(), 4) + name;
        file += "PK\3\4" + std::string(14, '\0') + sizes + le(0, 2) + name + bytes;
    }
    return file + directory + "PK\5\6" + le(0, 4) + le(3, 2) + le(3, 2) + le(directory.size(), 4) + le(file.size(), 4) +
           le(0, 2);
}

std::string stream(const std::string& pickle, const std::string& data, size_t width) {
    const std::string key = "X\1" + std::string(3, '\0'), values = le(data.size() / width, 8) + data;
    return "\x80\2\x8A\x0A\x6C\xFC\x9C\x46\xF9\x20\x6A\xA8\x50\x19.\x80\2M\xE9\3.}." + pickle + "](" + key + "0" + key +
           "1e." + values + values;
}

} // namespace

void fuzz(Input input) {
    const uint8_t kind = input.byte();
    std::string file;
    if (kind & 1) {
        file = input.text();
    } else {
        const std::string data(input.byte(), '\x5a');
        const std::string pickle = "\x80\2" + input.text() + ".";
        file = kind & 2 ? stream(pickle, data, size_t{1} << (kind >> 2 & 3)) : zip(pickle, data);
    }
    if (!is_torch_file(file)) return;
    const auto read = accepted([&] { return decode_torch_file(file, "fuzz"); });
    if (!read) return;
    int64_t bytes = 0;
    std::set<std::string> names;
    for (const NamedTensor& t : read->tensors) {
        bytes += t.value.bytes();
        require(names.insert(t.name).second, "names are distinct");
        require(t.value.shape().rank() <= 4 && t.value.to(DType::f64).numel() == t.value.numel(),
                "all values can be read");
    }
    require(!read->tensors.empty() && read->metadata.empty(), "a state dict");
    require(bytes <= 4 * int64_t(file.size()), "limit of memory");
}

} // namespace rg::fuzz
