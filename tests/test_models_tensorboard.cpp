// Tests the checksum of event files with known results. tests/e2e/events.py reads the records.
#include "ringgrad/models/run/tensorboard.h"

#include <doctest/doctest.h>

namespace rg {

TEST_SUITE("models") {
    TEST_CASE("tensorboard: CRC-32C gives the results of RFC 3720") {
        std::string up;
        for (int i = 0; i < 32; ++i) up += char(i);
        CHECK(crc32c("") == 0);
        CHECK(crc32c("123456789") == 0xe3069283);
        CHECK(crc32c(std::string(32, '\0')) == 0x8a9136aa);
        CHECK(crc32c(std::string(32, '\xff')) == 0x62a8ab43);
        CHECK(crc32c(up) == 0x46dd794e);
        CHECK(crc32c(std::string(up.rbegin(), up.rend())) == 0x113fdb5c);
    }
}

} // namespace rg
