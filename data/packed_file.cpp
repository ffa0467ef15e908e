// See packed_file.h.
#include "data/packed_file.h"

#include "core/control_groups.h"
#include "core/descriptor.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace rg::data {

ImageStats stats_of(std::span<const uint8_t> image, int64_t channels) {
    ImageStats stats{checksum({reinterpret_cast<const char*>(image.data()), image.size()})};
    for (size_t c = 0; c < size_t(channels); ++c)
        for (size_t i = c; i < image.size(); i += size_t(channels)) {
            stats.sums[c] += image[i];
            stats.squares[c] += uint64_t{image[i]} * image[i];
        }
    return stats;
}

bool is_packed(const std::string& path) {
    const Descriptor file(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
    uint64_t magic = 0;
    return ::pread(file.get(), &magic, sizeof magic, 0) == sizeof magic && magic == PackedHead::kMagic;
}

PackedFile::PackedFile(const std::string& path) : path_(path) {
    const std::string damaged = cat("packed set: expected a complete file, got a damaged one (", path, ")");
    const Descriptor file(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC)); // a FIFO would block otherwise
    RG_CHECK(file.get() >= 0, "packed set: cannot open ", path, ": ", std::strerror(errno));
    struct stat info;
    const bool complete = ::fstat(file.get(), &info) == 0 && size_t(info.st_size) > PackedHead::kBytes;
    const size_t size = complete ? size_t(info.st_size) : 0;
    void* const bytes = complete ? ::mmap(nullptr, size, PROT_READ, MAP_SHARED, file.get(), 0) : nullptr;
    RG_CHECK(complete, damaged);
    RG_CHECK(bytes != MAP_FAILED, "packed set: cannot map ", path, ": ", std::strerror(errno));
    file_ = {static_cast<uint8_t*>(bytes), [size](uint8_t* mapped) { ::munmap(mapped, size); }};
    std::memcpy(&head_, bytes, sizeof head_);
    RG_CHECK(head_.magic == PackedHead::kMagic && head_.checksum == head_.own_checksum(), damaged);
    // Anyone can write right checksums, so the numbers are checked, too: no product of them may overflow.
    constexpr uint64_t kMost = uint64_t{1} << 28;
    RG_CHECK(head_.height >= 1 && head_.height <= kMost && head_.width >= 1 && head_.width <= kMost &&
                 head_.channels >= 1 && head_.channels <= uint64_t(kMaxImageChannels) &&
                 head_.images <= size / (head_.height * head_.width * head_.channels) && head_.tail_bytes <= size,
             damaged);
    image_bytes_ = int64_t(head_.height * head_.width * head_.channels);
    const uint64_t pixels = head_.images * uint64_t(image_bytes_);
    RG_CHECK(size == PackedHead::kBytes + pixels + head_.tail_bytes, damaged);
    pixels_ = {file_.get() + PackedHead::kBytes, pixels};
    const std::string_view tail(reinterpret_cast<const char*>(file_.get() + PackedHead::kBytes + pixels),
                                head_.tail_bytes);
    RG_CHECK(checksum(tail) == head_.tail_checksum, damaged);
    tail_ = decode_tensors(tail, path);
    stats_ = tail_->tensor("records", DType::i64, {int64_t(head_.images), 1 + 2 * channels()});
    checked_ = std::vector<std::atomic<uint8_t>>(head_.images);
    // Where all pixels fit into memory, the system's own reading ahead is best. Otherwise it would read the
    // neighbours of each image in vain.
    ahead_ = int64_t(pixels) > available_memory() / 2;
    if (ahead_) ::madvise(bytes, size, MADV_RANDOM);
}

void PackedFile::compare(int64_t row) const {
    const uint8_t* const image = &pixels_[size_t(row * image_bytes_)];
    RG_CHECK(checksum({reinterpret_cast<const char*>(image), size_t(image_bytes_)}) == stats(row).checksum,
             "packed set: expected undamaged pixels, got another checksum of image ", row, " (", path_,
             "); remove the file, and it will be made again");
    checked_[size_t(row)].store(1, std::memory_order_relaxed);
}

ImageStats PackedFile::stats(int64_t row) const {
    const int64_t* const in = stats_.data<int64_t>() + row * (1 + 2 * channels());
    ImageStats stats{uint64_t(in[0])};
    std::copy_n(in + 1, channels(), stats.sums.begin());
    std::copy_n(in + 1 + channels(), channels(), stats.squares.begin());
    return stats;
}

void PackedFile::will_need(int64_t row) const {
    if (!ahead_) return;
    const auto page = uintptr_t(::sysconf(_SC_PAGESIZE)), begin = uintptr_t(&pixels_[size_t(row * image_bytes_)]);
    ::madvise(reinterpret_cast<void*>(begin / page * page), begin % page + size_t(image_bytes_), MADV_WILLNEED);
}

} // namespace rg::data
