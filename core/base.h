// Defines the exception type Error, the check macro RG_CHECK and the text builder cat().
//
// An error message names, in this order and where they apply, the operation, the expected value, the actual value, the
// context (tensor, file and offset, rank), and a hint. Checks stay on in release builds. They are cheap, since nearly
// all run once per call or per sample, and not once per element of a tensor.
#pragma once

#include "core/scope.h"

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace rg {

/// Reports every failure that a user can cause or must know about. main() catches it and prints one line.
class Error : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

/// Reports that this process can no longer use its GPU. Also ends the job of a task that throws it (par/task_pool.h).
class DeviceLost : public Error {
public:
    using Error::Error;
};

/// Holds one piece of a text: a text, a character or a number. Numbers are printed as by std::ostream in the C locale,
/// except that int8_t and uint8_t are printed as numbers, not characters. A TextPiece refers to its text, so use it
/// only as an argument.
class TextPiece {
public:
    TextPiece(std::string_view text) : form_(Form::text), text_(text) {}
    TextPiece(const std::string& text) : TextPiece(std::string_view(text)) {}
    TextPiece(const char* text) : TextPiece(std::string_view(text)) {}
    TextPiece(char c) : form_(Form::character), integer_(c) {}
    TextPiece(std::signed_integral auto value) : form_(Form::integer), integer_(value) {}
    TextPiece(std::unsigned_integral auto value) : form_(Form::natural), natural_(value) {}
    TextPiece(std::floating_point auto value) : form_(Form::real), real_(value) {}
    void append_to(std::string& text) const;

private:
    enum class Form : uint8_t { text, character, integer, natural, real } form_;
    union {
        std::string_view text_;
        int64_t integer_;
        uint64_t natural_;
        double real_;
    };
};

/// Concatenates the printed forms of all pieces.
std::string cat(std::initializer_list<TextPiece> pieces);
std::string cat(const auto&... pieces) { return cat({TextPiece(pieces)...}); }

/// While a LayerScope exists, fail() and RG_CHECK append " (layer NAME)" to their messages on this thread. The name
/// must outlive the LayerScope, which keeps only a reference.
class LayerScope {
public:
    explicit LayerScope(const std::string& name) : layer_(Scope::current().layer, &name) {}
    /// Returns " (layer NAME)" for the innermost LayerScope of this thread, or an empty text if there is none.
    static std::string error_suffix();

private:
    Setting<const std::string*> layer_;
};

/// Throws Error with the concatenated pieces, followed by LayerScope::error_suffix(). A piece may be a text from a file
/// or a command line. Of a piece above 1000 bytes, the message has only the begin, the end and the size.
[[noreturn]] void fail(std::initializer_list<TextPiece> pieces);
[[noreturn]] void fail(const auto&... pieces) { fail({TextPiece(pieces)...}); }

} // namespace rg

/// RG_CHECK(condition, pieces...) calls fail(pieces...) if the condition is false. It passes the pieces as a list: a
/// template that is instantiated for each combination of types would make the many checks slow to compile.
#define RG_CHECK(condition, ...)                                                                                       \
    do {                                                                                                               \
        if (!(condition)) [[unlikely]]                                                                                 \
            ::rg::fail({__VA_ARGS__});                                                                                 \
    } while (0)
