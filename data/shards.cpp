// Decodes images as they arrive. finish() makes the two sets, and labels images by class folder, since only then all
// names are known. See shards.h.
#include "ringgrad/data/shards.h"

#include "ringgrad/core/atomic_file.h"
#include "ringgrad/core/temp_folder.h"
#include "ringgrad/core/text.h"
#include "ringgrad/data/cifar.h"
#include "ringgrad/data/inflate.h"
#include "ringgrad/data/png.h"
#include "ringgrad/data/tar.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

namespace rg::data {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kS3 = "s3://", kPipe = "pipe:";
constexpr size_t kMaxShards = 1000000, kMaxDigits = 9;
constexpr int32_t kMaxClass = 99999;
constexpr int64_t kBatchBytes = 16 << 20; // a larger batch of several objects is divided
constexpr size_t kBatchObjects = 4096;

// ---- braces ----

/// The characters that expansion uses, and the bytes that replace them in text that the shell must get unchanged.
constexpr std::string_view kBraces = "{},", kHidden = "\1\2\3";

std::string translated(std::string text, std::string_view from, std::string_view to) {
    for (char& c : text)
        if (const size_t i = from.find(c); i != from.npos) c = to[i];
    return text;
}

/// Returns the length of a range of numbers {FROM..TO} at the beginning of the text, or 0 if there is none.
size_t range_length(std::string_view text) {
    size_t i = 1;
    const auto digits = [&] {
        const size_t begin = i;
        while (i < text.size() && text[i] >= '0' && text[i] <= '9') ++i;
        return i > begin;
    };
    if (text[0] != '{' || !digits() || text.substr(i, 2) != "..") return 0;
    i += 2;
    return digits() && i < text.size() && text[i] == '}' ? i + 1 : 0;
}

/// Replaces braces and commas that are quoted or follow a backslash, so that they are not expanded. Ranges of numbers
/// in quotes stay, because they name shards too: WebDataset expands them before any shell. A quote without an end is an
/// ordinary character.
std::string hidden(std::string text) {
    for (size_t i = 0; i < text.size(); ++i) {
        const char quote = text[i];
        if (quote != '\'' && quote != '"' && quote != '\\') continue;
        size_t end = i + 1;
        if (quote != '\\')
            for (; end < text.size() && text[end] != quote; ++end) end += quote == '"' && text[end] == '\\';
        if (end >= text.size()) continue;
        for (++i; i <= end; ++i) {
            for (size_t n = 1; n > 0 && quote != '\\' && text[i] == '{'; i += n)
                n = range_length(std::string_view(text).substr(i));
            text[i] = translated({text[i]}, kBraces, kHidden)[0];
        }
        i = end;
    }
    return text;
}

/// Returns the alternatives inside a pair of braces: the numbers of a range FROM..TO, or the parts between commas.
/// Returns nothing if the text is neither.
std::vector<std::string> alternatives(const std::string& inside) {
    const size_t dots = inside.find("..");
    if (dots != inside.npos) {
        const std::string from = inside.substr(0, dots), to = inside.substr(dots + 2);
        const auto is_number = [](const std::string& s) {
            return !s.empty() && s.size() <= kMaxDigits && s.find_first_not_of("0123456789") == s.npos;
        };
        if (is_number(from) && is_number(to)) {
            const bool padded = (from.size() > 1 && from[0] == '0') || (to.size() > 1 && to[0] == '0');
            const size_t width = padded ? std::max(from.size(), to.size()) : 0;
            const int64_t first = std::stoll(from), last = std::stoll(to), step = first <= last ? 1 : -1;
            RG_CHECK(size_t(std::abs(last - first)) < kMaxShards, "data: expected at most ", kMaxShards,
                     " shards, got {", inside, "}");
            std::vector<std::string> numbers;
            for (int64_t i = first; i != last + step; i += step) {
                const std::string digits = cat(i);
                numbers.push_back(std::string(width - std::min(width, digits.size()), '0') + digits);
            }
            return numbers;
        }
    }
    std::vector<std::string> parts(1);
    int depth = 0;
    for (const char c : inside) {
        depth += (c == '{') - (c == '}');
        if (c == ',' && depth == 0)
            parts.emplace_back();
        else
            parts.back() += c;
    }
    return parts.size() > 1 ? parts : std::vector<std::string>{};
}

std::vector<std::string> expand(const std::string& text) {
    for (size_t begin = text.find('{'); begin != text.npos; begin = text.find('{', begin + 1)) {
        if (begin > 0 && text[begin - 1] == '$') continue;
        size_t end = begin;
        int depth = 0;
        for (; end < text.size(); ++end) {
            depth += (text[end] == '{') - (text[end] == '}');
            if (depth == 0) break;
        }
        if (end == text.size()) continue;
        const std::vector<std::string> inside = alternatives(text.substr(begin + 1, end - begin - 1));
        if (inside.empty()) continue;
        std::vector<std::string> all;
        const std::vector<std::string> rests = expand(text.substr(end + 1));
        for (const std::string& one : inside)
            for (const std::string& middle : expand(one))
                for (const std::string& rest : rests) {
                    RG_CHECK(all.size() < kMaxShards, "data: expected at most ", kMaxShards, " shards, got more");
                    all.push_back(text.substr(0, begin) + middle + rest);
                }
        return all;
    }
    return {text};
}

// ---- names ----

/// Kind of a shard, by the name of its file. A shard of kind `other` that is not a batch is read as a tar.
enum class Stream : uint8_t { tar, cifar, class_names, other };
Stream stream_of(std::string name) {
    name = lower(name);
    if (name.ends_with(".gz")) name.resize(name.size() - 3);
    if (name.ends_with(".bin")) return Stream::cifar;
    const std::string file = name.substr(name.rfind('/') + 1);
    if (file == "batches.meta.txt" || file == "fine_label_names.txt") return Stream::class_names;
    return name.ends_with(".tar") || name.ends_with(".tgz") ? Stream::tar : Stream::other;
}

/// Returns the name of a shard's file. For S3 it is BUCKET/KEY. For a command it is the last word whose name tells the
/// kind of its contents, or "" if there is none. The query of an address is not part of the name, since the query of a
/// signed address holds arbitrary text.
std::string file_of(const std::string& url) {
    if (url.starts_with(kS3)) return url.substr(kS3.size());
    std::string file, word;
    for (const char c : url.substr(kPipe.size()) + " ") {
        if (std::string_view(" \t'\"|<>;=()").find(c) == std::string_view::npos) {
            word += c;
            continue;
        }
        if (word.find("://") != word.npos) word.resize(std::min(word.find_first_of("?#"), word.size()));
        if (stream_of(word) != Stream::other) file = word;
        word.clear();
    }
    return file;
}

/// Returns the words of a text in lower case, such as "train" in "imagenet-train-000.tar". A word is a run of letters
/// and digits.
std::vector<std::string> words_of(const std::string& text) {
    std::vector<std::string> words(1);
    for (const char c : lower(text))
        if (std::isalnum(uint8_t(c)))
            words.back() += c;
        else if (!words.back().empty())
            words.emplace_back();
    return words;
}

bool is_train(const std::string& word) { return word == "train" || word == "training"; }
bool is_test(const std::string& word) {
    return word == "test" || word == "testing" || word == "val" || word == "valid" || word == "validation";
}

/// Returns the number of characters in the folders that all names begin with.
size_t common_folders(const std::vector<std::string>& names) {
    std::string common = names[0].substr(0, names[0].rfind('/') + 1);
    for (const std::string& name : names)
        while (!name.starts_with(common)) {
            common.pop_back();
            common.resize(common.rfind('/') + 1);
        }
    return common.size();
}

/// Returns the text after the last point in lower case, such as "png", and the path up to the first point in the file's
/// name (WebDataset's key).
std::pair<std::string, std::string> type_and_key(const std::string& path) {
    const size_t point = path.find('.', path.rfind('/') + 1);
    if (point == path.npos) return {"", path};
    return {lower(path.substr(path.rfind('.') + 1)), path.substr(0, point)};
}

/// Returns the label in the text of a .cls file. Throws Error unless it is a number of 0 to kMaxClass.
int32_t parse_label(std::string_view text, const std::string& key, const std::string& name) {
    text = text.substr(0, text.find_last_not_of(" \r\n") + 1);
    int32_t label = -1;
    RG_CHECK(read_number(text, label) && label >= 0 && label <= kMaxClass, "data: expected a number of 0 to ",
             kMaxClass, " in ", key, ".cls, got something else (", name, ")");
    return label;
}

// ---- batches of PNGs ----

/// Returns the part of an object's URL below the folder that `path` names: "cat/1.png" for s3://bucket/set/cat/1.png
/// and s3://bucket/set/ or s3://bucket/set/c.
std::string below_prefix(const std::string& path, const std::string& url) {
    const bool bucket_alone = path.find('/', kS3.size()) == path.npos;
    return url.substr(bucket_alone ? path.size() + 1 : path.rfind('/') + 1);
}

/// Divides sorted objects into batches, and appends these. The URLs of a batch begin with a common text, since aws
/// selects objects by such a text. If a batch of several objects is too large, it is divided by the next character of
/// the URLs.
void add_batches(std::vector<Shard>& batches, std::span<const S3Object> objects) {
    int64_t bytes = 0;
    for (const S3Object& object : objects) bytes += object.bytes;
    const std::string &first = objects.front().url, &last = objects.back().url;
    const auto common =
        size_t(std::mismatch(first.begin(), first.end(), last.begin(), last.end()).first - first.begin());
    if (first == last || (objects.size() <= kBatchObjects && bytes <= kBatchBytes)) {
        batches.push_back({first.substr(0, common), bytes, {objects.begin(), objects.end()}});
        return;
    }
    const auto next = [&](const S3Object& object) { return object.url.substr(common, 1); };
    for (size_t begin = 0, end; begin < objects.size(); begin = end) {
        for (end = begin + 1; end < objects.size() && next(objects[end]) == next(objects[begin]);) ++end;
        add_batches(batches, objects.subspan(begin, end - begin));
    }
}

/// Fetches a batch, and returns the bytes of its objects one after the other.
std::string fetch_batch(const Shard& shard, const FetchOptions& options) {
    const TempFolder folder;
    const S3Batch batch = s3_get_batch(find_s3_client(), shard.url, shard.objects, folder.path());
    const auto collect = [&](std::string& bytes) {
        bytes.clear(); // drops the client's messages
        for (size_t i = 0; i < shard.objects.size(); ++i) {
            const auto& [url, size] = shard.objects[i];
            std::error_code ignored;
            RG_CHECK(fs::exists(batch.files[i], ignored), "expected ", size, " bytes of ", url, ", got no file");
            const std::string file = read_file(batch.files[i]);
            RG_CHECK(int64_t(file.size()) == size, "expected ", size, " bytes of ", url, ", got ", file.size(),
                     "; the stream was cut");
            bytes += file;
        }
    };
    const std::string name =
        cat(s3_name(shard.url + "*"), " (", shard.objects.size(), " objects, ", shard.bytes, " bytes)");
    return fetch(name, batch.command, collect, options);
}

} // namespace

bool is_remote(const std::string& path) { return path.starts_with(kS3) || path.starts_with(kPipe); }

std::vector<std::string> expand_braces(const std::string& text) {
    std::vector<std::string> all = expand(hidden(text));
    for (std::string& one : all) one = translated(std::move(one), kHidden, kBraces);
    return all;
}

bool is_listed(const std::string& path) {
    return path.starts_with(kS3) && expand_braces(path)[0] == path; // braces name objects, even if there is only one
}

std::vector<Shard> shards_of(const std::string& path, const std::vector<S3Object>& objects,
                             const LoadOptions& options) {
    std::vector<Shard> shards;
    std::vector<S3Object> pngs, tables;
    OtherImages others;
    std::string first_image; // the first tar or CIFAR file
    for (const S3Object& object : objects) {
        const Stream stream = stream_of(object.url);
        if (stream != Stream::other) shards.push_back({object.url, object.bytes});
        if (first_image.empty() && (stream == Stream::tar || stream == Stream::cifar)) first_image = object.url;
        const std::string name = below_prefix(path, object.url), file = name.substr(name.rfind('/') + 1);
        if (stream != Stream::other || is_hidden(name)) continue; // hidden images are ignored, as in a folder
        RG_CHECK(object.bytes >= 0 && uint64_t(object.bytes) <= kMaxShard, "data: expected objects of 0 to ", kMaxShard,
                 " bytes, got ", object.bytes, " (", object.url, ")");
        if (file == kAnglesFile)
            tables.push_back(object);
        else if (const std::string format = image_format(file, {}); format == "PNG")
            pngs.push_back(object);
        else if (!format.empty())
            others.add(object.url, format);
    }
    if (pngs.empty()) {
        RG_CHECK(!first_image.empty(), "data: expected .tar, .tar.gz, .bin or .png objects, got none among ",
                 objects.size(), " (", s3_name(path), objects.empty() ? "" : cat(", the first is ", objects[0].url),
                 ")");
        return shards;
    }
    RG_CHECK(first_image.empty(), "data: expected either .tar, .tar.gz and .bin objects or .png objects, got both, ",
             first_image, " and ", pngs[0].url, "; give a longer prefix, or move one kind to another prefix");
    if (!options.skip_other_images) others.check();
    pngs.insert(pngs.end(), tables.begin(), tables.end());
    std::sort(pngs.begin(), pngs.end(), [](const S3Object& a, const S3Object& b) { return a.url < b.url; });
    shards.clear();
    add_batches(shards, pngs);
    return shards;
}

std::vector<Shard> find_shards(const std::string& path, const LoadOptions& options) {
    RG_CHECK(
        std::none_of(path.begin(), path.end(), [](char c) { return c == '\n' || kHidden.find(c) != kHidden.npos; }),
        "data: expected a path of one line and no control characters, got some");
    std::vector<Shard> shards;
    if (!is_listed(path)) {
        for (const std::string& url : expand_braces(path)) shards.push_back({url});
        return shards;
    }
    return shards_of(path, list_s3(find_s3_client(), path, options.fetch), options);
}

std::string fetch_shard(const Shard& shard, const FetchOptions& options) {
    if (!shard.objects.empty()) return fetch_batch(shard, options);
    const bool s3 = shard.url.starts_with(kS3);
    RG_CHECK(s3 || shard.url.starts_with(kPipe), "data: expected a shard of s3: or pipe:, got ", shard.url);
    const std::string name = s3 ? s3_name(shard.url) : shard.url;
    const auto check = [&](std::string& bytes) {
        RG_CHECK(shard.bytes < 0 || int64_t(bytes.size()) == shard.bytes, "expected ", shard.bytes, " bytes, got ",
                 bytes.size(), "; the stream was cut");
        if (is_gzip(as_bytes(bytes)))
            bytes = as_text(inflate_gzip(as_bytes(bytes), size_t(options.unpacked_mib) << 20,
                                         cat("stream, --unpacked-mib ", options.unpacked_mib)));
        switch (stream_of(file_of(shard.url))) {
        case Stream::cifar: cifar_kind(as_bytes(bytes), "stream"); break;
        case Stream::class_names: break;
        default: read_tar(as_bytes(bytes), "stream", [](const std::string&, Bytes) {});
        }
    };
    return fetch(name, s3 ? s3_get_command(find_s3_client(), shard.url) : shard.url.substr(kPipe.size()), check,
                 options);
}

ShardSet::ShardSet(std::string path, std::vector<Shard> shards, const LoadOptions& options)
    : path_(std::move(path)), options_(options), conversion_(options), shards_(std::move(shards)) {
    RG_CHECK(!shards_.empty(), "data: expected shards, got none (", path_, ")");
    angles_.resize(shards_.size());
    for (const Shard& shard : shards_) names_.push_back(file_of(shard.url));
    const size_t common = common_folders(names_);
    for (std::string& name : names_) name.erase(0, common);
}

ShardSet::Part ShardSet::part_of(const std::string& path) {
    const std::vector<std::string> words = words_of(path);
    for (auto word = words.rbegin(); word != words.rend(); ++word) { // the last such word decides
        if (is_train(*word)) return Part::train;
        if (is_test(*word)) return Part::test;
    }
    return Part::unknown;
}

void ShardSet::add(Bytes bytes) {
    RG_CHECK(next_ < shards_.size(), "data: expected ", shards_.size(), " shards, got more (", path_, ")");
    const std::string &url = shards_[next_].url, &name = names_[next_];
    const bool batch = !shards_[next_].objects.empty();
    if (batch) add_batch(bytes);
    switch (batch ? Stream::other : stream_of(name)) {
    case Stream::cifar: add_cifar(name, part_of(name), bytes, url); break;
    case Stream::class_names: class_names_ = parse_class_names(as_text(bytes)); break;
    default:
        if (!batch) add_tar(bytes);
    }
    ++next_;
}

void ShardSet::add_batch(Bytes bytes) {
    const Shard& shard = shards_[next_];
    RG_CHECK(int64_t(bytes.size()) == shard.bytes, "data: expected ", shard.bytes, " bytes, got ", bytes.size(), " (",
             shard.url, ")");
    require_labels(Labels::folders, shard.url);
    std::vector<Png> pngs;
    size_t position = 0;
    OtherImages others;
    for (const S3Object& object : shard.objects) {
        const Bytes content = bytes.subspan(position, size_t(object.bytes));
        const std::string path = below_prefix(path_, object.url);
        position += content.size();
        if (path.ends_with(kAnglesFile))
            add_angles(path, content, object.url);
        else if (const std::string format = image_format(path, content); format == "PNG")
            pngs.push_back(png_of_folder(path, object.url, content, Part::unknown));
        else
            others.add(object.url, format);
    }
    if (!options_.skip_other_images) others.check();
    add_pngs(pngs);
}

/// Adds the angles in a table. The table names images relative to its own folder.
void ShardSet::add_angles(const std::string& path, Bytes table, const std::string& name) {
    for (const auto& [image, angle] : parse_angles(std::string(as_text(table)), name))
        angles_[next_][path.substr(0, path.rfind('/') + 1) + image] = angle;
}

/// Returns a PNG of a class folder. If its path has a folder train, test or the like, the outermost one determines the
/// part, and the class folder is below it.
ShardSet::Png ShardSet::png_of_folder(const std::string& path, std::string name, Bytes bytes, Part part) {
    std::string below = path;
    for (size_t begin = 0, slash; (slash = path.find('/', begin)) != path.npos; begin = slash + 1) {
        const std::string folder = lower(path.substr(begin, slash - begin));
        if (!is_train(folder) && !is_test(folder)) continue;
        part = is_train(folder) ? Part::train : Part::test;
        below = path.substr(slash + 1);
        break;
    }
    return {path, std::move(name), below, part, bytes};
}

void ShardSet::add_tar(Bytes archive) {
    const std::string& url = shards_[next_].url;
    const Part part = part_of(names_[next_]);
    std::vector<Png> pngs;
    std::map<std::string, std::string> numbers; // texts of .cls files by key
    OtherImages others;
    std::vector<std::string> other_keys;
    read_tar(archive, url, [&](const std::string& path, Bytes content) {
        const auto [type, key] = type_and_key(path);
        const std::string file = path.substr(path.rfind('/') + 1);
        if (is_hidden(path)) return; // as in a folder
        if (file == kAnglesFile) add_angles(path, content, url + ", " + path);
        if (type == "cls") numbers[key] = as_text(content);
        if (type == "bin") {
            const Part file_part = part_of(file);
            add_cifar(names_[next_] + "/" + path, file_part == Part::unknown ? part : file_part, content,
                      url + ", " + path);
        }
        if (stream_of(path) == Stream::class_names) class_names_ = parse_class_names(as_text(content));
        if (type == "cls" || type == "bin") return;
        const std::string format = image_format(file, content);
        if (format == "PNG")
            pngs.push_back(png_of_folder(path, url + ", " + path, content, part));
        else if (!format.empty())
            others.add(cat(url, ", ", path), format), other_keys.push_back(key);
    });
    if (!options_.skip_other_images) others.check();
    if (!pngs.empty()) require_labels(numbers.empty() ? Labels::folders : Labels::pairs, pngs[0].name);
    std::vector<int32_t> labels;
    for (Png& png : pngs) {
        if (labels_ != Labels::pairs) break;
        const std::string key = type_and_key(png.path).second;
        const auto number = numbers.find(key);
        RG_CHECK(number != numbers.end(), "data: expected ", key, ".cls beside it, which is missing (", png.name, ")");
        labels.push_back(parse_label(number->second, key, png.name));
        numbers.erase(number);
        png.below = png.path, png.part = part;
    }
    add_pngs(pngs);
    std::copy(labels.begin(), labels.end(), images_.labels.end() - std::ptrdiff_t(labels.size()));
    for (const std::string& key : other_keys) numbers.erase(key); // their images were skipped
    if (!numbers.empty())
        fail("data: expected ", numbers.begin()->first, ".png beside ", numbers.begin()->first,
             ".cls, which is missing (", url, "); only PNG is read: ", kHowToConvert);
}

void ShardSet::require_labels(Labels labels, const std::string& name) {
    static constexpr const char* kDescriptions[] = {"", "class folders of PNGs", "PNGs with a .cls", "CIFAR-10 records",
                                                    "CIFAR-100 records"};
    if (labels_ == Labels::none_yet) labels_ = labels, first_name_ = name;
    RG_CHECK(labels_ == labels, "data: expected ", kDescriptions[int(labels_)], " as in ", first_name_, ", got ",
             kDescriptions[int(labels)], " (", name, ")");
}

void ShardSet::add_cifar(const std::string& path, Part part, Bytes bytes, const std::string& name) {
    const CifarKind kind = cifar_kind(bytes, name);
    require_labels(kind == CifarKind::cifar10 ? Labels::cifar10 : Labels::cifar100, name);
    const ImageSet set = parse_cifar(bytes, kind, name);
    sources_.push_back({part, path, images_.count, set.count, next_, ""});
    conversion_.append(images_, set, name);
    images_.labels.insert(images_.labels.end(), set.labels.begin(), set.labels.end());
    images_.classes = set.classes;
}

/// Adds PNGs. Their labels are 0 until add_tar() or label_by_folder() sets them.
void ShardSet::add_pngs(const std::vector<Png>& pngs) {
    for (size_t i = 0; i < pngs.size(); ++i)
        sources_.push_back({pngs[i].part, pngs[i].below, images_.count + int64_t(i), 1, next_, pngs[i].path});
    conversion_.append(
        images_, int64_t(pngs.size()), [&](int64_t i) { return pngs[size_t(i)].name; },
        [&](int64_t i) { return decode_png(pngs[size_t(i)].bytes, pngs[size_t(i)].name); });
    images_.labels.resize(size_t(images_.count));
}

/// Returns true if there are no images for training.
bool ShardSet::is_test_alone() const {
    return std::all_of(sources_.begin(), sources_.end(),
                       [](const Source& source) { return source.part == Part::test; });
}

/// Labels images by class folder, as read_image_folder() does. While all images lie in sub-folders of one folder, first
/// removes that folder from their paths.
void ShardSet::label_by_folder() {
    const auto folder = [](const Source& source) { return source.path.substr(0, source.path.find('/')); };
    for (const Source& source : sources_)
        RG_CHECK(source.path.find('/') != source.path.npos,
                 "data: expected images in class folders or with a .cls, got ", source.path, " (", path_, ")");
    const auto nested = [&](const Source& source) {
        return std::count(source.path.begin(), source.path.end(), '/') > 1 && folder(source) == folder(sources_[0]);
    };
    while (std::all_of(sources_.begin(), sources_.end(), nested))
        for (Source& source : sources_) source.path.erase(0, source.path.find('/') + 1);

    std::set<std::string> train_classes;
    const bool test_alone = is_test_alone();
    for (const Source& source : sources_)
        if (test_alone || source.part != Part::test) train_classes.insert(folder(source));
    images_.classes.assign(train_classes.begin(), train_classes.end());
    for (const Source& source : sources_) {
        const auto match = std::find(images_.classes.begin(), images_.classes.end(), folder(source));
        RG_CHECK(match != images_.classes.end(), "data: expected the ", images_.classes.size(),
                 " classes of the training set, got ", folder(source), " (", path_, ")");
        images_.labels[size_t(source.first)] = int32_t(match - images_.classes.begin());
    }
}

/// Takes the angle of each image from the table in its own shard, or else from a table in any other shard.
void ShardSet::take_angles() {
    if (std::all_of(angles_.begin(), angles_.end(), [](const Angles& table) { return table.empty(); })) return;
    images_.targets.resize(size_t(images_.count));
    for (const Source& source : sources_) {
        const auto has = [&](const Angles& table) { return table.contains(source.member); };
        auto table = angles_.begin() + std::ptrdiff_t(source.shard);
        if (!has(*table)) table = std::find_if(angles_.begin(), angles_.end(), has);
        RG_CHECK(table != angles_.end(), "data: expected a line for ", source.member, " in ", kAnglesFile,
                 ", got none (", path_, ")");
        images_.targets[size_t(source.first)] = table->at(source.member);
    }
}

TrainTest ShardSet::finish() {
    RG_CHECK(next_ == shards_.size(), "data: expected ", shards_.size(), " shards, got ", next_, " (", path_, ")");
    RG_CHECK(images_.count > 0, "data: expected PNGs or CIFAR files, got none in ", shards_.size(),
             shards_.size() == 1 ? " shard (" : " shards (", path_, ")");
    RG_CHECK(options_.test_fraction == 0 || !is_test_alone(), "data: expected images for training, got ", images_.count,
             " for testing alone (", path_, ")");
    std::string what = "CIFAR files";
    if (labels_ == Labels::pairs) {
        what = "PNG and class files";
        const int32_t last = *std::max_element(images_.labels.begin(), images_.labels.end());
        for (int32_t i = 0; i <= last; ++i) images_.classes.push_back(cat("class ", i));
    } else if (labels_ == Labels::folders) {
        what = "PNG images";
        label_by_folder();
        take_angles();
        std::stable_sort(sources_.begin(), sources_.end(), [&](const Source& a, const Source& b) {
            const int32_t label_a = images_.labels[size_t(a.first)], label_b = images_.labels[size_t(b.first)];
            return label_a != label_b ? label_a < label_b : fs::path(a.path) < fs::path(b.path);
        });
    } else {
        std::stable_sort(sources_.begin(), sources_.end(),
                         [](const Source& a, const Source& b) { return a.path < b.path; });
        if (!class_names_.empty()) {
            RG_CHECK(class_names_.size() == images_.classes.size(), "data: expected ", images_.classes.size(),
                     " class names, got ", class_names_.size(), " (", path_, ")");
            images_.classes = class_names_;
        }
    }
    std::vector<int64_t> train, test;
    for (const Source& source : sources_)
        for (int64_t i = 0; i < source.count; ++i)
            (source.part == Part::test ? test : train).push_back(source.first + i);
    what += " in " + path_;
    if (shards_[0].objects.empty()) what += cat(" (", shards_.size(), shards_.size() == 1 ? " shard)" : " shards)");
    const std::string note = conversion_.text();
    TrainTest sets = test.empty()
                         ? split_sets(subset(images_, train), options_.test_fraction, options_.seed, what, note)
                         : described({subset(images_, train), subset(images_, test), ""}, what, note);
    sets.warnings = conversion_.warnings();
    return sets;
}

} // namespace rg::data
