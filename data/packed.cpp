// See packed.h. A file is written as LOCK.part, and renamed to SOURCE-STATE.images when it is complete; LOCK, SOURCE
// and STATE are checksums. So a kill or a full disk leaves no set that could be taken for whole.
#include "data/packed.h"

#include "core/atomic_file.h"
#include "core/checksum.h"
#include "core/clock.h"
#include "core/descriptor.h"
#include "core/formatted.h"
#include "core/json.h"
#include "core/safetensors.h"
#include "core/stop.h"
#include "core/text.h"
#include "data/bytes.h"
#include "data/cache.h"
#include "data/decode.h"
#include "data/source.h"
#include "readers_stamp.h" // kReaders: a checksum of the files that decide what a set holds

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <mutex>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

namespace rg::data {

namespace {

namespace fs = std::filesystem;


Tensor encode_texts(const std::vector<std::string>& texts) {
    std::string all;
    for (const std::string& text : texts) all += text + '\0';
    return Tensor::of<uint8_t>({std::ssize(all)}, as_bytes(all));
}

std::vector<std::string> decode_texts(const std::vector<uint8_t>& all) {
    std::vector<std::string> texts = split(as_text(all), '\0');
    texts.pop_back(); // each text ends with a zero byte
    return texts;
}

/// Writes the images into the file `part`. finish() renames it to `path`.
class Writer final : public PixelSink {
public:
    Writer(const std::string& path, const std::string& part, const std::string& source)
        : path_(path),
          part_(part),
          source_(source),
          file_(::open(part.c_str(), O_CREAT | O_TRUNC | O_RDWR | O_CLOEXEC, 0600)) {
        RG_CHECK(file_.get() >= 0, "packed set: cannot open ", part, ": ", std::strerror(errno));
    }
    ~Writer() override { ::unlink(part_.c_str()); } // after finish(), there is no such file

    void begin(int64_t count, int64_t height, int64_t width, int64_t channels) override {
        head_.height = uint64_t(height), head_.width = uint64_t(width), head_.channels = uint64_t(channels);
        head_.images = uint64_t(count);
        image_bytes_ = height * width * channels;
        stats_ =
            Tensor::of<int64_t>({count, 1 + 2 * channels}, std::vector<int64_t>(size_t(count * (1 + 2 * channels))));
        progress_.emplace(cat("packing ", count, " images of ", source_, " into ", path_, ", ",
                              formatted("%.0f MB", double(count * image_bytes_) / 1e6)));
    }
    void put(int64_t i, std::span<const uint8_t> image) override {
        write(PackedHead::kBytes + uint64_t(i * image_bytes_),
              {reinterpret_cast<const char*>(image.data()), image.size()});
        const int64_t channels = int64_t(head_.channels);
        const ImageStats stats = stats_of(image, channels);
        int64_t* const out = stats_.data<int64_t>() + i * (1 + 2 * channels);
        out[0] = int64_t(stats.checksum);
        std::copy_n(stats.sums.begin(), channels, out + 1);
        std::copy_n(stats.squares.begin(), channels, out + 1 + channels);
        const std::lock_guard lock(mutex_);
        ++done_;
        progress_->update([&] {
            const double rate = double(done_) / (seconds_now() - start_);
            return formatted("packing: %lld of %llu images, %.0f images/s, %.0f s left", (long long)done_,
                             (unsigned long long)head_.images, rate, double(int64_t(head_.images) - done_) / rate);
        });
    }
    Pixels pixels() override { return {}; }

    void finish(const SourceImages& contents) {
        std::vector<NamedTensor> tensors{{"records", stats_}, {"left_out", encode_texts(contents.sets.left_out)}};
        for (const auto& [name, set] : {std::pair("train", &contents.sets.train), {"test", &contents.sets.test}}) {
            std::vector<int32_t> rows(size_t(set->count));
            for (int64_t i = 0; i < set->count; ++i) rows[size_t(i)] = int32_t(set->row(i));
            tensors.push_back({cat(name, ".rows"), Tensor::of<int32_t>({set->count}, rows)});
            tensors.push_back({cat(name, ".labels"), Tensor::of<int32_t>({set->count}, set->labels)});
            tensors.push_back({cat(name, ".targets"), Tensor::of<float>({std::ssize(set->targets)}, set->targets)});
            tensors.push_back({cat(name, ".names"), encode_texts(set->names)});
        }
        const std::string tail =
            encode_tensors(tensors, {{"made_as", fs::path(path_).filename().string()},
                                     {"node", node_name()},
                                     {"source", printable(source_)},
                                     {"kind", contents.kind},
                                     {"note", contents.note},
                                     {"classes", Json::of_texts(contents.sets.train.classes).dump()},
                                     {"targets", Json::of_texts(contents.sets.train.target_names).dump()},
                                     {"warnings", Json::of_texts(contents.sets.warnings).dump()}});
        head_.tail_bytes = tail.size(), head_.tail_checksum = checksum(tail), head_.checksum = head_.own_checksum();
        write(PackedHead::kBytes + head_.images * uint64_t(image_bytes_), tail);
        write(0, {reinterpret_cast<const char*>(&head_), sizeof head_});
        RG_CHECK(::fsync(file_.get()) == 0, "cache: cannot write ", part_, ": ", std::strerror(errno));
        fs::rename(part_, path_);
    }

private:
    void write(uint64_t offset, std::string_view bytes) const {
        while (!bytes.empty()) {
            const ssize_t n = ::pwrite(file_.get(), bytes.data(), bytes.size(), off_t(offset));
            if (n < 0 && errno == EINTR) continue;
            RG_CHECK(n > 0, "cache: cannot write ", part_, ": ", std::strerror(n < 0 ? errno : ENOSPC),
                     "; make room, or choose another --cache, or --cache none to keep all pixels in memory");
            offset += uint64_t(n);
            bytes.remove_prefix(size_t(n));
        }
    }

    const std::string path_, part_, source_;
    const Descriptor file_;
    const double start_ = seconds_now();
    PackedHead head_{};
    int64_t image_bytes_ = 0, done_ = 0;
    Tensor stats_;
    std::mutex mutex_;
    std::optional<ProgressLines> progress_;
};

/// Returns the ID of a file system if it keeps the inode of a file as long as the file exists, the same on all nodes,
/// and sets its ctime at each change. Others, such as FUSE and FAT, invent numbers. Unlike st_dev, the ID is the same
/// for all nodes and mounts.
std::optional<uint64_t> file_system_of(const std::string& path) {
    // The types of ext2 to ext4, XFS, Btrfs, ZFS, F2FS, tmpfs, overlay, NFS, Lustre, GPFS, Ceph, BeeGFS (see statfs)
    static constexpr uint32_t kStable[] = {0xEF53,     0x58465342, 0x9123683E, 0x2FC12FC1, 0xF2F52010, 0x01021994,
                                           0x794C7630, 0x00006969, 0x0BD00BD0, 0x47504653, 0x00C36400, 0x19830326};
    struct statfs info;
    if (::statfs(path.c_str(), &info) != 0 || std::ranges::count(kStable, uint32_t(info.f_type)) == 0) return {};
    return std::bit_cast<uint64_t>(info.f_fsid);
}

/// Returns a checksum of the readers, and of the names and identities of files and folders below a folder.
uint64_t checksum_of_files(const std::string& folder, std::vector<std::string> parts) {
    std::sort(parts.begin(), parts.end());
    FileSystemIds known;
    uint64_t sum = kReaders;
    for (const std::string& path : parts) {
        check_stop();
        sum =
            checksum(cat(sum, path.substr(path.find_first_not_of('/', folder.size())), '\0', identity_of(path, known)));
    }
    return sum;
}

/// Returns true for a set that another node has made; false if it is damaged.
bool made_on_other_node(const std::string& path) try {
    return PackedFile(path).tail().text("node") != node_name();
} catch (const Error&) {
    return false;
}

bool is_complete(const std::string& path) {
    try {
        if (!fs::exists(path)) return false;
        RG_CHECK(PackedFile(path).tail().text("made_as") == fs::path(path).filename(),
                 "packed set: expected the set that was made with this name, got another one (", path, ")");
        return true;
    } catch (const Error& error) {
        std::cerr << "warning: " << printable(error.what()) << "; it is made again\n";
        return false;
    }
}

} // namespace

SourceImages read_packed(const std::string& path) {
    const auto file = std::make_shared<const PackedFile>(path);
    const TensorFile& tail = file->tail();
    SourceImages contents;
    contents.kind = tail.text("kind"), contents.note = tail.text("note");
    contents.packed_from = tail.text("source");
    contents.sets.warnings = Json::parse(tail.text("warnings"), "warnings").as_texts();
    if (const Tensor* const texts = tail.find("left_out")) // older sets have none
        contents.sets.left_out = decode_texts({texts->span<uint8_t>().begin(), texts->span<uint8_t>().end()});
    for (const auto& [name, set] : {std::pair("train", &contents.sets.train), {"test", &contents.sets.test}}) {
        const auto values = [&, part = name]<class T>(const char* what, std::vector<T>& to) {
            const Tensor* const stored = tail.find(cat(part, ".", what));
            RG_CHECK(stored && stored->dtype() == dtype_of<T>(), "packed set: expected ", part, ".", what,
                     ", got another file (", path, ")");
            to.assign(stored->span<T>().begin(), stored->span<T>().end());
        };
        std::vector<uint8_t> names;
        values("rows", set->rows), values("labels", set->labels), values("targets", set->targets);
        values("names", names);
        set->names = decode_texts(names);
        set->classes = Json::parse(tail.text("classes"), "classes").as_texts();
        set->target_names = Json::parse(tail.text("targets"), "targets").as_texts();
        set->count = std::ssize(set->labels), set->height = file->height(), set->width = file->width();
        set->channels = file->channels();
        if (set->count > 0) set->pixels = Pixels(file);
        set->check(path);
    }
    return contents;
}

std::string identity_of(const std::string& path, FileSystemIds& known) {
    struct stat info;
    RG_CHECK(::stat(path.c_str(), &info) == 0, "data: cannot read ", path, ": ", std::strerror(errno));
    if (S_ISDIR(info.st_mode)) return "folder";
    const auto [system, is_new] = known.try_emplace(info.st_dev);
    if (is_new) system->second = file_system_of(path);
    const std::string times = cat(info.st_size, ' ', info.st_mtim.tv_sec, ' ', info.st_mtim.tv_nsec, ' ',
                                  info.st_ctim.tv_sec, ' ', info.st_ctim.tv_nsec, ' ');
    if (system->second) return cat(times, *system->second, ' ', info.st_ino);
    constexpr int64_t kPiece = 4096, kPieces = 4;
    if (path.ends_with(".csv") || info.st_size <= kPiece) return cat(times, checksum(read_file(path)));
    std::ifstream file(path, std::ios::binary);
    std::string pieces(kPiece * kPieces, '\0');
    for (int64_t i = 0; i < kPieces; ++i)
        file.seekg((info.st_size - kPiece) * i / (kPieces - 1)).read(&pieces[size_t(i * kPiece)], kPiece);
    RG_CHECK(file, "data: cannot read ", path);
    return cat(times, checksum(pieces));
}

std::string find_or_pack(const std::string& folder, const std::string& shown, const LoadOptions& options,
                         std::shared_ptr<CacheLock>& lock, const std::function<std::vector<std::string>()>& parts,
                         const std::function<SourceImages(PixelSink& sink)>& read) {
    const std::string state = hex(checksum_of_files(folder, parts()));
    const std::string source = hex(checksum(cat(fs::canonical(folder).string(), '\0', options.channels, ' ',
                                                options.height, ' ', options.width, ' ', options.skip_other_images,
                                                options.unlabelled, int(options.label_from), int(options.labels))));
    const std::string cache = cache_folder(options.cache);
    // Each state has a lock of its own. For local copies of a folder on two nodes have different states, and a job on
    // both keeps the lock of the first while it packs the second.
    const auto base_of = [&](std::string_view of) { return cat(cache, "/", hex(checksum(cat(source, of)))); };
    const std::string base = base_of(state);
    const bool temporary = folder.starts_with(cache + "/") && folder.ends_with(kTemporary);
    const std::string path = cat(temporary ? base + '.' : cat(cache, "/", source, '-'), state, kPackedEnding);
    lock = std::make_shared<CacheLock>(base, [&] { return is_complete(path); });
    if (!lock->exclusive()) return path;
    Writer writer(path, base + ".part", shown);
    const SourceImages contents = read(writer);
    RG_CHECK(hex(checksum_of_files(folder, parts())) == state,
             "cache: expected files that do not change while they are packed, got changes in ", shown, "; start again");
    writer.finish(contents);
    if (temporary) return path;
    for (const fs::directory_entry& entry : fs::directory_iterator(cache)) {
        const std::string other = entry.path(), name = entry.path().filename();
        if (!name.starts_with(source + "-") || name == fs::path(path).filename()) continue;
        const std::string_view its_state = std::string_view(name).substr(source.size() + 1, state.size());
        const Descriptor file(::open((base_of(its_state) + ".lock").c_str(), O_RDWR | O_CLOEXEC));
        const bool is_read = its_state != state && file.get() >= 0 && try_lock(file.get(), LOCK_EX) != Locked::yes;
        if (!is_read && !made_on_other_node(other)) fs::remove(other);
    }
    lock->downgrade();
    return path;
}

} // namespace rg::data
