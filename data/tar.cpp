// An archive is a sequence of members, such as files. A member is a header of 512 bytes, and then its contents, padded
// with zeros to whole blocks of 512 bytes. A pax header ('x') or a GNU long name ('L') is a member of its own, whose
// contents replace the path or the size in the header of the next member.
#include "ringgrad/data/tar.h"

#include "ringgrad/core/text.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <optional>

namespace rg::data {

namespace {

constexpr size_t kBlock = 512;
struct Field {
    size_t begin, size;
};
constexpr Field kName{0, 100}, kSize{124, 12}, kChecksum{148, 8}, kMagic{257, 6}, kPrefix{345, 155};
constexpr size_t kType = 156;

class Reader {
public:
    Reader(Bytes archive, const std::string& name) : archive_(archive), archive_name_(name) {}

    void run(const std::function<void(const std::string& path, Bytes content)>& each) {
        int zeros = 0; // blocks of zeros just before position_
        while (position_ < archive_.size()) {
            const Bytes header = take(kBlock, zeros ? "the end of the archive" : "a header");
            if (std::all_of(header.begin(), header.end(), [](uint8_t b) { return b == 0; })) {
                ++zeros;
                continue;
            }
            zeros = 0;
            member(header, each);
        }
        RG_CHECK(zeros >= 2, where(position_), "expected two blocks of zeros at the end of the archive, got ",
                 archive_.empty() ? "an empty" : "the end of the", " stream; it was cut, or is not a tar");
        RG_CHECK(!long_name_ && !pax_path_ && !pax_size_, where(position_),
                 "expected a member after an extended header, got the end of the archive");
    }

private:
    std::string where(size_t offset) const { return cat("tar: ", archive_name_, ", offset ", offset, ": "); }

    Bytes take(uint64_t size, const std::string& what) {
        const size_t left = archive_.size() - position_;
        RG_CHECK(size <= left, where(position_), "expected ", size, " bytes of ", what, ", got ", left,
                 "; the stream was cut");
        const Bytes bytes = archive_.subspan(position_, size_t(size));
        position_ += bytes.size();
        return bytes;
    }

    void member(Bytes header, const std::function<void(const std::string& path, Bytes content)>& each) {
        const size_t offset = position_ - kBlock;
        check_sum(header, offset);
        const char type = char(header[kType]);
        const bool extended = type == 'x' || type == 'g' || type == 'L' || type == 'K';
        uint64_t size = number(header, kSize, offset, "size");
        if (!extended && pax_size_) size = *pax_size_;
        const std::string path = extended ? "an extended header" : path_of(header, offset);
        RG_CHECK(!extended || size <= kMaxTarHeader, where(offset), "expected an extended header of at most ",
                 kMaxTarHeader, " bytes, got ", size);
        // Folders have no contents, even if old archives give them a size.
        if (type == '5' || (type == '0' && path.ends_with('/')) || (type == '\0' && path.ends_with('/'))) size = 0;
        const Bytes content = take(size, path);
        take((kBlock - size % kBlock) % kBlock, "padding");
        switch (type) {
        case 'x': pax(content, offset + kBlock); return;
        case 'g':
        case 'K': return; // 'g': defaults, which git archive writes; 'K': the target of a link, and links are refused
        case 'L': long_name_ = text(content, {0, content.size()}); return;
        case '\0':
        case '0':
        case '7':
        case '5': break;
        default:
            fail(where(offset), "expected files and folders, got ",
                 type == '1' || type == '2' ? "a link" : cat("a member of type '", printable(type), "'"), " (", path,
                 ")");
        }
        long_name_.reset(), pax_path_.reset(), pax_size_.reset();
        if (type == '5' || path.ends_with('/')) return;
        each(path, content);
    }

    static char printable(char c) { return c > ' ' && c < 127 ? c : '?'; }

    /// Checks the sum of the header's bytes, in which the checksum itself counts as spaces. Some old archives add
    /// signed bytes.
    void check_sum(Bytes header, size_t offset) const {
        int64_t as_unsigned = 0, as_signed = 0;
        for (size_t i = 0; i < kBlock; ++i) {
            const uint8_t byte = i - kChecksum.begin < kChecksum.size ? ' ' : header[i];
            as_unsigned += byte, as_signed += int8_t(byte);
        }
        const int64_t stored = int64_t(number(header, kChecksum, offset, "checksum"));
        RG_CHECK(stored == as_unsigned || stored == as_signed, where(offset), "expected a header with checksum ",
                 as_unsigned, ", got ", stored, "; not a tar, or a damaged one");
    }

    /// Parses octal digits, which spaces may precede, and spaces or zero bytes may follow. But if the first bit of the
    /// field is set, the other bits are a big-endian number.
    uint64_t number(Bytes header, Field field, size_t offset, const char* what) const {
        const Bytes bytes = header.subspan(field.begin, field.size);
        uint64_t value = 0;
        if (bytes[0] & 0x80) {
            for (size_t i = 0; i < bytes.size(); ++i) {
                const uint8_t byte = i == 0 ? bytes[0] & 0x7f : bytes[i];
                RG_CHECK(value >> 55 == 0, where(offset + field.begin), "expected a ", what,
                         " of less than 2^63, got more; not a tar, or a damaged one");
                value = value << 8 | byte;
            }
            return value;
        }
        size_t i = 0;
        while (i < bytes.size() && bytes[i] == ' ') ++i;
        for (; i < bytes.size() && bytes[i] >= '0' && bytes[i] <= '7'; ++i) value = value << 3 | (bytes[i] - '0');
        for (; i < bytes.size(); ++i)
            RG_CHECK(bytes[i] == ' ' || bytes[i] == 0, where(offset + field.begin), "expected a ", what,
                     " in octal digits, got byte ", int(bytes[i]), "; not a tar, or a damaged one");
        return value;
    }

    /// Returns the text of a field up to its first zero byte.
    static std::string text(Bytes bytes, Field field) {
        const std::string_view all = as_text(bytes.subspan(field.begin, field.size));
        return std::string(all.substr(0, all.find('\0')));
    }

    std::string path_of(Bytes header, size_t offset) const {
        std::string path = text(header, kName);
        // GNU's old format has times in the place of the prefix.
        const bool ustar = as_text(header.subspan(kMagic.begin, kMagic.size)) == std::string_view("ustar\0", 6);
        if (const std::string prefix = text(header, kPrefix); ustar && !prefix.empty()) path = prefix + "/" + path;
        if (long_name_) path = *long_name_;
        if (pax_path_) path = *pax_path_;
        RG_CHECK(path.size() <= kMaxTarName, where(offset), "expected names of at most ", kMaxTarName, " bytes, got ",
                 path.size());
        while (path.starts_with("./")) path.erase(0, 2);
        return path.empty() ? "./" : path;
    }

    /// Parses records "LENGTH KEY=VALUE\n". LENGTH counts the whole record.
    void pax(Bytes content, size_t offset) {
        std::string_view left = as_text(content);
        while (!left.empty()) {
            size_t length = 0;
            const auto [end, error] = std::from_chars(left.data(), left.data() + left.size(), length);
            const size_t digits = size_t(end - left.data());
            const size_t equals = left.find('=');
            RG_CHECK(error == std::errc() && length <= left.size() && digits + 2 < length && left[digits] == ' ' &&
                         left[length - 1] == '\n' && equals < length,
                     where(offset + content.size() - left.size()),
                     "expected \"LENGTH KEY=VALUE\" in an extended header, got something else");
            const std::string_view key = left.substr(digits + 1, equals - digits - 1);
            const std::string_view value = left.substr(equals + 1, length - equals - 2);
            if (key == "path") {
                RG_CHECK(value.find('\0') == value.npos, where(offset), "expected a path, got one with a zero byte");
                pax_path_ = value;
            } else if (key == "size") {
                uint64_t size = 0;
                RG_CHECK(read_number(value, size), where(offset),
                         "expected a size in digits in an extended header, got something else");
                pax_size_ = size;
            } else {
                RG_CHECK(!key.starts_with("GNU.sparse."), where(offset), "expected plain files, got a sparse one");
            }
            left.remove_prefix(length);
        }
    }

    Bytes archive_;
    const std::string& archive_name_;
    size_t position_ = 0;
    // These three are for the next member.
    std::optional<std::string> long_name_, pax_path_;
    std::optional<uint64_t> pax_size_;
};

} // namespace

void read_tar(Bytes archive, const std::string& name,
              const std::function<void(const std::string& path, Bytes content)>& each) {
    Reader(archive, name).run(each);
}

} // namespace rg::data
