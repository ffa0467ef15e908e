// Tests text from outside that is printed on one line, for people and as a field of a table, and the checksum of bytes.
#include "ringgrad/core/checksum.h"
#include "ringgrad/core/text.h"

#include <doctest/doctest.h>

#include <algorithm>

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

    TEST_CASE("text: a CSV field stays on its line, whatever it contains") {
        CHECK(csv_field("plain 1.5") == "plain 1.5");
        CHECK(csv_field("a,b") == "\"a,b\"");
        CHECK(csv_field("say \"x\"") == "\"say \"\"x\"\"\"");
        CHECK(csv_field("a\r\nb\x1b,") == "\"a\\r\\nb\\x1b,\"");
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
