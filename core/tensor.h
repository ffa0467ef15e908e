// Tensor: a value that names contiguous memory with a shape and an element type.
//
// Images are N H W C, filters K R S C; always contiguous, so there are no strides, and reshape is the only view.
// Copying a Tensor shares its storage. Storage comes from a caching allocator: a training step allocates the same
// sizes again and again, and a returned block is handed out at once without touching the operating system. The
// allocator counts live bytes, and under a DryRun scope it counts without providing memory: that is how a program
// knows the memory that a step will take before it runs one.
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

/// f64 and i64 exist for the reference backend and for files; kernels compute on the others.
enum class DType : uint8_t { f32, bf16, u8, i32, f64, i64 };

int64_t size_of(DType type);
const char* name_of(DType type);

template <class T>
constexpr DType dtype_of();
template <>
constexpr DType dtype_of<float>() {
    return DType::f32;
}
template <>
constexpr DType dtype_of<bf16>() {
    return DType::bf16;
}
template <>
constexpr DType dtype_of<uint8_t>() {
    return DType::u8;
}
template <>
constexpr DType dtype_of<int32_t>() {
    return DType::i32;
}
template <>
constexpr DType dtype_of<double>() {
    return DType::f64;
}
template <>
constexpr DType dtype_of<int64_t>() {
    return DType::i64;
}

/// Up to four extents. A scalar has none.
class Shape {
public:
    Shape() = default;
    Shape(std::initializer_list<int64_t> extents);
    explicit Shape(std::span<const int64_t> extents);
    int rank() const { return rank_; }
    int64_t operator[](int i) const { return extents_[size_t(i)]; }
    int64_t numel() const;
    std::span<const int64_t> extents() const { return {extents_.data(), size_t(rank_)}; }
    bool operator==(const Shape&) const = default;
    /// "[256 32 32 3]"
    std::string str() const;

private:
    std::array<int64_t, 4> extents_{};
    int rank_ = 0;
};

class Device;
struct Storage; // a block of the allocator; freed with its last Tensor

class Tensor {
public:
    Tensor() = default; // undefined: no storage, e.g. an absent bias

    /// Uninitialised contents, in the memory of the context's device if it has one.
    static Tensor empty(const Shape& shape, DType type = DType::f32);
    /// The same in this machine's memory, whatever the context: for values that the program reads and writes itself.
    static Tensor on_host(const Shape& shape, DType type = DType::f32);
    static Tensor zeros(const Shape& shape, DType type = DType::f32);
    /// Over memory of the caller's, aligned to 64 bytes, that must outlive the tensor and all its views.
    static Tensor borrow(std::byte* memory, const Shape& shape, DType type = DType::f32);
    /// Every element `value`, with memory even in a dry run: a constant that a traced function may use.
    static Tensor constant(const Shape& shape, double value, DType type = DType::f32);
    template <class T>
    static Tensor of(const Shape& shape, std::span<const T> values);

    bool defined() const { return id_ != 0; }
    const Shape& shape() const { return shape_; }
    int64_t extent(int i) const { return shape_[i]; }
    DType dtype() const { return dtype_; }
    int64_t numel() const { return shape_.numel(); }
    int64_t bytes() const { return numel() * size_of(dtype_); }

    /// Same elements, another shape. The product of the extents must agree.
    Tensor reshape(const Shape& shape) const;
    /// Elements [begin, begin + shape.numel()) as a tensor of their own that shares the memory (flat buffers). A view
    /// that gradients do not flow through; slice() of ops.h is the op.
    Tensor slice(int64_t begin, const Shape& shape) const;

    /// Where the values are; null: this machine's memory.
    Device* device() const;

    // to_host(), copy_from(), to() and clone() are copies, not ops: gradients do not flow through them (a Tape throws
    // if they would have to), and a traced function must not call them, since its replays would not repeat the copy.

    /// The same values in this machine's memory: the tensor itself if they are there.
    Tensor to_host() const;
    /// Takes the values of a tensor of the same shape and type, wherever both are.
    void copy_from(const Tensor& source) const;

    /// Typed access; throws if T is not the element type, when the tensor has no memory (a dry run), or when that is a
    /// device's.
    template <class T>
    T* data() const {
        return static_cast<T*>(raw(dtype_of<T>()));
    }
    template <class T>
    std::span<T> span() const {
        return {data<T>(), size_t(numel())};
    }
    /// Untyped first byte, in the memory that the tensor is in.
    std::byte* bytes_data() const;
    /// Sets every element. Throws while a function is traced.
    void fill(double value) const;
    /// Element-wise conversion into another type, in this machine's memory.
    Tensor to(DType type) const;
    /// Same bytes, memory of its own in the same place.
    Tensor clone() const;

    /// What makes a tensor the same value to the tape: its block, by a number that is never used again, and place.
    struct Key {
        uint64_t id;
        int64_t offset;
        auto operator<=>(const Key&) const = default;
    };
    Key key() const { return {id_, offset_}; }
    /// Whether there are values to read: not during a dry run.
    bool has_memory() const;
    /// The block that this is a view of, as one run of elements, and its size.
    Tensor whole() const;
    int64_t block_bytes() const;
    /// The same value without a hold on its memory: shape, type and key remain.
    Tensor without_memory() const;
    /// This view (type, shape, place in its block) of the memory of `base` instead.
    Tensor over(const Tensor& base) const;

private:
    static Tensor make(const Shape& shape, DType type, Device* device);
    void take(const Tensor& source) const;
    void set_all(double value) const;
    void* raw(DType wanted) const;
    std::shared_ptr<Storage> storage_;
    uint64_t id_ = 0;    // of the storage; 0: undefined
    int64_t offset_ = 0; // bytes
    Shape shape_;
    DType dtype_ = DType::f32;
};

template <class T>
Tensor Tensor::of(const Shape& shape, std::span<const T> values) {
    Tensor t = on_host(shape, dtype_of<T>());
    RG_CHECK(t.numel() == int64_t(values.size()), "Tensor::of: shape ", shape.str(), " needs ", t.numel(),
             " values, got ", values.size());
    std::copy(values.begin(), values.end(), t.template data<T>());
    return t;
}

/// Bytes now held by all tensors of the process, and the most since reset_peak_bytes().
int64_t live_bytes();
int64_t peak_bytes();
void reset_peak_bytes();

/// While one exists on this thread, Tensor::empty() counts bytes but provides no memory, and ops do not execute. A
/// trace (plan.h) is a dry run that notes what the ops would have done.
class DryRun {
public:
    DryRun();
    ~DryRun();
    DryRun(const DryRun&) = delete;
    DryRun& operator=(const DryRun&) = delete;
    static bool active();
};

/// Each becomes its to_host(), with one wait for all of them. They are on one device, or on none.
void to_host(std::span<Tensor> tensors);

} // namespace rg
