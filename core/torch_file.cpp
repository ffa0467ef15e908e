// Reads the pickle to values, in which a tensor is the arguments of the function that would make it. Then finds the
// storages in the file, and at last copies the tensors of the state dict.
//
// No function is recursive, and values refer to each other by pointers without ownership. So neither depth nor cycles
// matter, and each instruction takes constant time per byte.
#include "core/torch_file.h"

#include "core/text.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <map>
#include <set>
#include <utility>

namespace rg {
namespace {

constexpr std::string_view kZip = "PK\3\4", kZipEntry = "PK\1\2", kZipEnd = "PK\5\6";
/// The older format begins with the pickles of a magic number and of a version.
constexpr std::string_view kStream = "\x80\2\x8A\x0A\x6C\xFC\x9C\x46\xF9\x20\x6A\xA8\x50\x19.\x80\2M\xE9\3.";
constexpr const char* kSave = "; write one by torch.save(model.state_dict(), FILE)";

enum class Kind : uint8_t { other, number, text, name, tuple, list, dict, storage, tensor };
/// The Python names that a pickle may use. Parameter and _rebuild_tensor are in files from before PyTorch 0.4. There is
/// no need to tell functions apart, since their arguments differ.
const std::vector<std::string> kPickleNames =
    split("collections.OrderedDict torch.nn.parameter.Parameter torch._utils._rebuild_parameter "
          "torch._utils._rebuild_tensor torch._utils._rebuild_tensor_v2 torch.HalfStorage torch.BFloat16Storage "
          "torch.FloatStorage torch.DoubleStorage torch.ByteStorage torch.BoolStorage torch.IntStorage "
          "torch.LongStorage",
          ' ');
constexpr int64_t kHalf = 5; // the index of the first storage; F16 is read like BF16, and then converted
constexpr DType kStorageTypes[] = {DType::bf16, DType::bf16, DType::f32, DType::f64,
                                   DType::u8,   DType::u8,   DType::i32, DType::i64};

struct Value {
    Kind kind = Kind::other;
    int64_t integer = 0;            // a number, or the index of a name in kPickleNames
    std::string_view view = {};     // a text, or the key of a storage
    std::vector<Value>* items = {}; // of a tuple or list; keys and values of a dict; arguments that make a tensor
    bool is(Kind wanted) const { return kind == wanted; }
};
using Values = std::vector<Value>;

/// The values that tensors share.
struct SharedValues {
    int64_t name, count; // the index in kPickleNames, and the number of values
    std::string_view bytes = {};
    DType type() const { return kStorageTypes[name - kHalf]; }
    size_t size() const { return size_t(count * size_of(type())); }
};

float float_of_half(uint16_t bits) {
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    const float sign = bits & 0x8000 ? -1 : 1;
    if (exponent == 31) return fraction ? NAN : sign * INFINITY;
    return std::ldexp(sign * float(exponent ? fraction + 1024 : fraction), std::max(exponent, 1) - 25);
}

struct Decoder {
    using enum Kind;
    std::string_view bytes;
    std::string where;  // begins the messages
    int64_t bytes_left; // of memory for tensors
    size_t at = 0;
    std::deque<Values> all_items = {}; // a deque keeps its elements where they are
    Values stack = {};
    std::map<std::string_view, SharedValues> storages = {};

    static bool is_state_dict(const Value& value) {
        size_t i = 0; // the index of a key is even
        const auto fits = [&](const Value& item) { return item.is(i++ % 2 ? tensor : text); };
        return value.is(dict) && !value.items->empty() && std::ranges::all_of(*value.items, fits);
    }

    /// Returns true if the value is a tuple that begins with items of these kinds.
    static bool begins(const Value& value, std::initializer_list<Kind> kinds) {
        return value.is(tuple) && value.items->size() >= kinds.size() &&
               std::equal(kinds.begin(), kinds.end(), value.items->begin(),
                          [](Kind k, const Value& v) { return v.is(k); });
    }

    /// Throws Error for a damaged file unless `holds`.
    void check(bool holds, std::string_view expected) const {
        RG_CHECK(holds, where, "expected ", expected, ", got other bytes (before offset ", at,
                 "); the file is damaged, or of another protocol", kSave);
    }
    std::string_view part(size_t begin, size_t size) const {
        RG_CHECK(begin <= bytes.size() && size <= bytes.size() - begin, where, "expected ", size, " bytes at offset ",
                 begin, ", got fewer; the file is cut short: copy or write it again");
        return bytes.substr(begin, size);
    }
    uint64_t number_at(size_t begin, size_t size) const {
        uint64_t value = 0;
        std::memcpy(&value, part(begin, size).data(), size);
        return value;
    }
    std::string_view take(size_t size) { return at += size, part(at - size, size); }
    uint64_t take_number(size_t size) { return at += size, number_at(at - size, size); }

    /// Returns a name, for which the pickle has a line with the module and another with the rest.
    Value take_name() {
        std::string path(take(bytes.find('\n', bytes.find('\n', at) + 1) - at)); // throws if a line has no end
        path[path.find('\n')] = '.', ++at;
        const auto known = std::ranges::find(kPickleNames, path);
        RG_CHECK(known != kPickleNames.end(), where, "expected a state dict, got a call of ", path, kSave);
        return {.kind = name, .integer = known - kPickleNames.begin()};
    }

    /// Takes the values from `begin` on, which may be out of range, from the stack, as one value.
    Value make(Kind kind, size_t begin) {
        check(begin <= stack.size(), "more values");
        all_items.emplace_back(stack.begin() + std::ptrdiff_t(begin), stack.end());
        stack.resize(begin);
        return {.kind = kind, .items = &all_items.back()};
    }
    /// Moves these values of the stack to the list or dict before them.
    void extend(Kind kind, size_t begin) {
        const Values added = *make(tuple, begin).items;
        all_items.pop_back();
        check(begin > 0 && stack.back().is(kind) && (kind == list || added.size() % 2 == 0), "a list or a dict");
        stack.back().items->insert(stack.back().items->end(), added.begin(), added.end());
    }
    Value pop() {
        check(!stack.empty(), "a value");
        const Value value = stack.back();
        return stack.pop_back(), value;
    }

    /// Returns the result of the function and the arguments on the stack.
    Value call() {
        const Value arguments = pop(), function = pop();
        check(function.is(name) && arguments.is(tuple), "a call");
        if (arguments.items->empty()) return make(dict, stack.size());
        if (begins(arguments, {tensor})) return arguments.items->front(); // a parameter
        check(begins(arguments, {storage, number, tuple, tuple}), "the arguments of a tensor");
        return {.kind = tensor, .items = arguments.items};
    }

    /// Returns the storage of a persistent id: "storage", type, key, device, number of values, and perhaps None.
    Value take_storage() {
        const Value value = pop();
        check(begins(value, {text, name, text, text, number}), "a persistent id");
        const Values& id = *value.items;
        const SharedValues& known =
            storages.try_emplace(id[2].view, SharedValues{id[1].integer, id[4].integer}).first->second;
        check(known.name == id[1].integer && known.count == id[4].integer && (id.size() == 5 || id[5].is(other)) &&
                  known.name >= kHalf && known.count >= 0 && known.count <= int64_t(bytes.size()),
              "a storage");
        return {.kind = storage, .view = id[2].view};
    }

    Value read_pickle() {
        std::vector<size_t> marks; // sizes of the stack
        std::map<uint64_t, Value> memo;
        const size_t begin = at;
        stack.clear();
        const auto push = [&](const Value& value) { stack.push_back(value); };
        const auto push_number = [&](int64_t value) { push({.kind = number, .integer = value}); };
        const auto pop_mark = [&] {
            check(!marks.empty(), "a mark");
            const size_t mark = marks.back();
            return marks.pop_back(), mark;
        };
        while (true) {
            check(at - begin < size_t(kMaxTensorHeader), "the end of a pickle of at most 10 MB");
            const size_t size = stack.size();
            switch (const uint64_t instruction = take_number(1); instruction) {
            case 0x80: check(take_number(1) == 2, "protocol 2"); break;
            case 'N': push({}); break;                        // None
            case 'G': take(8), push({}); break;               // a float
            case 0x8A: take(take_number(1)), push({}); break; // a long integer, which sizes do not need
            case 0x88: push_number(1); break;                 // True
            case 0x89: push_number(0); break;                 // False
            case 'K': push_number(int64_t(take_number(1))); break;
            case 'M': push_number(int64_t(take_number(2))); break;
            case 'J': push_number(int32_t(take_number(4))); break;
            case 'X': push({.kind = text, .view = take(take_number(4))}); break;
            case ')': push(make(tuple, size)); break;
            case ']': push(make(list, size)); break;
            case '}': push(make(dict, size)); break;
            case '(': marks.push_back(size); break;
            case 't': push(make(tuple, pop_mark())); break;
            case 0x85: push(make(tuple, size - 1)); break;
            case 0x86: push(make(tuple, size - 2)); break;
            case 0x87: push(make(tuple, size - 3)); break;
            case 'a': extend(list, size - 1); break;
            case 'e': extend(list, pop_mark()); break;
            case 's': extend(dict, size - 2); break;
            case 'u': extend(dict, pop_mark()); break;
            case 'q': push(memo[take_number(1)] = pop()); break;
            case 'r': push(memo[take_number(4)] = pop()); break;
            case 'h': push(memo[take_number(1)]); break;
            case 'j': push(memo[take_number(4)]); break;
            case 'c': push(take_name()); break;
            case 'Q': push(take_storage()); break;
            case 'R': push(call()); break;
            case 'b': pop(); break; // attributes, such as _metadata
            case '.': return pop();
            default: check(false, "instructions of a state dict");
            }
        }
    }

    /// Reads the pickle of the state dict from a zip file, and finds the bytes of the storages.
    Value read_zip() {
        const size_t end = bytes.rfind(kZipEnd, bytes.size() - 22); // of 22 bytes
        check(end != bytes.npos, "the directory at the end of a zip file");
        RG_CHECK(bytes.size() < UINT32_MAX, where, "expected a zip file below 4 GiB, got ", bytes.size(), " bytes",
                 kSave);
        std::map<std::string, std::string_view> members;
        std::string folder;
        at = number_at(end + 16, 4);
        for (uint64_t left = number_at(end + 10, 2); left > 0; --left) {
            const uint64_t size = number_at(at + 24, 4), begin = number_at(at + 42, 4);
            const std::string path(part(at + 46, number_at(at + 28, 2)));
            check(part(at, 4) == kZipEntry && part(begin, 4) == kZip, "a member of a zip file");
            RG_CHECK(number_at(at + 10, 2) == 0 && number_at(at + 20, 4) == size && !(number_at(at + 8, 2) & 1), where,
                     "expected a member without compression, got ", path, "; write the file with torch.save()");
            const size_t data = begin + 30 + number_at(begin + 26, 2) + number_at(begin + 28, 2);
            check(members.emplace(path, part(data, size)).second, "distinct members of a zip file");
            if (path.ends_with("/data.pkl")) folder = path.substr(0, path.size() - std::strlen("data.pkl"));
            at += 46 + path.size() + number_at(at + 30, 2) + number_at(at + 32, 2);
        }
        const std::string_view pickle = members[folder + "data.pkl"], order = members[folder + "byteorder"];
        RG_CHECK(!pickle.empty(), where, "expected data.pkl in the zip file, got none", kSave);
        check(order.empty() || order == "little", "little-endian values");
        at = size_t(pickle.data() - bytes.data());
        const Value value = read_pickle();
        for (auto& [key, it] : storages) it.bytes = members[cat(folder, "data/", key)];
        return value;
    }

    /// Does the same in the older format.
    Value read_stream() {
        at = kStream.size();
        const Value info = read_pickle();
        for (size_t i = 1; info.is(dict) && i < info.items->size(); i += 2)
            check(info.items->at(i - 1).view != "little_endian" || info.items->at(i).integer == 1,
                  "little-endian values");
        const Value value = read_pickle(), keys = read_pickle();
        check(keys.is(list), "the keys of storages");
        for (const Value& key : *keys.items) {
            const auto it = storages.find(key.view);
            check(it != storages.end() && take_number(8) == uint64_t(it->second.count), "a storage of the state dict");
            it->second.bytes = take(it->second.size());
        }
        return value;
    }

    /// Returns the state dict that is at the top, or one level below it.
    const Values& state_dict_of(const Value& value) const {
        if (is_state_dict(value)) return *value.items;
        RG_CHECK(value.is(dict), where, "expected a state dict, got another value", kSave);
        const Values& items = *value.items;
        size_t found = 0;
        std::set<const Values*> seen; // so that a dict that a pickle repeats takes no more time
        for (size_t i = 1; i < items.size(); i += 2) {
            if (!items[i].is(dict) || !seen.insert(items[i].items).second || !is_state_dict(items[i])) continue;
            RG_CHECK(!found, where, "expected one of ", items[found - 1].view, " and ", items[i - 1].view, kSave);
            found = i;
        }
        RG_CHECK(found, where, "expected a state dict, got a dict without one", kSave);
        return *items[found].items;
    }

    /// Returns a contiguous copy of a tensor.
    Tensor copy_of(const Values& arguments) {
        const SharedValues& source = storages.at(arguments[0].view);
        const Values &sizes = *arguments[2].items, &strides = *arguments[3].items;
        RG_CHECK(sizes.size() <= 4, where, "expected at most 4 extents, got ", sizes.size(), "; reshape the tensor");
        const int64_t offset = arguments[1].integer, width = size_of(source.type());
        std::vector<int64_t> extents;
        int64_t count = 1, last = offset, step = 0; // last: index of the last element in the storage
        bool fits = source.bytes.size() == source.size() && offset >= 0 && sizes.size() == strides.size();
        for (size_t i = 0; fits && i < sizes.size(); ++i) {
            extents.push_back(sizes[i].integer);
            fits = extents[i] >= 0 && strides[i].integer >= 0 && !__builtin_mul_overflow(count, extents[i], &count) &&
                   !__builtin_mul_overflow(extents[i] - 1, strides[i].integer, &step) &&
                   !__builtin_add_overflow(last, step, &last) && count <= int64_t(kMaxTensorFile);
        }
        check(fits && (count == 0 || (count <= source.count && last < source.count)), "a view within its storage");
        const bool widens = source.type() == DType::bf16;
        bytes_left -= count * (widens ? 4 : width);
        RG_CHECK(bytes_left >= 0, where, "expected tensors of at most 4 times the file's size, got larger ones", kSave);

        const Tensor values = Tensor::empty_on_host(Shape(extents), source.type());
        std::byte* const to = values.bytes_data();
        for (int64_t i = 0; i < count; ++i) {
            int64_t from = offset, rest = i;
            for (size_t axis = sizes.size(); axis-- > 0; rest /= extents[axis])
                from += rest % extents[axis] * strides[axis].integer;
            std::memcpy(to + i * width, source.bytes.data() + from * width, size_t(width));
        }
        const Tensor result = widens ? values.to(DType::f32) : values;
        for (int64_t i = 0; source.name == kHalf && i < count; ++i)
            result.data<float>()[i] = float_of_half(values.data<bf16>()[i].bits);
        return result;
    }
};

} // namespace

bool is_torch_file(std::string_view bytes) { return bytes.starts_with(kZip) || bytes.starts_with(kStream); }

TensorFile decode_torch_file(std::string_view bytes, const std::string& source) {
    Decoder decoder{bytes, source + ": ", 4 * int64_t(bytes.size())};
    const Values& state = decoder.state_dict_of(bytes.starts_with(kZip) ? decoder.read_zip() : decoder.read_stream());
    const auto is_parallel = [](const Value& v) { return v.is(Kind::tensor) || v.view.starts_with("module."); };
    const bool parallel = std::ranges::all_of(state, is_parallel);
    TensorFile file{{}, {}, source};
    std::set<std::string_view> names;
    for (size_t i = 0; i < state.size(); i += 2) {
        const std::string_view path = state[i].view.substr(parallel ? std::strlen("module.") : 0);
        RG_CHECK(is_utf8(path) && !path.empty() && names.insert(path).second, source,
                 ": expected distinct names of tensors in UTF-8, got \"", path, "\"; rename the tensor");
        decoder.where = cat(source, ": tensor ", path, ": ");
        file.tensors.push_back({std::string(path), decoder.copy_of(*state[i + 1].items)});
    }
    return file;
}

} // namespace rg
