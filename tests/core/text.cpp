// Tests text from outside that is printed on one line, for people and as a field of a table, numbers in any locale, and
// the checksum of bytes.
#include "core/base.h"
#include "core/checksum.h"
#include "core/formatted.h"
#include "core/text.h"
#include "tests/other_locale.h"

#include <algorithm>
#include <cstdio>
#include <doctest/doctest.h>
#include <sstream>

namespace rg {

TEST_SUITE("core") {
    TEST_CASE("text: escapes control sequences, and keeps other characters") {
        CHECK(printable("cat é \u20ac \U0001F408 \\ \"'$()") == "cat é \u20ac \U0001F408 \\ \"'$()");
        CHECK(printable("a\nb\tc\rd") == "a\\nb\\tc\\rd");
        CHECK(printable("\x1b[31mred\x1b[0m\x7f") == "\\x1b[31mred\\x1b[0m\\x7f");
        CHECK(printable(std::string_view("a\0b", 3)) == "a\\x00b");
        CHECK(printable("\u009b2J") == "\\xc2\\x9b2J");                         // the one-character form of ESC [
        CHECK(printable("\u202e\u2066x") == "\\xe2\\x80\\xae\\xe2\\x81\\xa6x"); // right-to-left override, isolate
        CHECK(printable("\u2028\u00a0\u2027\u202f") == "\\xe2\\x80\\xa8\u00a0\u2027\u202f");
        CHECK(printable("\u200e\u200fa\u061c") == "\\xe2\\x80\\x8e\\xe2\\x80\\x8fa\\xd8\\x9c"); // direction marks
        CHECK(printable("\ufeffa\U000e0041\U000e007f") == "\\xef\\xbb\\xbfa\\xf3\\xa0\\x81\\x81\\xf3\\xa0\\x81\\xbf");
        for (const std::string other :
             {"\u061b", "\u061d", "\u200d", "\u2010", "\ufefe", "\uff00", "\U000e0080", "\U000dffff"})
            CHECK(printable(other) == other);
        CHECK(printable("\xff\xc3(\xed\xa0\x80\xc3") == "\\xff\\xc3(\\xed\\xa0\\x80\\xc3");
        CHECK(printable("") == "");
        for (int c = 0; c < 256; ++c) {
            const std::string text = printable(std::string(1, char(c)));
            CHECK((text.size() == 1) == (c >= ' ' && c < 127));
        }
        CHECK(printable(std::string(1 << 20, '\n')).size() == 2 << 20);
    }

    TEST_CASE("text: pads and trims by characters") {
        CHECK(characters("caf\u00e9 \U0001F408") == 6);
        CHECK(padded("caf\u00e9", 6) == "caf\u00e9  ");
        CHECK(padded("caf\u00e9", -6) == "  caf\u00e9");
        CHECK(padded("caf\u00e9", 3) == "caf\u00e9");
        CHECK(trimmed(" \ta b\r ") == "a b");
        CHECK(trimmed(" \t") == "");
        CHECK(trimmed("") == "");
    }

    TEST_CASE("text: a CSV field stays on its line, whatever it contains") {
        CHECK(csv_field("plain 1.5") == "plain 1.5");
        CHECK(csv_field("a,b") == "\"a,b\"");
        CHECK(csv_field("say \"x\"") == "\"say \"\"x\"\"\"");
        CHECK(csv_field("a\r\nb\x1b,") == "\"a\\r\\nb\\x1b,\"");
    }

    TEST_CASE("text: a spreadsheet takes no cell of a table for a formula") {
        for (const std::string formula :
             {"=cmd|' /C calc'!A0", "+1+cmd|' /C calc'!A0", "-1+A1", "@SUM(A1)", "-", "=1"}) {
            CHECK(table_cell(formula) == "'" + formula);
            CHECK(csv_field(formula) == "'" + formula);
            CHECK(text_of_cell(table_cell(formula)) == formula);
        }
        CHECK(csv_field("=A1,\"\"") == "\"'=A1,\"\"\"\"\"");
        CHECK(table_cell("\t=1") == "\\t=1"); // a spreadsheet would skip the tab
        CHECK(table_cell("\r=1") == "\\r=1");
        for (const std::string text : {"-0.5", "-1e-05", "-3", "a=b", "runs/-1", "'=1", "", "0"})
            CHECK(table_cell(text) == text);
        for (const std::string text : {"-0.5", "a=b", "'a", "'-3", "'"}) CHECK(text_of_cell(text) == text);
    }

    TEST_CASE("text: numbers do not depend on the locale") {
        const OtherLocale locale;
        std::ostringstream stream;
        stream << 1234.5;
        REQUIRE(stream.str() == "1.234,5");
        char digits[8];
        std::snprintf(digits, sizeof digits, "%.1f", 0.5);
        if (std::string_view(digits) == "0.5") MESSAGE("printf() is not tested: expected a German or French locale");
        CHECK(cat(1120, " ", 0.5, " ", uint64_t{1} << 40) == "1120 0.5 1099511627776");
        CHECK(formatted("%.2f %g %d", 0.25, 1.5, 1120) == "0.25 1.5 1120");
        std::snprintf(digits + 4, 4, "%.1f", 0.5);
        CHECK(std::string_view(digits + 4) == std::string_view(digits).substr(0, 3)); // the locale is still set
        double value = 0;
        CHECK(read_number(formatted("%.4g", 0.125), value));
        CHECK(value == 0.125);
        CHECK_FALSE(read_number("0,5", value));
    }

    TEST_CASE("checksum: differs if any bit does, or the number of zeros") {
        CHECK(checksum({}) == checksum("")); // the first has a null pointer
        const auto differ = [](std::vector<uint64_t> sums) {
            std::sort(sums.begin(), sums.end());
            return std::adjacent_find(sums.begin(), sums.end()) == sums.end();
        };
        std::vector<uint64_t> of_zeros, of_bits;
        for (size_t length = 0; length < 20; ++length) of_zeros.push_back(checksum(std::string(length, '\0')));
        CHECK(differ(of_zeros));
        std::string bytes(19, '\0');
        for (char& byte : bytes)
            for (int bit = 0; bit < 8; ++bit) {
                byte = char(1 << bit);
                of_bits.push_back(checksum(bytes));
                byte = 0;
            }
        CHECK(differ(of_bits));
    }
}

} // namespace rg
