// Implements Tensor and its storage: a caching allocator with byte counts and a dry-run mode.
//
// The cache keeps freed blocks of host memory by their exact size; a Device has its own allocator. Training allocates
// the same sizes in every step, so after the first steps hardly any block comes from the operating system. If sizes
// vary without end, such as those of a server's batches, the cache would grow. So it is emptied before a new block is
// allocated if it holds more than twice as much as was ever in use. On Linux, the allocator asks for huge pages for
// blocks of 2 MiB or more. Kernels stream through tens of megabytes; as pages of 4 KiB, these would be more pages than
// the TLB of a CPU holds.
#include "core/tensor.h"

#include "core/context.h"
#include "core/device.h"
#include "core/formatted.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <pthread.h>
#include <sys/mman.h>
#include <utility>

namespace rg {

namespace {

std::atomic<int64_t> live{0}, peak{0};
std::atomic<uint64_t> blocks_made{0};

constexpr size_t kAlign = 64, kHugePage = size_t{2} << 20;

/// Holds free blocks by size. The cache is never destroyed, so that tensors with static lifetime can use it at exit.
struct BlockCache {
    std::mutex mutex;
    std::multimap<size_t, void*> free;
    size_t free_bytes = 0, used_bytes = 0, most_used_bytes = 0;
    void clear() {
        for (const auto& [size, block] : free) std::free(block);
        free.clear(), free_bytes = 0;
    }
};
BlockCache& cache() {
    static BlockCache* instance = [] {
        const auto unlock = [] { cache().mutex.unlock(); };
        pthread_atfork([] { cache().mutex.lock(); }, unlock, unlock); // else a forked child could find the mutex locked
        return new BlockCache;
    }();
    return *instance;
}

#if !defined(__has_feature)
#define __has_feature(feature) 0 // g++ before 14
#endif
#if defined(__SANITIZE_ADDRESS__) || __has_feature(address_sanitizer)
constexpr bool kReuse = false; // so that the sanitizer sees a use after free
#else
constexpr bool kReuse = true;
#endif

#ifdef RG_POISON
constexpr bool kPoison = true; // so that a read of uninitialised memory shows
#else
constexpr bool kPoison = false;
#endif

void* take_block(size_t bytes) {
    BlockCache& blocks = cache();
    const std::lock_guard lock(blocks.mutex);
    void* block = nullptr;
    if (const auto it = blocks.free.find(bytes); it != blocks.free.end()) {
        block = it->second;
        blocks.free.erase(it);
        blocks.free_bytes -= bytes;
    } else {
        if (blocks.free_bytes > 2 * blocks.most_used_bytes) blocks.clear();
        const size_t align = bytes >= kHugePage ? kHugePage : kAlign;
        if (posix_memalign(&block, align, bytes) != 0) {
            blocks.clear();
            RG_CHECK(posix_memalign(&block, align, bytes) == 0, "memory: expected ", bytes,
                     " bytes of host memory, got less; use a smaller mini-batch or network");
        }
        if (align == kHugePage) madvise(block, bytes, MADV_HUGEPAGE);
    }
    blocks.used_bytes += bytes;
    blocks.most_used_bytes = std::max(blocks.most_used_bytes, blocks.used_bytes);
    return block;
}

void return_block(void* block, size_t bytes) {
    BlockCache& blocks = cache();
    const std::lock_guard lock(blocks.mutex);
    blocks.used_bytes -= bytes;
    if (!kReuse) return std::free(block);
    blocks.free.emplace(bytes, block);
    blocks.free_bytes += bytes;
}

/// Calls f with a value of the C++ type that `type` names.
template <class F>
void with_type(DType type, F f) {
    switch (type) {
    case DType::f32: return f(float{});
    case DType::bf16: return f(bf16{});
    case DType::u8: return f(uint8_t{});
    case DType::i32: return f(int32_t{});
    case DType::f64: return f(double{});
    case DType::i64: return f(int64_t{});
    }
}

constexpr const char* kItself = "use the tensor itself";

/// Records a copy on the tape, if there is one.
void record_copy(const char* call, const char* instead, const Tensor& from, const Tensor& to) {
    if (Recorder* const tape = Scope::current().tape) tape->record_copy(call, instead, from, to);
}

template <class To, class From>
To convert(From value) {
    if constexpr (std::is_same_v<From, bf16>)
        return convert<To>(to_float(value));
    else if constexpr (std::is_same_v<To, bf16>)
        return to_bf16(float(value));
    else
        return To(value);
}

} // namespace

int64_t size_of(DType type) {
    int64_t size = 0;
    with_type(type, [&](auto v) { size = int64_t(sizeof v); });
    return size;
}

const char* name_of(DType type) {
    static constexpr const char* kNames[] = {"f32", "bf16", "u8", "i32", "f64", "i64"};
    return kNames[size_t(type)];
}

Shape::Shape(std::initializer_list<int64_t> extents)
    : Shape(std::span<const int64_t>(extents.begin(), extents.size())) {}

Shape::Shape(std::span<const int64_t> extents) : rank_(int(extents.size())) {
    RG_CHECK(extents.size() <= 4, "Shape: expected at most 4 extents, got ", extents.size(), "; combine some of them");
    std::copy(extents.begin(), extents.end(), extents_.begin());
    constexpr int64_t kMostElements = int64_t{1} << 60; // up to 8 bytes each, so that int64_t can count the bytes
    int64_t elements = 1;
    for (int64_t e : extents) {
        RG_CHECK(e >= 0, "Shape: expected no negative extent, got ", str(), "; check the sizes");
        RG_CHECK(!__builtin_mul_overflow(elements, e, &elements) && elements < kMostElements,
                 "Shape: expected less than 2^60 elements, got ", str(), "; check the sizes");
    }
}

int64_t Shape::numel() const {
    int64_t n = 1;
    for (int64_t e : extents()) n *= e;
    return n;
}

std::string Shape::str() const {
    std::string text = "[";
    for (int i = 0; i < rank_; ++i) text += cat(i ? " " : "", extents_[size_t(i)]);
    return text + "]";
}

struct Storage {
    Storage(size_t n, Device* target) : bytes(n), device(target) {
        if (device) device_owner = device->weak_from_this().lock();
        if (!DryRun::active() && n > 0) block = device ? device->allocate(n) : take_block(n);
        if (kPoison && block && !device) std::memset(block, 0xFF, n); // 0xFF in each byte is NaN
        const int64_t now = live += int64_t(bytes);
        int64_t old_peak = peak;
        while (now > old_peak && !peak.compare_exchange_weak(old_peak, now)) {}
    }
    Storage(size_t n, std::byte* borrowed) : bytes(n), block(borrowed), device(nullptr), owned(false) {}
    ~Storage() {
        if (!owned) return;
        live -= int64_t(bytes);
        if (block) device ? device->release(block) : return_block(block, bytes);
    }
    Storage(const Storage&) = delete;
    Storage& operator=(const Storage&) = delete;

    size_t bytes;
    void* block = nullptr;
    std::atomic<uint64_t> version{0};
    Device* device;
    std::shared_ptr<Device> device_owner; // null if no shared_ptr owns the device, or if there is no device
    bool owned = true;
};

int64_t live_bytes() { return live; }
int64_t peak_bytes() { return peak; }
void reset_peak_bytes() { peak = live.load(); }
void release_free_blocks() {
    const std::lock_guard lock(cache().mutex);
    cache().clear();
}

template <class Memory>
Tensor Tensor::make(const Shape& shape, DType type, Memory* memory) {
    Tensor t;
    t.shape_ = shape;
    t.dtype_ = type;
    t.storage_ = std::make_shared<Storage>(size_t(t.bytes()), memory);
    t.id_ = ++blocks_made;
    return t;
}

Tensor Tensor::empty(const Shape& shape, DType type) { return make(shape, type, context().device); }

Tensor Tensor::empty_on_host(const Shape& shape, DType type) { return make<Device>(shape, type, nullptr); }

Tensor Tensor::zeros(const Shape& shape, DType type) {
    Tensor t = empty(shape, type);
    if (!DryRun::active()) t.set_all(0);
    return t;
}

Tensor Tensor::borrow(std::byte* memory, const Shape& shape, DType type) {
    RG_CHECK(memory && reinterpret_cast<uintptr_t>(memory) % kAlign == 0,
             "Tensor::borrow: expected memory aligned to 64 bytes, got ",
             formatted("%p", static_cast<const void*>(memory)), "; allocate it with that alignment");
    return make(shape, type, memory);
}

Tensor Tensor::constant(const Shape& shape, double value, DType type) {
    const Setting<int> no_dry_run(Scope::current().dry_runs, 0);
    const Tensor t = empty(shape, type);
    t.set_all(value);
    return t;
}

Tensor Tensor::reshape(const Shape& shape) const {
    RG_CHECK(shape.numel() == numel(), "reshape: expected ", numel(), " elements as in ", shape_.str(), ", got ",
             shape.numel(), " in ", shape.str(), "; choose extents with the same product");
    Tensor t = *this;
    t.shape_ = shape;
    return t;
}

Tensor Tensor::slice(int64_t begin, const Shape& shape) const {
    RG_CHECK(begin >= 0 && begin <= numel() - shape.numel(), "Tensor::slice: expected elements of [0, ", numel(),
             "), got ", shape.numel(), " from element ", begin, "; check begin and shape");
    Tensor t = *this;
    t.shape_ = shape;
    t.offset_ += begin * size_of(dtype_);
    return t;
}

uint64_t Tensor::version() const { return storage_ ? storage_->version.load(std::memory_order_relaxed) : 0; }

void Tensor::note_write() const {
    if (storage_) storage_->version.fetch_add(1, std::memory_order_relaxed);
}

bool Tensor::has_memory() const { return storage_ && storage_->block; }

int64_t Tensor::block_bytes() const {
    RG_CHECK(storage_, "tensor: expected one that holds its memory, got one of without_memory(); keep the original");
    return int64_t(storage_->bytes);
}

Tensor Tensor::whole() const {
    Tensor t = *this;
    t.offset_ = 0;
    t.shape_ = {block_bytes() / size_of(dtype_)};
    return t;
}

Tensor Tensor::rebased_on(const Tensor& base) const {
    Tensor t = *this;
    t.storage_ = base.storage_;
    t.id_ = base.id_;
    t.offset_ += base.offset_;
    return t;
}

bool overlap(const Tensor& a, const Tensor& b) {
    const auto [id, begin] = a.key();
    const auto [other_id, other_begin] = b.key();
    return a.defined() && id == other_id &&
           std::max(begin, other_begin) < std::min(begin + a.bytes(), other_begin + b.bytes());
}

Tensor Tensor::without_memory() const {
    Tensor t = *this;
    t.storage_ = nullptr;
    return t;
}

std::byte* Tensor::bytes_data() const {
    RG_CHECK(defined(), "tensor: expected a value, got an undefined tensor; assign a tensor first");
    RG_CHECK(storage_, "tensor: expected values, got a tensor that no tape saved; add it to the op row's saves");
    RG_CHECK(storage_->block || numel() == 0,
             "tensor: values do not exist while a function is traced, or while a network is made to learn its size; ",
             "read or write them afterwards");
    return static_cast<std::byte*>(storage_->block) + offset_;
}

void* Tensor::raw(DType wanted) const {
    RG_CHECK(wanted == dtype_ || !defined(), "tensor: elements are ", name_of(dtype_), ", not ", name_of(wanted),
             "; convert them with to() or cast()");
    RG_CHECK(!device() || numel() == 0, "tensor: expected values in host memory, got them in the memory of ",
             device()->name(), "; read them with to_host(), write them with copy_from()");
    return bytes_data();
}

Device* Tensor::device() const { return storage_ ? storage_->device : nullptr; }

Tensor Tensor::to_host() const {
    if (!device()) return *this;
    const Tensor host = empty_on_host(shape_, dtype_);
    host.copy_bytes_from(*this);
    record_copy("Tensor::to_host()", kItself, *this, host);
    return host;
}

void to_host(std::span<Tensor> tensors) {
    const auto needs_download = [](const Tensor& t) { return t.device() && t.numel() > 0; };
    for (const Tensor& t : tensors)
        RG_CHECK(!needs_download(t) ||
                     t.device() == std::find_if(tensors.begin(), tensors.end(), needs_download)->device(),
                 "to_host: expected tensors on one device, got two devices; call it once for each device");
    // Allocate all copies before the first download. Only the last download waits for the others. If an allocation
    // between two downloads failed, the downloads in flight would write to freed memory.
    std::vector<Tensor> copies;
    for (const Tensor& t : tensors) copies.push_back(t.device() ? Tensor::empty_on_host(t.shape(), t.dtype()) : t);
    for (size_t i = 0; i < tensors.size(); ++i) {
        const Tensor& t = tensors[i];
        if (!needs_download(t)) continue;
        const bool more = std::any_of(tensors.begin() + i + 1, tensors.end(), needs_download);
        t.device()->download(copies[i].bytes_data(), t.bytes_data(), size_t(t.bytes()), more);
    }
    for (size_t i = 0; i < tensors.size(); ++i)
        if (needs_download(tensors[i])) record_copy("to_host()", kItself, tensors[i], copies[i]);
    std::move(copies.begin(), copies.end(), tensors.begin());
}

Tensor Tensor::to_device() const {
    if (device() == context().device) return *this;
    const Tensor copy = empty(shape_, dtype_);
    copy.copy_from(*this);
    return copy;
}

void Tensor::copy_from(const Tensor& source) const {
    RG_CHECK(source.shape() == shape_ && source.dtype() == dtype_, "copy_from: expected ", name_of(dtype_), " ",
             shape_.str(), ", got ", name_of(source.dtype()), " ", source.shape().str(), "; use reshape() or cast()");
    RG_CHECK(!Scope::current().trace, "copy_from: expected only ops in a traced function, got a copy of ", shape_.str(),
             ", which replays would not repeat; copy before or after the function");
    copy_bytes_from(source);
    record_copy("Tensor::copy_from()", kItself, source, *this);
}

void Tensor::copy_bytes_from(const Tensor& source) const {
    note_write();
    const size_t n = size_t(bytes());
    if (n == 0) return;
    std::byte *const to = bytes_data(), *const from = source.bytes_data();
    Device *const to_device = device(), *const from_device = source.device();
    if (!to_device && !from_device)
        std::memcpy(to, from, n);
    else if (!from_device)
        to_device->upload(to, from, n);
    else if (!to_device)
        from_device->download(to, from, n);
    else
        to_device->copy(to, from, n);
}

void Tensor::fill(double value) const {
    RG_CHECK(!Scope::current().trace, "fill: expected only ops in a traced function, got a fill of ", shape_.str(),
             ", which replays would not repeat; use Tensor::constant(), or fill before the function");
    set_all(value);
}

void Tensor::set_all(double value) const {
    note_write();
    if (device()) {
        const Tensor host = empty_on_host(shape_, dtype_);
        host.set_all(value);
        return copy_bytes_from(host);
    }
    with_type(dtype_, [&](auto v) {
        using T = decltype(v);
        std::fill_n(data<T>(), numel(), convert<T>(value));
    });
}

Tensor Tensor::to(DType type) const {
    Tensor result = empty_on_host(shape_, type);
    with_type(dtype_, [&](auto from) {
        with_type(type, [&](auto to) {
            using From = decltype(from);
            using To = decltype(to);
            const From* in = data<From>();
            To* out = result.data<To>();
            const int64_t n = numel();
            for (int64_t i = 0; i < n; ++i) out[i] = convert<To>(in[i]);
        });
    });
    record_copy("Tensor::to()", "use cast()", *this, result);
    return result;
}

Tensor Tensor::clone() const {
    Tensor result = make(shape_, dtype_, device());
    result.copy_bytes_from(*this);
    record_copy("Tensor::clone()", kItself, *this, result);
    return result;
}

} // namespace rg
