// See formatted.h.
#include "core/formatted.h"

#include <cstdarg>
#include <cstdio>
#include <locale.h>

namespace rg {

std::string formatted(const char* format, ...) {
    static const locale_t c_locale = ::newlocale(LC_ALL_MASK, "C", nullptr);
    const locale_t before = ::uselocale(c_locale); // affects only this thread
    char text[256];
    std::va_list values;
    va_start(values, format);
    std::vsnprintf(text, sizeof text, format, values);
    va_end(values);
    ::uselocale(before);
    return text;
}

std::string hex(uint64_t value) { return formatted("%016llx", static_cast<unsigned long long>(value)); }

} // namespace rg
