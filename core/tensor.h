// Defines Tensor: a handle to contiguous memory with a shape and an element type.
//
// Images have the extents [n h w c]: number, height, width, channels. Filters have [k r s c]: number, height, width,
// channels. Tensors have no strides: all views, such as those of reshape() and slice(), are contiguous too. A copy of a
// Tensor object shares its storage. So `const` protects the handle, not the values. New storage in host memory comes
// from a cache of freed blocks: a training step allocates the same sizes again and again, mostly without a call of the
// operating system. The bytes of all storage that is not borrowed are counted. In a DryRun they are only counted, and
// there is no memory. So a program can find out how much memory a step needs.
#pragma once

#include "core/base.h"
#include "core/bf16.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <memory>
#include <span>
#include <vector>

namespace rg {

/// f64 exists for the reference backend, and i64 for files. CPU and GPU kernels compute with the other types only.
enum class DType : uint8_t { f32, bf16, u8, i32, f64, i64 };

/// Returns the number of bytes in one element.
int64_t size_of(DType type);
const char* name_of(DType type);

template <class T>
constexpr DType dtype_of() {
    if constexpr (std::is_same_v<T, float>) return DType::f32;
    if constexpr (std::is_same_v<T, bf16>) return DType::bf16;
    if constexpr (std::is_same_v<T, uint8_t>) return DType::u8;
    if constexpr (std::is_same_v<T, int32_t>) return DType::i32;
    if constexpr (std::is_same_v<T, double>) return DType::f64;
    if constexpr (std::is_same_v<T, int64_t>) return DType::i64;
}

/// Holds up to four extents. A scalar has none.
class Shape {
public:
    Shape() = default;
    /// Throws Error for more than four extents, a negative one, or 2^60 or more elements.
    Shape(std::initializer_list<int64_t> extents);
    explicit Shape(std::span<const int64_t> extents);
    int rank() const { return rank_; }
    int64_t operator[](int i) const { return extents_[size_t(i)]; }
    int64_t numel() const;
    std::span<const int64_t> extents() const { return {extents_.data(), size_t(rank_)}; }
    bool operator==(const Shape&) const = default;
    /// Returns a text like "[256 32 32 3]".
    std::string str() const;

private:
    std::array<int64_t, 4> extents_{};
    int rank_ = 0;
};

class Device;
struct Storage; // a block of memory, freed with its last Tensor unless it is borrowed

class Tensor {
public:
    Tensor() = default; // undefined, without storage: for example an absent bias

    /// Returns a tensor with uninitialised values, in device memory if the context has a device. In builds with `debug`
    /// or a sanitizer, values in host memory are NaN (0xFF in each byte), so that a read of them shows.
    static Tensor empty(const Shape& shape, DType type = DType::f32);
    /// Returns a tensor with uninitialised values in host memory, for values that the program itself reads or writes.
    static Tensor empty_on_host(const Shape& shape, DType type = DType::f32);
    static Tensor zeros(const Shape& shape, DType type = DType::f32);
    /// Returns a tensor in host memory of the caller. The memory must be aligned to 64 bytes, and must outlive the
    /// tensor and its views.
    static Tensor borrow(std::byte* memory, const Shape& shape, DType type = DType::f32);
    /// Returns a tensor whose elements are all `value`. It has memory even in a dry run, so a traced function may use
    /// it.
    static Tensor constant(const Shape& shape, double value, DType type = DType::f32);
    /// Returns a tensor in host memory that holds a copy of `values`.
    template <class T>
    static Tensor of(const Shape& shape, std::span<const T> values);

    bool defined() const { return id_ != 0; }
    const Shape& shape() const { return shape_; }
    int64_t extent(int i) const { return shape_[i]; }
    DType dtype() const { return dtype_; }
    int64_t numel() const { return shape_.numel(); }
    int64_t bytes() const { return numel() * size_of(dtype_); }

    /// Returns a view with another shape and the same number of elements. Gradients flow through it.
    Tensor reshape(const Shape& shape) const;
    /// Returns a view of the elements [begin, begin + shape.numel()). Gradients do not flow through a view of a part;
    /// use the op slice() of ops.h for that.
    Tensor slice(int64_t begin, const Shape& shape) const;

    /// Returns the device whose memory holds the values, or null for host memory.
    Device* device() const;

    // to_host(), to_device(), copy_from(), to() and clone() are copies, not ops. Tape::gradients() throws Error if a
    // gradient would have to flow through a copy. A traced function must not call these five functions, because replays
    // would not repeat the copy.

    /// Returns the same values in host memory: the tensor itself if it is there, otherwise a copy.
    Tensor to_host() const;
    /// Returns the same values where the context's ops run: the tensor itself if it is there, otherwise a copy.
    Tensor to_device() const;
    /// Copies the values of `source`, which has the same shape and type, into this tensor. Each of the two tensors may
    /// be in host or device memory.
    void copy_from(const Tensor& source) const;

    /// Returns a pointer to the first element. Throws Error if T is not the element type. If the tensor has elements,
    /// also throws if it has no memory (see has_memory()) or is in device memory.
    template <class T>
    T* data() const {
        return static_cast<T*>(raw(dtype_of<T>()));
    }
    /// Returns all elements. Counts as a write; see version(). To only read values, use data().
    template <class T>
    std::span<T> span() const {
        note_write();
        return {data<T>(), size_t(numel())};
    }
    /// Returns a number that grows whenever an op, copy_from() or fill() writes to the tensor's block of memory, and
    /// when span() gives access to it. Writes through pointers, and by the graphs of a device, do not count.
    uint64_t version() const;
    /// Makes version() grow.
    void note_write() const;
    /// Returns a pointer to the first byte, in host or device memory.
    std::byte* bytes_data() const;
    /// Sets all elements to `value`. Throws Error while a function is traced.
    void fill(double value) const;
    /// Returns a copy with the elements converted to another type. This tensor must be in host memory, and so is the
    /// copy.
    Tensor to(DType type) const;
    /// Returns a copy on the same device, or in host memory if this tensor is there.
    Tensor clone() const;

    /// Says where the values of a tensor begin, for tapes and plans. A reshaped view has the key of its source, and so
    /// does a slice from the first element on. So tensors with the same key share memory, but they may differ in size.
    struct Key {
        uint64_t id;    // number of the block; no other block gets this number
        int64_t offset; // bytes from the start of the block
        auto operator<=>(const Key&) const = default;
    };
    Key key() const { return {id_, offset_}; }
    /// Returns true if the tensor refers to memory. An undefined tensor, one of without_memory(), and a new one without
    /// elements have none. Neither has a tensor that was made in a dry run, unless by constant() or borrow().
    bool has_memory() const;
    /// Returns the whole block of memory that holds this tensor, as a tensor with one extent.
    Tensor whole() const;
    /// Returns the number of bytes in the whole block.
    int64_t block_bytes() const;
    /// Returns a tensor with the same shape, type and key, which does not keep the memory alive.
    Tensor without_memory() const;
    /// Returns a view of the memory of `base`. The view has the type and shape of this tensor. It begins as many bytes
    /// after the start of `base` as this tensor begins after the start of its block.
    Tensor rebased_on(const Tensor& base) const;

private:
    template <class Memory> // Device: where to allocate, null for host memory; std::byte: the caller's memory
    static Tensor make(const Shape& shape, DType type, Memory* memory);
    void copy_bytes_from(const Tensor& source) const;
    void set_all(double value) const;
    void* raw(DType wanted) const;
    std::shared_ptr<Storage> storage_;
    uint64_t id_ = 0;    // number of the block; 0 if undefined
    int64_t offset_ = 0; // bytes from the start of the block
    Shape shape_;
    DType dtype_ = DType::f32;
};

template <class T>
Tensor Tensor::of(const Shape& shape, std::span<const T> values) {
    Tensor t = empty_on_host(shape, dtype_of<T>());
    RG_CHECK(t.numel() == int64_t(values.size()), "Tensor::of: shape ", shape.str(), " needs ", t.numel(),
             " values, got ", values.size(), "; pass one value per element");
    std::copy(values.begin(), values.end(), t.template data<T>());
    return t;
}

/// Returns true if a and b share bytes. Tensors of two calls of Tensor::borrow() count as different memory, even where
/// they overlap.
bool overlap(const Tensor& a, const Tensor& b);

/// Returns the number of bytes that all tensors of the process hold now. Includes the bytes that a DryRun only counts,
/// but no borrowed memory.
int64_t live_bytes();
/// Returns the largest live_bytes() since reset_peak_bytes().
int64_t peak_bytes();
void reset_peak_bytes();
/// Frees the blocks of host memory that are kept for later tensors.
void release_free_blocks();

/// While a DryRun exists on this thread, ops do not execute, and new tensors have no memory, except those of
/// Tensor::constant() and borrow(). live_bytes() still counts the bytes that they would have. A Trace (plan.h) is a dry
/// run that also records the ops.
class DryRun {
public:
    static bool active() { return Scope::current().dry_runs > 0; }

private:
    Setting<int> dry_runs_{Scope::current().dry_runs, Scope::current().dry_runs + 1};
};

/// Replaces each tensor by its to_host(), but waits only once for all copies. All tensors that are not in host memory
/// must be on the same device.
void to_host(std::span<Tensor> tensors);

} // namespace rg
