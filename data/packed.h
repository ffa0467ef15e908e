// Packed sets: the images of a source in one file, decoded and resized. All processes of a node map it, so they share
// its memory, the system drops what does not fit, and a later start decodes nothing.
//
// A file consists of a head of 4096 bytes, the pixels u8 [n height width channels], and a tail: a safetensors file
// (core/safetensors.h) with an ImageRecord of each image, and the labels, targets, names and rows of both sets. The
// head and the tail have checksums that are compared when the file is opened, and each image has one that is compared
// when the image is read for the first time. So a damaged file is an error or is made anew.
#pragma once

#include "ringgrad/core/safetensors.h"
#include "ringgrad/data/dataset.h"

#include <atomic>
#include <functional>
#include <optional>

namespace rg::data {

class CacheLock;
class PixelSink;

/// The end of the names of packed sets.
inline constexpr std::string_view kPackedEnding = ".images";

/// A packed set that is mapped into memory.
class PackedFile {
public:
    /// Throws Error if there is no such file, or if it is not a complete packed set.
    explicit PackedFile(const std::string& path);
    ~PackedFile();
    PackedFile(const PackedFile&) = delete;
    PackedFile& operator=(const PackedFile&) = delete;

    std::span<const uint8_t> pixels() const { return pixels_; }
    /// Throws Error if the image is damaged.
    void check_image(int64_t row) const {
        if (!checked_[size_t(row)].load(std::memory_order_relaxed)) compare(row);
    }
    ImageRecord record(int64_t row) const;
    /// See ImageSet::will_need().
    void will_need(int64_t row) const;
    const TensorFile& tail() const { return *tail_; }
    int64_t height() const { return height_; }
    int64_t width() const { return width_; }
    int64_t channels() const { return channels_; }

private:
    void compare(int64_t row) const;

    const std::string path_;
    std::span<uint8_t> file_; // the mapped bytes
    std::span<const uint8_t> pixels_;
    std::optional<TensorFile> tail_;
    Tensor records_;
    int64_t height_ = 0, width_ = 0, channels_ = 0, image_bytes_ = 0;
    bool ahead_ = false; // true: the file may exceed the memory
    mutable std::vector<std::atomic<uint8_t>> checked_;
};

/// The images of a source before some are held out for testing. `kind` and `note` describe them (see described()).
struct Contents {
    TrainTest sets;
    std::string kind, note;
};

/// Returns the contents of a packed set. Throws Error like PackedFile().
Contents read_packed(const std::string& path);

/// Returns the path of the packed set in the cache for the files below `folder`, with the channels, the size and the
/// other choices of the options. If there is none, or if the names, sizes or times of the files have changed since,
/// calls `read` and makes one with the images that it gives to the sink. Removes older sets of the same folder. Prints
/// its progress to standard error. Keep `lock` until all processes of the node have opened the set; a temporary set is
/// deleted with it. Throws Error if the
/// disk is full, if files change while they are read, and if `read` does. Call make_cache() before (cache.h).
std::string pack(const std::string& folder, const LoadOptions& options, bool temporary,
                 std::shared_ptr<CacheLock>& lock, const std::function<Contents(PixelSink& sink)>& read);

} // namespace rg::data
