// Encodes and decodes safetensors files in one buffer in memory.
//
// With a buffer instead of a stream, a file is complete before it reaches the disk, the reader knows the file size from
// the start, and tests need no file. While a file is written or read, its buffer takes as much memory as the file has
// bytes. Element bytes are little-endian on disk and are copied without conversion.
//
// The writer encodes the header with zeros in place of the checksums, and puts these in when the file is complete.
// Every byte of the data belongs to a tensor, so the checksums together cover the whole file.
#include "core/safetensors.h"

#include "core/atomic_file.h"
#include "core/checksum.h"
#include "core/formatted.h"
#include "core/json.h"
#include "core/text.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>

namespace rg {
namespace {

static_assert(std::endian::native == std::endian::little, "element bytes are copied without conversion");

constexpr std::string_view kMetadataName = "__metadata__";
constexpr size_t kLengthBytes = 8;
// The metadata keys of the checksums, and the JSON text of these members up to the digits, as this writer spells it.
// The text cannot occur within a JSON string, where quotes are escaped.
constexpr const char *kChecksum = "checksum", *kTensorChecksums = "tensor_checksums";
constexpr std::string_view kChecksumMember = "\"checksum\": \"", kTensorChecksumsMember = "\"tensor_checksums\": \"";
constexpr size_t kDigits = 16;
constexpr const char* kDamaged = "; the header is damaged: write the file again";
constexpr const char* kCutShort = "; the file is cut short: copy or write it again";

constexpr std::string_view kTypeNames[] = {"F32", "BF16", "U8", "I32", "F64", "I64"}; // the index is the DType

/// Describes one tensor in the header. Its values are the bytes [begin, end) of the data.
struct TensorHeader {
    std::string name;
    DType type = DType::f32;
    Shape shape;
    int64_t begin = 0, end = 0;
};

/// Reads the description of one tensor from the header. If the description is wrong, or if the tensor exceeds the
/// `data_bytes` bytes of data, throws Error with a message that begins with `where`.
TensorHeader read_header(const std::string& name, const Json& json, int64_t data_bytes, const std::string& where) {
    RG_CHECK(json.is_object(), where, "expected an object, got ", json.kind(), kDamaged);
    for (const Json::Member& m : json.as_object())
        RG_CHECK(m.first == "dtype" || m.first == "shape" || m.first == "data_offsets", where,
                 "expected dtype, shape and data_offsets, got \"", m.first, "\"", kDamaged);
    const Json* dtype = json.find("dtype");
    const Json* shape = json.find("shape");
    const Json* offsets = json.find("data_offsets");
    TensorHeader e;
    e.name = name;

    RG_CHECK(dtype && dtype->is_string(), where, "expected a dtype in quotes, got ", dtype ? dtype->kind() : "none",
             kDamaged);
    const auto* const type = std::ranges::find(kTypeNames, dtype->as_string());
    RG_CHECK(type != std::end(kTypeNames), where, "expected dtype F32, BF16, U8, I32, F64 or I64, got ",
             dtype->as_string(), "; convert the tensor to one of these");
    e.type = DType(type - kTypeNames);

    RG_CHECK(shape && shape->is_array(), where, "expected a shape array, got ", shape ? shape->kind() : "none",
             kDamaged);
    RG_CHECK(shape->as_array().size() <= 4, where, "expected at most 4 extents, got ", shape->as_array().size(),
             "; reshape the tensor");
    std::vector<int64_t> extents;
    int64_t bytes = size_of(e.type);
    for (const Json& extent : shape->as_array()) {
        RG_CHECK(extent.is_int() && extent.as_int() >= 0, where,
                 "expected extents that are non-negative integers, got ", extent.dump(), kDamaged);
        extents.push_back(extent.as_int());
        RG_CHECK(!__builtin_mul_overflow(bytes, extent.as_int(), &bytes), where, "expected less than 2^63 bytes, got ",
                 "shape ", shape->dump(), kDamaged);
    }

    RG_CHECK(offsets && offsets->is_array() && offsets->as_array().size() == 2 && offsets->as_array()[0].is_int() &&
                 offsets->as_array()[1].is_int(),
             where, "expected data_offsets [begin, end], got ", offsets ? offsets->dump() : "none", kDamaged);
    e.begin = offsets->as_array()[0].as_int();
    e.end = offsets->as_array()[1].as_int();
    RG_CHECK(e.begin >= 0 && e.begin <= e.end, where, "expected data_offsets with 0 <= begin <= end, got ",
             offsets->dump(), kDamaged);
    RG_CHECK(e.end <= data_bytes, where, "expected data_offsets within the file's ", data_bytes, " data bytes, got ",
             offsets->dump(), kCutShort);
    RG_CHECK(e.end - e.begin == bytes, where, "expected ", bytes, " bytes for shape ", shape->dump(), " of ", *type,
             ", got ", e.end - e.begin, " of data_offsets ", offsets->dump(), kDamaged);
    e.shape = Shape(extents);
    return e;
}

/// Throws Error unless every data byte belongs to exactly one tensor.
void check_cover(const std::vector<TensorHeader>& headers, int64_t data_bytes, const std::string& file) {
    std::vector<const TensorHeader*> sorted;
    for (const TensorHeader& e : headers) sorted.push_back(&e);
    std::sort(sorted.begin(), sorted.end(), [](const TensorHeader* a, const TensorHeader* b) {
        return std::pair(a->begin, a->end) < std::pair(b->begin, b->end);
    });
    int64_t covered = 0;
    for (const TensorHeader* e : sorted) {
        RG_CHECK(e->begin == covered, file, "expected tensor ", e->name, " at data offset ", covered,
                 ", where the tensor before it ends, got ", e->begin, kDamaged);
        covered = e->end;
    }
    RG_CHECK(covered == data_bytes, file, "expected ", covered, " data bytes for all tensors, got ", data_bytes,
             kDamaged);
}

/// Throws Error unless the text is valid UTF-8. Json can write other bytes as escapes, but other programs reject these.
void check_utf8(std::string_view text, const std::string& where) {
    RG_CHECK(is_utf8(text), where, "expected names and metadata in valid UTF-8, got other bytes; rename them");
}

/// Returns the offset of the text after a member's opening quote, or npos if the header lacks the member.
size_t offset_of_digits(std::string_view header, std::string_view member) {
    const size_t begin = header.find(member);
    return begin == header.npos ? begin : begin + member.size();
}


/// Returns the header's checksum. `header` begins with its length. The 16 digits at `offset` count as zeros.
std::string header_checksum(std::string header, size_t offset) {
    return hex(checksum(header.replace(offset, kDigits, kDigits, '0')));
}

std::string tensor_checksum(std::string_view bytes) { return hex(bytes.empty() ? 0 : checksum(bytes)); }

/// Throws Error unless the checksums are the same.
void check_sum(const std::string& file, const std::string& part, std::string_view expected, const std::string& actual) {
    RG_CHECK(expected == actual, file, "expected checksum ", expected, " of ", part, ", got ", actual,
             "; the file is damaged there, or was changed without leaving out the metadata checksum and "
             "tensor_checksums");
}

} // namespace

const Tensor* TensorFile::find(std::string_view name) const {
    for (const NamedTensor& t : tensors)
        if (t.name == name) return &t.value;
    return nullptr;
}

const Tensor& TensorFile::tensor(std::string_view name, DType type, const Shape& shape) const {
    const Tensor* t = find(name);
    RG_CHECK(t, source, ": expected tensor ", name, " of ", name_of(type), " ", shape.str(),
             ", got no tensor of that name; load a file of the same network");
    RG_CHECK(t->dtype() == type && t->shape() == shape, source, ": expected tensor ", name, " of ", name_of(type), " ",
             shape.str(), ", got ", name_of(t->dtype()), " ", t->shape().str(), "; load a file of the same network");
    return *t;
}

const std::string* TensorFile::find_text(std::string_view key) const {
    for (const auto& [k, v] : metadata)
        if (k == key) return &v;
    return nullptr;
}

const std::string& TensorFile::text(std::string_view key) const {
    const std::string* value = find_text(key);
    RG_CHECK(value, source, ": expected metadata ", key, ", got none; load a file that this program has written");
    return *value;
}

int64_t TensorFile::number(std::string_view key) const {
    const std::string& digits = text(key);
    int64_t value = 0;
    RG_CHECK(read_number(digits, value), source, ": expected an integer as metadata ", key, ", got \"", digits,
             "\"; load a file that this program has written");
    return value;
}

std::string encode_tensors(const std::vector<NamedTensor>& tensors, const Metadata& metadata) {
    std::vector<size_t> layout(tensors.size());
    std::iota(layout.begin(), layout.end(), size_t{0});
    for (const NamedTensor& t : tensors) {
        RG_CHECK(!t.name.empty() && t.name != kMetadataName, "safetensors: write: expected a tensor name, got \"",
                 t.name, "\"; choose another name");
        check_utf8(t.name, "safetensors: write: ");
        RG_CHECK(t.value.defined(), "safetensors: write: expected defined tensors, got undefined ", t.name,
                 "; leave it out");
    }
    const auto element_size = [&](size_t i) { return size_of(tensors[i].value.dtype()); };
    std::stable_sort(layout.begin(), layout.end(),
                     [&](size_t a, size_t b) { return element_size(a) > element_size(b); });
    std::vector<int64_t> begins(tensors.size());
    int64_t data_bytes = 0;
    for (size_t i : layout) {
        begins[i] = data_bytes;
        data_bytes += tensors[i].value.bytes();
    }

    Json texts = Json()
                     .set(kChecksum, std::string(kDigits, '0'))
                     .set(kTensorChecksums, std::string(kDigits * tensors.size(), '0'));
    for (const auto& [key, text] : metadata) {
        check_utf8(key, "safetensors: write: ");
        check_utf8(text, "safetensors: write: ");
        RG_CHECK(!texts.find(key), "safetensors: write: expected distinct metadata keys, got \"", key,
                 "\" twice; rename one");
        texts.set(key, text);
    }
    Json::Object header;
    header.emplace_back(kMetadataName, texts);
    for (size_t i = 0; i < tensors.size(); ++i) {
        const Tensor& t = tensors[i].value;
        Json shape = Json::array();
        for (int64_t extent : t.shape().extents()) shape.push(extent);
        header.emplace_back(tensors[i].name,
                            Json()
                                .set("dtype", std::string(kTypeNames[size_t(t.dtype())]))
                                .set("shape", shape)
                                .set("data_offsets", Json().push(begins[i]).push(begins[i] + t.bytes())));
    }
    std::string text = Json(header).dump();
    text.resize((text.size() + kLengthBytes - 1) / kLengthBytes * kLengthBytes, ' ');
    RG_CHECK(int64_t(text.size()) <= kMaxTensorHeader, "safetensors: write: expected a header of at most ",
             kMaxTensorHeader, " bytes, got ", text.size(), "; write several files");
    Json::parse(text, "safetensors: write: header"); // throws if a name is used twice

    std::string bytes(kLengthBytes + text.size() + size_t(data_bytes), '\0');
    const uint64_t length = text.size();
    std::memcpy(bytes.data(), &length, kLengthBytes);
    std::memcpy(bytes.data() + kLengthBytes, text.data(), text.size());
    char* data = bytes.data() + kLengthBytes + text.size();
    const size_t sums = offset_of_digits(bytes, kTensorChecksumsMember);
    for (size_t i = 0; i < tensors.size(); ++i) {
        const Tensor t = tensors[i].value.to_host();
        if (t.bytes() > 0) std::memcpy(data + begins[i], t.bytes_data(), size_t(t.bytes()));
        bytes.replace(sums + kDigits * i, kDigits, tensor_checksum({data + begins[i], size_t(t.bytes())}));
    }
    const size_t sum = offset_of_digits(bytes, kChecksumMember);
    bytes.replace(sum, kDigits, header_checksum(bytes.substr(0, kLengthBytes + text.size()), sum));
    return bytes;
}

TensorFile decode_tensors(std::string_view bytes, const std::string& source) {
    const std::string file = cat("safetensors ", source, ": ");
    RG_CHECK(bytes.size() >= kLengthBytes, file, "expected at least 8 bytes of header length, got a file of ",
             bytes.size(), kCutShort);
    uint64_t length = 0;
    std::memcpy(&length, bytes.data(), kLengthBytes);
    RG_CHECK(length <= uint64_t(kMaxTensorHeader) || bytes.size() == kLengthBytes || bytes[kLengthBytes] == '{', file,
             "expected a safetensors file, which has '{' at offset 8, got another file; name a model or a checkpoint");
    RG_CHECK(length <= uint64_t(kMaxTensorHeader), file, "expected a header of at most ", kMaxTensorHeader,
             " bytes, got length ", length, " at offset 0; write several files");
    RG_CHECK(length <= bytes.size() - kLengthBytes, file, "expected a header of ", length, " bytes, got ",
             bytes.size() - kLengthBytes, kCutShort);
    const std::string_view header_bytes = bytes.substr(0, kLengthBytes + size_t(length)),
                           text = header_bytes.substr(kLengthBytes), data = bytes.substr(header_bytes.size());
    const size_t sum = offset_of_digits(header_bytes, kChecksumMember),
                 sums = offset_of_digits(header_bytes, kTensorChecksumsMember);
    RG_CHECK((sum == text.npos) == (sums == text.npos), file,
             "expected both checksum and tensor_checksums in the header, ", "or none, got one", kDamaged);
    if (sum != text.npos)
        check_sum(file, "the header", header_bytes.substr(sum, kDigits),
                  header_checksum(std::string(header_bytes), sum));
    RG_CHECK(!text.empty() && text[0] == '{', file, "expected '{' at offset 8, where the header begins, got ",
             text.empty() ? "an empty header" : "another byte", "; is this a safetensors file?");
    const Json header = Json::parse(text, file + "header");

    TensorFile result;
    result.source = source;
    std::vector<TensorHeader> headers;
    for (const auto& [name, json] : header.as_object()) {
        check_utf8(name, file);
        if (name == kMetadataName) {
            RG_CHECK(json.is_object(), file, kMetadataName, ": expected an object, got ", json.kind(), kDamaged);
            for (const auto& [key, value] : json.as_object()) {
                RG_CHECK(value.is_string(), file, kMetadataName, ": expected a string for \"", key, "\", got ",
                         value.kind(), kDamaged);
                check_utf8(key, file);
                check_utf8(value.as_string(), file);
                result.metadata.emplace_back(key, value.as_string());
            }
        } else {
            RG_CHECK(!name.empty(), file, "expected a name for each tensor, got an empty one", kDamaged);
            headers.push_back(read_header(name, json, int64_t(data.size()), cat(file, "tensor ", name, ": ")));
        }
    }
    check_cover(headers, int64_t(data.size()), file);
    if (sum != text.npos) {
        const std::string& expected = result.text(kTensorChecksums);
        RG_CHECK(expected.size() == kDigits * headers.size(), file, "expected a checksum of each of ", headers.size(),
                 " tensors, got ", expected.size(), " digits", kDamaged);
        for (size_t i = 0; const TensorHeader& e : headers)
            check_sum(file, "tensor " + e.name, std::string_view(expected).substr(kDigits * i++, kDigits),
                      tensor_checksum(data.substr(size_t(e.begin), size_t(e.end - e.begin))));
        result.has_checksums = true;
    }
    std::erase_if(result.metadata, [](const auto& m) { return m.first == kChecksum || m.first == kTensorChecksums; });
    for (const TensorHeader& e : headers) {
        Tensor t = Tensor::empty_on_host(e.shape, e.type); // even if the context has a device
        if (t.bytes() > 0) std::memcpy(t.bytes_data(), data.data() + e.begin, size_t(t.bytes()));
        result.tensors.push_back({e.name, t});
    }
    return result;
}

void save_tensors(const std::string& path, const std::vector<NamedTensor>& tensors, const Metadata& metadata) {
    write_file_atomic(path, encode_tensors(tensors, metadata));
}

TensorFile load_tensors(const std::string& path) { return decode_tensors(read_file(path, kMaxTensorFile), path); }

} // namespace rg
