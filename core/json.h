// Reads and writes JSON strictly, for file headers, configurations and metrics.
//
// Objects keep their members in the order in which they were added or read. Integers in the range of int64_t are a
// separate kind and stay exact. Every other number is a double, and so are -0, 1.0 and 1e3. A finite double is written
// with the fewest digits that read back as the same bits, and always with a point or an exponent. The parser accepts
// only the grammar of RFC 8259, so no comments and no trailing commas. It also rejects duplicate keys, invalid UTF-8,
// numbers outside the range of a double, and values deeper than kMaxDepth. To parse a text takes at most 64 bytes of
// memory per byte of text; an array of one-digit numbers takes nearly that much.
#pragma once

#include "core/base.h"

#include <functional>
#include <string_view>
#include <variant>
#include <vector>

namespace rg {

class Json {
public:
    using Array = std::vector<Json>;
    using Member = std::pair<std::string, Json>;
    using Object = std::vector<Member>;

    Json(); // null
    Json(std::nullptr_t) : Json() {}
    Json(bool v);
    Json(int v) : Json(int64_t{v}) {}
    Json(int64_t v);
    Json(double v);
    Json(const char* v) : Json(std::string(v)) {}
    Json(std::string v);
    Json(Array v);
    Json(Object v);
    // Defined in json.cpp, since the operations of a variant take long to compile.
    Json(const Json&);
    Json(Json&&) noexcept;
    Json& operator=(const Json&);
    Json& operator=(Json&&) noexcept;
    ~Json();
    template <class T>
    Json(const T*) = delete; // a pointer would convert to bool
    static Json array() { return Array{}; }
    static Json object() { return Object{}; }
    static Json of_texts(const std::vector<std::string>& texts);

    /// Largest depth of a value that parse() accepts. The outermost value has depth 1. The parser recurses once per
    /// level.
    static constexpr int kMaxDepth = 64;
    /// Parses a text that consists of one value. Throws Error if it does not; the message begins with `source`, as in
    /// "SOURCE: json: expected ... at offset N".
    static Json parse(std::string_view text, const std::string& source);
    /// Parses a text with one value per line. Calls `use` with each value and its line. A last line without its line
    /// break is ignored: a kill may have cut it off. For a line that is no value, or for which `use` throws Error,
    /// calls `damaged` with a message that begins with "SOURCE, line N: ".
    static void parse_lines(std::string_view text, const std::string& source,
                            const std::function<void(const Json& value, std::string_view line)>& use,
                            const std::function<void(const std::string& message)>& damaged);

    bool is_null() const { return is<std::monostate>(); }
    bool is_bool() const { return is<bool>(); }
    bool is_int() const { return is<int64_t>(); }
    bool is_number() const { return is_int() || is<double>(); }
    bool is_string() const { return is<std::string>(); }
    bool is_array() const { return is<Array>(); }
    bool is_object() const { return is<Object>(); }
    /// Returns "an array", "a string" and so on, for messages.
    const char* kind() const;

    /// Return the value as the type in the function's name. as_double() also accepts integers. Throw Error if the value
    /// is of another kind; the message names the expected kind and the actual one.
    bool as_bool() const;
    int64_t as_int() const;
    double as_double() const;
    const std::string& as_string() const;
    const Array& as_array() const;
    std::vector<std::string> as_texts() const; // requires an array of strings
    const Object& as_object() const;

    /// Returns the member of that name, or a null pointer if there is none. Throws Error if this is not an object.
    const Json* find(std::string_view key) const;
    /// Returns the member of that name. Throws Error if there is none, or if this is not an object.
    const Json& at(std::string_view key) const;
    /// Adds or replaces a member, and returns *this. If this is null, it first becomes an object. Throws Error if it is
    /// of another kind.
    Json& set(std::string_view key, Json value);
    /// Appends an element, and returns *this. If this is null, it first becomes an array. Throws Error if it is of
    /// another kind.
    Json& push(Json value);

    /// Returns the value as text. The text is one line; with `indent` > 0, each member and each element is on its own
    /// line, indented by `indent` spaces per level. NaN and infinities become null, since JSON has neither. File names
    /// may contain bytes that are not valid UTF-8. Such a byte becomes an escape from \udc80 to \udcff, which parse()
    /// turns back into the byte.
    std::string dump(int indent = 0) const;

    bool operator==(const Json& other) const;

private:
    template <class T>
    bool is() const {
        return std::holds_alternative<T>(value_);
    }
    template <class T>
    const T& as(const char* wanted) const;
    void write(std::string& out, int indent, int level) const;

    std::variant<std::monostate, bool, int64_t, double, std::string, Array, Object> value_;
};

} // namespace rg
