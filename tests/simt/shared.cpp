// Implements the arena of shared memory. Each thread of the process has one, which serves one block at a time.
#include "tests/simt/shared.h"

#include "tests/simt/sanitizers.h"

#include <algorithm>
#include <cstring>

namespace rg::simt {
namespace {

constexpr size_t kAlign = 128;
// Room for the shared memory of a block, and for redzones and padding of 64 arrays.
constexpr size_t kCapacity = SharedArena::kTotalLimit + 64 * (SharedArena::kRedzone + kAlign);
constexpr std::byte kFill{0xFF};

size_t round_up(size_t bytes, size_t align) { return (bytes + align - 1) / align * align; }

} // namespace

SharedArena::SharedArena() : storage_(kCapacity + kAlign) {
    const size_t misaligned = reinterpret_cast<uintptr_t>(storage_.data()) % kAlign;
    memory_ = storage_.data() + (kAlign - misaligned) % kAlign;
    std::memset(memory_, int(kFill), kCapacity);
    poison(memory_, kCapacity);
}

SharedArena::~SharedArena() { unpoison(memory_, kCapacity); }

void SharedArena::start_block(size_t dynamic_bytes) {
    unpoison(memory_, used_);
    std::memset(memory_, int(kFill), used_);
    poison(memory_, used_);
    arrays_.clear();
    used_ = 0;
    static_bytes_ = 0;
    if (dynamic_bytes) add(nullptr, "dynamic shared memory", dynamic_bytes);
}

SharedArena::Array& SharedArena::add(const void* key, const char* name, size_t bytes) {
    const size_t begin = round_up(used_ + kRedzone, kAlign);
    const size_t end = begin + bytes + kRedzone;
    RG_CHECK(end <= kCapacity, "shared memory: more than 64 arrays");
    used_ = end;
    unpoison(memory_ + begin, bytes);
    return arrays_.emplace_back(Array{key, name, begin, bytes});
}

std::byte* SharedArena::array(const void* key, const char* name, size_t bytes, Site site) {
    for (const Array& array : arrays_)
        if (array.key == key) return memory_ + array.begin;
    size_t total = bytes; // static and dynamic
    for (const Array& array : arrays_) total += array.bytes;
    static_bytes_ += bytes;
    if (static_bytes_ > kStaticLimit)
        fail_here(site, cat(static_bytes_, " bytes of static shared memory with ", name, ", at most ", kStaticLimit));
    if (total > kTotalLimit)
        fail_here(site, cat(total, " bytes of shared memory with ", name, ", at most ", kTotalLimit));
    return memory_ + add(key, name, bytes).begin;
}

std::byte* SharedArena::dynamic(const char* name) {
    for (Array& array : arrays_)
        if (!array.key) {
            array.name = name;
            return memory_ + array.begin;
        }
    return memory_ + add(nullptr, name, 0).begin; // no dynamic memory at launch: an empty array, as on the GPU
}

bool SharedArena::contains(const void* memory, size_t bytes) const {
    const std::byte* const begin = static_cast<const std::byte*>(memory);
    return std::any_of(arrays_.begin(), arrays_.end(), [&](const Array& array) {
        return begin >= memory_ + array.begin && begin + bytes <= memory_ + array.begin + array.bytes;
    });
}

std::string SharedArena::damage() const {
    if (kAsan) return {}; // ASan has reported any damage, and redzones must not be read
    static const std::vector<std::byte> clean(kRedzone, kFill);
    for (const Array& array : arrays_) {
        const std::byte* const before = memory_ + array.begin - kRedzone;
        const std::byte* const after = memory_ + array.begin + array.bytes;
        if (std::memcmp(after, clean.data(), kRedzone) != 0) {
            size_t past = kRedzone;
            while (after[past - 1] == kFill) --past;
            return cat("shared array ", array.name, " of ", array.bytes, " bytes was written up to ", past,
                       " bytes past its end");
        }
        if (std::memcmp(before, clean.data(), kRedzone) != 0) {
            size_t first = 0;
            while (before[first] == kFill) ++first;
            return cat("shared array ", array.name, " of ", array.bytes, " bytes was written up to ", kRedzone - first,
                       " bytes before its beginning");
        }
    }
    return {};
}

} // namespace rg::simt
