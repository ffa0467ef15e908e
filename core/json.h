// A small strict JSON value: what headers, configurations and metrics are read from and written to.
//
// Objects keep the order in which members were added, so that files read like the program that wrote them. Integers
// that fit in 64 bits stay exact and are a kind of their own; every other number is a double. Doubles are written with
// the fewest digits that read back as the same bits, and always with a point or an exponent. Reading takes RFC 8259
// and nothing more: no comments, no trailing commas, no duplicate keys, valid UTF-8, bounded depth. What it reads takes
// at most 64 bytes of memory per byte of the text (an array of numbers of one digit does).
#pragma once

#include "core/base.h"

#include <string_view>
#include <variant>
#include <vector>

namespace rg {

class Json {
public:
    using Array = std::vector<Json>;
    using Member = std::pair<std::string, Json>;
    using Object = std::vector<Member>;

    Json() = default; // null
    Json(std::nullptr_t) {}
    Json(bool v) : value_(v) {}
    Json(int v) : value_(int64_t{v}) {}
    Json(int64_t v) : value_(v) {}
    Json(double v) : value_(v) {}
    Json(const char* v) : value_(std::string(v)) {}
    Json(std::string v) : value_(std::move(v)) {}
    Json(Array v) : value_(std::move(v)) {}
    Json(Object v) : value_(std::move(v)) {}
    template <class T>
    Json(const T*) = delete; // would become a bool
    static Json array() { return Array{}; }
    static Json object() { return Object{}; }

    /// Deeper nesting is an error: the parser calls itself once per level.
    static constexpr int kMaxDepth = 64;
    /// Reads exactly one value. `what` names the text in errors: "WHAT: json: expected ... at offset N".
    static Json parse(std::string_view text, const std::string& what);

    bool is_null() const { return is<std::monostate>(); }
    bool is_bool() const { return is<bool>(); }
    bool is_int() const { return is<int64_t>(); }
    bool is_number() const { return is_int() || is<double>(); }
    bool is_string() const { return is<std::string>(); }
    bool is_array() const { return is<Array>(); }
    bool is_object() const { return is<Object>(); }
    /// "an array", "a string", ...: for messages.
    const char* kind() const;

    /// The value as that type; an Error naming both kinds otherwise. as_double() takes integers too.
    bool as_bool() const;
    int64_t as_int() const;
    double as_double() const;
    const std::string& as_string() const;
    const Array& as_array() const;
    const Object& as_object() const;

    /// The member of that name, or null if there is none. Error when this is no object.
    const Json* find(std::string_view key) const;
    /// The member of that name. Error when there is none.
    const Json& at(std::string_view key) const;
    /// Adds or replaces a member; returns *this, to chain. A null becomes an object first.
    Json& set(std::string_view key, Json value);
    /// Appends an element. A null becomes an array first.
    Json& push(Json value);

    /// One line, or with `indent` > 0 one member per line. NaN and infinities are written as null: JSON has none. A
    /// byte that is not of a valid UTF-8 sequence (from a file's name) is written as \udc80 to \udcff, and read as that
    /// byte.
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
