// Parses JSON by recursive descent over a string view, and writes it by a recursive walk.
//
// When a text is parsed, kMaxDepth limits the depth of a value, and the length of the text limits the number of values,
// since each takes at least one byte. Errors of the parser give the byte offset. Numbers use from_chars and to_chars,
// which ignore the locale.
#include "core/json.h"

#include "core/text.h"

#include <algorithm>
#include <charconv>
#include <cmath>

namespace rg {
namespace {

// File names may contain bytes that are not valid UTF-8. dump() writes such a byte as an escape, \u and the hexadecimal
// digits of kByte + byte. In valid text, such an escape only follows a high surrogate. So parse() can restore the byte
// (PEP 383, "surrogateescape").
constexpr uint32_t kByte = 0xDC00;

class Parser {
public:
    Parser(std::string_view text, const std::string& source) : text_(text), source_(source) {}

    Json document() {
        Json value = parse_value(0);
        skip_space();
        if (offset_ != text_.size()) fail_expected("the end of the text");
        return value;
    }

private:
    [[noreturn]] void fail_expected(const char* expected) const {
        if (offset_ >= text_.size()) fail(source_, ": json: expected ", expected, ", got the end at offset ", offset_);
        const unsigned char c = static_cast<unsigned char>(text_[offset_]);
        if (c > 0x20 && c < 0x7f)
            fail(source_, ": json: expected ", expected, ", got '", char(c), "' at offset ", offset_);
        fail(source_, ": json: expected ", expected, ", got byte ", int(c), " at offset ", offset_);
    }

    char peek() const { return offset_ < text_.size() ? text_[offset_] : '\0'; }

    void skip_space() {
        while (offset_ < text_.size() && std::string_view(" \t\r\n").find(text_[offset_]) != std::string_view::npos)
            ++offset_;
    }

    bool accept(char c) {
        if (peek() != c || offset_ >= text_.size()) return false;
        ++offset_;
        return true;
    }

    bool accept_word(std::string_view word) {
        if (text_.substr(offset_, word.size()) != word) return false;
        offset_ += word.size();
        return true;
    }

    Json parse_value(int depth) {
        RG_CHECK(depth < Json::kMaxDepth, source_, ": json: nesting deeper than ", Json::kMaxDepth, " at offset ",
                 offset_);
        skip_space();
        switch (peek()) {
        case '{': return object(depth);
        case '[': return array(depth);
        case '"': return string();
        default:
            if (peek() == '-' || is_digit(peek())) return number();
            if (accept_word("true")) return true;
            if (accept_word("false")) return false;
            if (accept_word("null")) return nullptr;
            fail_expected("a value");
        }
    }

    /// Calls parse_item() for each item between the bracket at the current offset and `close`.
    template <class F>
    void list(char close, const char* comma_or_close, F parse_item) {
        ++offset_;
        skip_space();
        if (accept(close)) return;
        for (;;) {
            parse_item();
            skip_space();
            if (accept(close)) return;
            if (!accept(',')) fail_expected(comma_or_close);
        }
    }

    Json array(int depth) {
        Json::Array items;
        list(']', "',' or ']'", [&] { items.push_back(parse_value(depth + 1)); });
        return items;
    }

    Json object(int depth) {
        Json::Object members;
        list('}', "',' or '}'", [&] {
            skip_space();
            if (peek() != '"') fail_expected("a key in quotes");
            std::string key = string();
            skip_space();
            if (!accept(':')) fail_expected("':'");
            members.emplace_back(std::move(key), parse_value(depth + 1));
        });
        check_unique(members);
        return members;
    }

    void check_unique(const Json::Object& members) const {
        std::vector<std::string_view> keys;
        for (const Json::Member& m : members) keys.push_back(m.first);
        std::sort(keys.begin(), keys.end());
        const auto twice = std::adjacent_find(keys.begin(), keys.end());
        RG_CHECK(twice == keys.end(), source_, ": json: key \"", *twice, "\" twice in the object that ends at offset ",
                 offset_);
    }

    static bool is_digit(char c) { return c >= '0' && c <= '9'; }

    void digits() {
        if (!is_digit(peek())) fail_expected("a digit");
        while (is_digit(peek())) ++offset_;
    }

    Json number() {
        const size_t begin = offset_;
        bool whole = true;
        accept('-');
        if (!accept('0')) digits();
        if (accept('.')) whole = false, digits();
        if (peek() == 'e' || peek() == 'E') {
            ++offset_;
            whole = false;
            if (!accept('+')) accept('-');
            digits();
        }
        const std::string_view token = text_.substr(begin, offset_ - begin);
        int64_t integer = 0;
        // "-0" becomes a double, since an integer would lose the sign. An integer outside int64_t becomes a double too.
        if (whole && token != "-0" &&
            std::from_chars(token.data(), token.data() + token.size(), integer).ec == std::errc())
            return integer;
        double value = 0;
        RG_CHECK(std::from_chars(token.data(), token.data() + token.size(), value).ec == std::errc(), source_,
                 ": json: number outside the range of a double at offset ", begin);
        return value;
    }

    std::string string() {
        ++offset_;
        std::string out;
        for (;;) {
            if (offset_ >= text_.size()) fail_expected("'\"' at the end of a string");
            const unsigned char c = static_cast<unsigned char>(text_[offset_]);
            if (c < 0x20) fail_expected("no control character in a string");
            if (c == '"') return ++offset_, out;
            if (c == '\\')
                escape(out);
            else
                character(out);
        }
    }

    void escape(std::string& out) {
        ++offset_;
        static constexpr std::string_view kNames = "\"\\/bfnrt", kMeans = "\"\\/\b\f\n\r\t";
        const size_t i = offset_ < text_.size() ? kNames.find(text_[offset_]) : std::string_view::npos;
        if (i != std::string_view::npos) {
            out += kMeans[i];
            ++offset_;
            return;
        }
        if (!accept('u')) fail_expected("an escape (one of \"\\/bfnrtu)");
        uint32_t point = hex4();
        if (point >= kByte + 0x80 && point <= kByte + 0xFF) { // a byte that is not UTF-8; see kByte
            out += char(point - kByte);
            return;
        }
        if (point >= 0xDC00 && point < 0xE000) fail_expected("a high surrogate before the low one");
        if (point >= 0xD800 && point < 0xDC00) {
            if (!accept_word("\\u")) fail_expected("\\u and the low surrogate");
            const uint32_t low = hex4();
            if (low < 0xDC00 || low >= 0xE000) fail_expected("a low surrogate before this");
            point = 0x10000 + ((point - 0xD800) << 10) + (low - 0xDC00);
        }
        static constexpr uint32_t kLeads[] = {0, 0xC0, 0xE0, 0xF0}; // the index is the number of bytes that follow
        const int more = point < 0x80 ? 0 : point < 0x800 ? 1 : point < 0x10000 ? 2 : 3;
        out += char(kLeads[more] | point >> 6 * more);
        for (int i = more - 1; i >= 0; --i) out += char(0x80 | (point >> 6 * i & 63));
    }

    uint32_t hex4() {
        uint32_t value = 0;
        for (int i = 0; i < 4; ++i, ++offset_) {
            static constexpr std::string_view kDigits = "0123456789abcdef";
            const char c = peek();
            const size_t digit = kDigits.find(c >= 'A' && c <= 'F' ? char(c + 32) : c);
            if (digit == std::string_view::npos) fail_expected("four hexadecimal digits");
            value = value << 4 | uint32_t(digit);
        }
        return value;
    }

    void character(std::string& out) {
        const size_t bytes = utf8_sequence(text_.substr(offset_));
        if (bytes == 0) fail_expected("valid UTF-8");
        out += text_.substr(offset_, bytes);
        offset_ += bytes;
    }

    std::string_view text_;
    const std::string& source_;
    size_t offset_ = 0;
};

void write_string(std::string& out, std::string_view text) {
    out += '"';
    while (!text.empty()) {
        const size_t bytes = utf8_sequence(text);
        if (bytes > 1) {
            out += text.substr(0, bytes);
            text.remove_prefix(bytes);
            continue;
        }
        const char c = text[0];
        text.remove_prefix(1);
        const size_t i = std::string_view("\"\\\b\f\n\r\t").find(c);
        if (i != std::string_view::npos) {
            out += '\\';
            out += "\"\\bfnrt"[i];
        } else if (static_cast<unsigned char>(c) < 0x20 || bytes == 0) {
            static constexpr char kDigits[] = "0123456789abcdef";
            out += bytes == 0 ? "\\udc" : "\\u00";
            out += {kDigits[c >> 4 & 15], kDigits[c & 15]};
        } else {
            out += c;
        }
    }
    out += '"';
}

} // namespace

Json::Json() = default;
Json::Json(bool v) : value_(v) {}
Json::Json(int64_t v) : value_(v) {}
Json::Json(double v) : value_(v) {}
Json::Json(std::string v) : value_(std::move(v)) {}
Json::Json(Array v) : value_(std::move(v)) {}
Json::Json(Object v) : value_(std::move(v)) {}
Json::Json(const Json&) = default;
Json::Json(Json&&) noexcept = default;
Json& Json::operator=(const Json&) = default;
Json& Json::operator=(Json&&) noexcept = default;
Json::~Json() = default;

Json Json::parse(std::string_view text, const std::string& source) { return Parser(text, source).document(); }

void Json::parse_lines(std::string_view text, const std::string& source,
                       const std::function<void(const Json& value, std::string_view line)>& use,
                       const std::function<void(const std::string& message)>& damaged) {
    int64_t number = 0;
    for (size_t begin = 0, end; (end = text.find('\n', begin)) != text.npos; begin = end + 1) {
        const std::string_view line = text.substr(begin, end - begin);
        const std::string where = cat(source, ", line ", ++number);
        try {
            use(parse(line, where), line);
        } catch (const Error& error) {
            const std::string_view reason = error.what();
            damaged(reason.starts_with(where) ? std::string(reason) : cat(where, ": ", reason));
        }
    }
}

const char* Json::kind() const {
    static constexpr const char* kKinds[] = {"null",     "a bool",   "an integer", "a number",
                                             "a string", "an array", "an object"};
    return kKinds[value_.index()];
}

template <class T>
const T& Json::as(const char* wanted) const {
    RG_CHECK(is<T>(), "json: expected ", wanted, ", got ", kind());
    return std::get<T>(value_);
}

bool Json::as_bool() const { return as<bool>("a bool"); }
int64_t Json::as_int() const { return as<int64_t>("an integer"); }
double Json::as_double() const { return is_int() ? double(std::get<int64_t>(value_)) : as<double>("a number"); }
const std::string& Json::as_string() const { return as<std::string>("a string"); }
const Json::Array& Json::as_array() const { return as<Array>("an array"); }
std::vector<std::string> Json::as_texts() const {
    std::vector<std::string> texts;
    for (const Json& text : as_array()) texts.push_back(text.as_string());
    return texts;
}
Json Json::of_texts(const std::vector<std::string>& texts) { return Array(texts.begin(), texts.end()); }
const Json::Object& Json::as_object() const { return as<Object>("an object"); }

const Json* Json::find(std::string_view key) const {
    for (const Member& m : as_object())
        if (m.first == key) return &m.second;
    return nullptr;
}

const Json& Json::at(std::string_view key) const {
    const Json* member = find(key);
    RG_CHECK(member, "json: expected a member \"", key, "\" in the object, got none");
    return *member;
}

Json& Json::set(std::string_view key, Json value) {
    if (is_null()) value_ = Object{};
    RG_CHECK(is_object(), "json: set \"", key, "\": expected an object, got ", kind());
    Object& members = std::get<Object>(value_);
    for (Member& m : members)
        if (m.first == key) return m.second = std::move(value), *this;
    members.emplace_back(std::string(key), std::move(value));
    return *this;
}

Json& Json::push(Json value) {
    if (is_null()) value_ = Array{};
    RG_CHECK(is_array(), "json: push: expected an array, got ", kind());
    std::get<Array>(value_).push_back(std::move(value));
    return *this;
}

std::string Json::dump(int indent) const {
    std::string out;
    write(out, indent, 0);
    return out;
}

void Json::write(std::string& out, int indent, int level) const {
    const auto list = [&](const auto& items, char open, char close, auto write_item) {
        out += open;
        bool first = true;
        for (const auto& item : items) {
            if (!first) out += indent > 0 ? "," : ", ";
            if (indent > 0) out.append(1, '\n').append(size_t(indent * (level + 1)), ' ');
            first = false;
            write_item(item);
        }
        if (indent > 0 && !first) out.append(1, '\n').append(size_t(indent * level), ' ');
        out += close;
    };
    const auto number = [&](auto v) {
        char digits[32];
        const std::string_view text(digits, size_t(std::to_chars(digits, digits + sizeof digits, v).ptr - digits));
        out += text;
        // The point makes parse() read a double, not an integer.
        if (std::is_same_v<decltype(v), double> && text.find_first_of(".e") == std::string_view::npos) out += ".0";
    };
    switch (value_.index()) {
    case 0: out += "null"; break;
    case 1: out += as_bool() ? "true" : "false"; break;
    case 2: number(as_int()); break;
    case 3: std::isfinite(as_double()) ? number(as_double()) : void(out += "null"); break;
    case 4: write_string(out, as_string()); break;
    case 5: list(as_array(), '[', ']', [&](const Json& item) { item.write(out, indent, level + 1); }); break;
    default:
        list(as_object(), '{', '}', [&](const Member& m) {
            write_string(out, m.first);
            out += ": ";
            m.second.write(out, indent, level + 1);
        });
    }
}

bool Json::operator==(const Json& other) const { return value_ == other.value_; }

} // namespace rg
