// See packed.h. A file is written as NAME.part and renamed when it is complete, so a kill or a full disk leaves no set
// that could be taken for whole.
#include "ringgrad/data/packed.h"

#include "ringgrad/core/checksum.h"
#include "ringgrad/core/clock.h"
#include "ringgrad/core/descriptor.h"
#include "ringgrad/core/formatted.h"
#include "ringgrad/core/json.h"
#include "ringgrad/core/safetensors.h"
#include "ringgrad/core/stop.h"
#include "ringgrad/core/text.h"
#include "ringgrad/data/bytes.h"
#include "ringgrad/data/cache.h"
#include "ringgrad/data/decode.h"
#include "ringgrad/data/image_folder.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <iostream>
#include <mutex>
#include <sys/stat.h>
#include <unistd.h>

namespace rg::data {

namespace {

namespace fs = std::filesystem;

std::string hex(uint64_t value) { return formatted("%016llx", static_cast<unsigned long long>(value)); }

class File {
public:
    File(const std::string& path, int flags) : path_(path), file_(::open(path.c_str(), flags | O_CLOEXEC, 0600)) {
        RG_CHECK(file_.get() >= 0, "packed set: cannot open ", path, ": ", std::strerror(errno));
    }
    void write(uint64_t offset, std::string_view bytes) const {
        while (!bytes.empty()) {
            const ssize_t n = ::pwrite(file_.get(), bytes.data(), bytes.size(), off_t(offset));
            if (n < 0 && errno == EINTR) continue;
            RG_CHECK(n > 0, "cache: cannot write ", path_, ": ", std::strerror(n < 0 ? errno : ENOSPC),
                     "; make room, or choose another --cache, or --cache none to keep all pixels in memory");
            offset += uint64_t(n);
            bytes.remove_prefix(size_t(n));
        }
    }
    void sync() const {
        RG_CHECK(::fsync(file_.get()) == 0, "cache: cannot write ", path_, ": ", std::strerror(errno));
    }

private:
    const std::string path_;
    const Descriptor file_;
};

Tensor tensor_of(const std::vector<std::string>& texts) {
    std::string all;
    for (const std::string& text : texts) all += text + '\0';
    return Tensor::of<uint8_t>({std::ssize(all)}, as_bytes(all));
}

std::vector<std::string> texts_of(const std::vector<uint8_t>& all) {
    std::vector<std::string> texts;
    for (auto begin = all.begin(), end = begin; begin != all.end(); begin = end + 1) {
        end = std::find(begin, all.end(), 0);
        texts.emplace_back(begin, end);
        if (end == all.end()) break;
    }
    return texts;
}

/// Writes the images into NAME.part.
class Writer final : public PixelSink {
public:
    Writer(const std::string& path, const std::string& source)
        : path_(path), part_(path + ".part"), source_(source), file_(part_, O_CREAT | O_TRUNC | O_RDWR) {}
    ~Writer() override { ::unlink(part_.c_str()); } // after finish(), there is none

    void begin(int64_t count, int64_t height, int64_t width, int64_t channels) override {
        head_.height = uint64_t(height), head_.width = uint64_t(width), head_.channels = uint64_t(channels);
        head_.images = uint64_t(count);
        image_bytes_ = height * width * channels;
        records_ =
            Tensor::of<int64_t>({count, 1 + 2 * channels}, std::vector<int64_t>(size_t(count * (1 + 2 * channels))));
        progress_.emplace(cat("packing ", count, " images of ", source_, " into ", path_, ", ",
                              formatted("%.0f MB", double(count * image_bytes_) / 1e6)));
    }
    void put(int64_t i, std::span<const uint8_t> image) override {
        file_.write(PackedHead::kBytes + uint64_t(i * image_bytes_),
                    {reinterpret_cast<const char*>(image.data()), image.size()});
        const int64_t channels = int64_t(head_.channels);
        const ImageRecord record = record_of(image, channels);
        int64_t* const out = records_.data<int64_t>() + i * (1 + 2 * channels);
        out[0] = int64_t(record.checksum);
        std::copy_n(record.sums.begin(), channels, out + 1);
        std::copy_n(record.squares.begin(), channels, out + 1 + channels);
        const std::lock_guard lock(mutex_);
        ++done_;
        progress_->update([&] {
            const double rate = double(done_) / (seconds_now() - start_);
            return formatted("packing: %lld of %llu images, %.0f images/s, %.0f s left", (long long)done_,
                             (unsigned long long)head_.images, rate, double(int64_t(head_.images) - done_) / rate);
        });
    }
    Pixels pixels() override { return {}; }

    void finish(const Contents& contents) {
        std::vector<NamedTensor> tensors{{"records", records_}};
        for (const auto& [name, set] : {std::pair("train", &contents.sets.train), {"test", &contents.sets.test}}) {
            std::vector<int32_t> rows(size_t(set->count));
            for (int64_t i = 0; i < set->count; ++i) rows[size_t(i)] = int32_t(set->row(i));
            tensors.push_back({cat(name, ".rows"), Tensor::of<int32_t>({set->count}, rows)});
            tensors.push_back({cat(name, ".labels"), Tensor::of<int32_t>({set->count}, set->labels)});
            tensors.push_back({cat(name, ".targets"), Tensor::of<float>({std::ssize(set->targets)}, set->targets)});
            tensors.push_back({cat(name, ".names"), tensor_of(set->names)});
        }
        const std::string tail =
            encode_tensors(tensors, {{"made_as", fs::path(path_).filename().string()},
                                     {"source", printable(source_)},
                                     {"kind", contents.kind},
                                     {"note", contents.note},
                                     {"classes", Json::of_texts(contents.sets.train.classes).dump()},
                                     {"targets", Json::of_texts(contents.sets.train.target_names).dump()},
                                     {"warnings", Json::of_texts(contents.sets.warnings).dump()},
                                     {"left_out", Json::of_texts(contents.sets.left_out).dump()}});
        head_.tail_bytes = tail.size(), head_.tail_checksum = checksum(tail), head_.checksum = head_.own_checksum();
        file_.write(PackedHead::kBytes + head_.images * uint64_t(image_bytes_), tail);
        file_.write(0, {reinterpret_cast<const char*>(&head_), sizeof head_});
        file_.sync();
        fs::rename(part_, path_);
    }

private:
    const std::string path_, part_, source_;
    const File file_;
    const double start_ = seconds_now();
    PackedHead head_{};
    int64_t image_bytes_ = 0, done_ = 0;
    Tensor records_;
    std::mutex mutex_;
    std::optional<Progress> progress_;
};

/// Returns a checksum of the names, sizes and times of the files below a folder.
uint64_t state_of(const std::string& folder) {
    std::vector<std::string> files;
    visit_files(folder, [&](const fs::directory_entry& entry) {
        struct stat info;
        const std::string& path = entry.path().native();
        if (::stat(path.c_str(), &info) == 0 && !S_ISDIR(info.st_mode))
            files.push_back(cat(std::string_view(path).substr(folder.size()), '\0', info.st_size, ' ',
                                info.st_mtim.tv_sec, ' ', info.st_mtim.tv_nsec));
    });
    std::sort(files.begin(), files.end());
    uint64_t sum = files.size();
    for (const std::string& file : files) sum = checksum(cat(sum, file));
    return sum;
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

Contents read_packed(const std::string& path) {
    const auto file = std::make_shared<const PackedFile>(path);
    const TensorFile& tail = file->tail();
    Contents contents;
    contents.kind = tail.text("kind"), contents.note = tail.text("note");
    contents.path = tail.text("source");
    contents.sets.warnings = Json::parse(tail.text("warnings"), "warnings").as_texts();
    if (const std::string* const text = tail.find_text("left_out")) // older sets have none
        contents.sets.left_out = Json::parse(*text, "left_out").as_texts();
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
        set->names = texts_of(names);
        set->classes = Json::parse(tail.text("classes"), "classes").as_texts();
        set->target_names = Json::parse(tail.text("targets"), "targets").as_texts();
        set->count = std::ssize(set->labels), set->height = file->height(), set->width = file->width();
        set->channels = file->channels();
        if (set->count > 0) set->pixels = Pixels(file);
        set->check(path);
    }
    return contents;
}

std::string pack(const std::string& folder, const std::string& shown, const LoadOptions& options, bool temporary,
                 std::shared_ptr<CacheLock>& lock, const std::function<Contents(PixelSink& sink)>& read) {
    const std::string cache = cache_folder(options.cache), whole = fs::canonical(folder).string();
    const uint64_t state = state_of(whole);
    const std::string source = hex(checksum(cat(whole, '\0', options.channels, ' ', options.height, ' ', options.width,
                                                ' ', options.skip_other_images, options.unlabelled,
                                                int(options.label_from), int(options.labels)))),
                      name = cat(source, "-", hex(state), kPackedEnding), path = cache + "/" + name;
    lock = std::make_shared<CacheLock>(cat(cache, "/", source), [&] { return is_complete(path); });
    if (!lock->alone()) return path;
    Writer writer(path, shown);
    const Contents contents = read(writer);
    RG_CHECK(state_of(whole) == state,
             "cache: expected files that do not change while they are packed, got changes in ", shown, "; start again");
    writer.finish(contents);
    for (const fs::directory_entry& entry : fs::directory_iterator(cache)) {
        const std::string other = entry.path().filename().string();
        if (other != name && other.starts_with(source + "-")) fs::remove(entry.path()); // a set, or a part of one
    }
    lock->share(temporary ? path : "");
    return path;
}

} // namespace rg::data
