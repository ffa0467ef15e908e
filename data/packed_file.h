// The file of a packed set (packed.h), and its memory map.
//
// A file consists of a head of 4096 bytes, the pixels u8 [n height width channels], and a tail: a safetensors file
// (core/safetensors.h) with the ImageStats of each image, i64 [n 1 + 2 channels], and the labels, targets, names and
// rows of both sets. The head and the tail have checksums that are compared when the file is opened, and each image has
// one that is compared when the image is read for the first time.
#pragma once

#include "core/checksum.h"
#include "core/ops/augment.h"
#include "core/safetensors.h"

#include <array>
#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace rg::data {

/// The end of the names of packed sets.
inline constexpr std::string_view kPackedEnding = ".images";

/// A checksum of one image, and the sums of its bytes and of their squares by channel.
struct ImageStats {
    uint64_t checksum = 0;
    std::array<uint64_t, kMaxImageChannels> sums{}, squares{};
};
ImageStats stats_of(std::span<const uint8_t> image, int64_t channels);

/// The first bytes of a file, little-endian. They fill a page, so that the pixels begin at one.
struct PackedHead {
    static constexpr size_t kBytes = 4096;
    static constexpr uint64_t kMagic = 0x3173'6567'616d'6972; // "rimages1"
    uint64_t magic = kMagic, height = 0, width = 0, channels = 0, images = 0, tail_bytes = 0, tail_checksum = 0;
    uint64_t checksum = 0; // checksum of the numbers before it
    uint64_t own_checksum() const {
        return rg::checksum({reinterpret_cast<const char*>(this), offsetof(PackedHead, checksum)});
    }
};

/// Returns true if the file begins like a packed set, which may be damaged.
bool is_packed(const std::string& path);

/// A packed set that is mapped into memory.
class PackedFile {
public:
    /// Maps the file. Throws Error if there is no such file, or if it is not a complete packed set.
    explicit PackedFile(const std::string& path);

    std::span<const uint8_t> pixels() const { return pixels_; }
    /// Throws Error if the image is damaged.
    void check_image(int64_t row) const {
        if (!checked_[size_t(row)].load(std::memory_order_relaxed)) compare(row);
    }
    ImageStats stats(int64_t row) const;
    /// See ImageSet::will_need().
    void will_need(int64_t row) const;
    const TensorFile& tail() const { return *tail_; }
    int64_t height() const { return int64_t(head_.height); }
    int64_t width() const { return int64_t(head_.width); }
    int64_t channels() const { return int64_t(head_.channels); }

private:
    void compare(int64_t row) const;

    const std::string path_;
    std::unique_ptr<uint8_t, std::function<void(uint8_t*)>> file_; // the mapped bytes
    PackedHead head_;
    std::span<const uint8_t> pixels_;
    std::optional<TensorFile> tail_;
    Tensor stats_;
    int64_t image_bytes_ = 0;
    bool ahead_ = false; // true: the pixels may not fit into memory, so will_need() loads images
    mutable std::vector<std::atomic<uint8_t>> checked_;
};

} // namespace rg::data
