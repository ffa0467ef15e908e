// Sets a locale in which numbers look different, as a program of a user may do.
#pragma once

#include <clocale>
#include <locale>
#include <string>

namespace rg {

/// While an OtherLocale exists, new streams write 1.234,5 for 1234.5. If the system has a German or French locale,
/// printf() also writes 0,5 for 0.5, and strtod() reads it.
class OtherLocale {
public:
    OtherLocale() {
        for (const char* const name : {"de_DE.UTF-8", "fr_FR.UTF-8"})
            if (std::setlocale(LC_NUMERIC, name)) break;
    }
    ~OtherLocale() {
        std::locale::global(before_);
        std::setlocale(LC_NUMERIC, c_before_.c_str());
    }
    OtherLocale(const OtherLocale&) = delete;
    OtherLocale& operator=(const OtherLocale&) = delete;

private:
    struct Numbers final : std::numpunct<char> {
        char do_decimal_point() const override { return ','; }
        char do_thousands_sep() const override { return '.'; }
        std::string do_grouping() const override { return "\3"; }
    };
    std::string c_before_ = std::setlocale(LC_NUMERIC, nullptr); // name of the locale of printf() and strtod()
    std::locale before_ = std::locale::global(std::locale(std::locale::classic(), new Numbers));
};

} // namespace rg
