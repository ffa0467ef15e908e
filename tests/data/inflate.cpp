// Tests inflate with streams of zlib and with streams that are built here bit by bit: long codes, every violation of
// the format, zip bombs, truncation and checksums.
#include "core/rng.h"
#include "data/inflate.h"
#include "tests/temp_dir.h"

#include <array>
#include <doctest/doctest.h>
#include <map>

namespace rg::data {
namespace {

using Vec = std::vector<uint8_t>;

Vec from_hex(std::string_view hex) {
    Vec bytes;
    for (size_t i = 0; i + 1 < hex.size(); i += 2)
        bytes.push_back(uint8_t(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16)));
    return bytes;
}

std::string text_of(const Vec& bytes) { return {bytes.begin(), bytes.end()}; }

/// Writes DEFLATE: values from their lowest bit, codes from their highest.
class BitWriter {
public:
    Vec bytes;
    BitWriter() : bytes(2, 0x78) { bytes[1] = 0x01; }
    BitWriter& put(uint32_t value, int bits) {
        for (int b = 0; b < bits; ++b, ++used_) {
            if (used_ % 8 == 0) bytes.push_back(0);
            bytes.back() = uint8_t(bytes.back() | (value >> b & 1) << used_ % 8);
        }
        return *this;
    }
    BitWriter& code(uint32_t value, int bits) {
        for (int b = bits - 1; b >= 0; --b) put(value >> b & 1, 1);
        return *this;
    }
    /// Ends the stream with the checksum of `contents`.
    Vec finish(const Vec& contents) {
        Vec out = bytes;
        uint32_t a = 1, b = 0;
        for (const uint8_t v : contents) b = (b + (a = (a + v) % 65521)) % 65521;
        for (const uint32_t v : {b >> 8, b, a >> 8, a}) out.push_back(uint8_t(v));
        return out;
    }

private:
    int used_ = 0;
};

/// Computes a canonical code (RFC 1951, section 3.2.2) in a slow and simple way.
std::map<int, std::pair<uint32_t, int>> canonical(const std::vector<int>& lengths) {
    std::map<int, std::pair<uint32_t, int>> codes;
    uint32_t next = 0;
    for (int bits = 1; bits <= 15; ++bits, next <<= 1)
        for (size_t i = 0; i < lengths.size(); ++i)
            if (lengths[i] == bits) codes[int(i)] = {next++, bits};
    return codes;
}

/// Writes the header of a dynamic block. All code lengths have 4 bits.
void put_dynamic_head(BitWriter& w, std::vector<int> literals, const std::vector<int>& distances) {
    w.put(1, 1).put(2, 2).put(uint32_t(literals.size() - 257), 5).put(uint32_t(distances.size() - 1), 5).put(15, 4);
    for (const int symbol : {16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15})
        w.put(symbol < 16 ? 4 : 0, 3);
    literals.insert(literals.end(), distances.begin(), distances.end());
    for (const int length : literals) w.code(uint32_t(length), 4);
}

std::string zlib_error(const Vec& bytes, size_t limit = 1 << 20) {
    return error_of([&] { inflate_zlib(bytes, limit, "t"); });
}

const char* const kNumbers =
    "78da0d8ec911c0400c835a5a5db6dc7f63c99f011e2867b6870780108c60b0288e8f20299ae170599e9e204ab2a2d1aa3a3fc3b46cc7e3"
    "757d794118c549269be6e60d86a3f16466763ab76fb15cad373bbbdbbdbea2aceaa6d36d7bf7ee1fba3f76bfe87ee8ee0365b42725";

std::string numbers() {
    std::string text;
    for (int i = 0; i < 100; ++i) text += std::to_string(i);
    return text;
}

const std::string kCats = [] {
    std::string text;
    for (int i = 0; i < 3; ++i) text += "the cat sat on the mat; the rat sat on the cat; that mat sat flat. ";
    return text;
}();
const char* const kGzip =
    "1f8b080887d6120002ff6e616d652e747874002bc94855484e2c512806e2fc3c8512203737b1c41acc2842154f8688"
    "030572a112693989257a30b901360200859bb624c9000000";

TEST_SUITE("data") {
    TEST_CASE("inflate: unpacks streams of zlib") {
        CHECK(text_of(inflate_zlib(from_hex(kNumbers), 1000)) == numbers());
        CHECK(text_of(inflate_zlib(
                  from_hex("78012bc94855484e2c512806e2fc3c8512203737b1c41acc2842154f8688030572a112693989257a"
                           "30b901360200192f4468"),
                  kCats.size())) == kCats);
        CHECK(text_of(inflate_zlib(from_hex("7801010300fcff616263024d0127"), 3)) == "abc");
        CHECK(text_of(inflate_zlib(from_hex("789c030000000001"), 0)).empty());
    }

    TEST_CASE("inflate: unpacks gzip files with one member and with several") {
        const Vec one = from_hex(kGzip);
        CHECK(text_of(inflate_gzip(one, 1000)) == kCats);
        Vec two = one;
        two.insert(two.end(), one.begin(), one.end());
        CHECK(text_of(inflate_gzip(two, 1000)) == kCats + kCats);
        CHECK_ERROR("at most", inflate_gzip(two, kCats.size() + 1, "t"));
        // Zeros after the last member are padding. Anything else is an error.
        for (const Vec& members : {one, two}) {
            Vec padded = members;
            padded.resize(padded.size() + 1000);
            CHECK(inflate_gzip(padded, 1000) == inflate_gzip(members, 1000));
            padded.back() = 1;
            CHECK_THROWS_AS(inflate_gzip(padded, 1000), Error);
        }
        CHECK_THROWS_AS(inflate_gzip(Vec(1000), 1000), Error);
        // A length beyond the limit is an error before anything is unpacked. Unpacking would give another error here.
        Vec bomb = one;
        bomb[12] ^= 0xff;
        CHECK_FALSE(contains(error_of([&] { inflate_gzip(bomb, kCats.size(), "t"); }), "at most"));
        CHECK_ERROR(cat("at most ", kCats.size() - 1, " bytes of output, got ", kCats.size(), " by the length"),
                    inflate_gzip(bomb, kCats.size() - 1, "t"));
        for (size_t cut = 0; cut < one.size(); ++cut) {
            CAPTURE(cut);
            CHECK_THROWS_AS(inflate_gzip(Bytes(one).first(cut), 1000), Error);
        }
        // Name, time and system do not concern the contents. Every other change must be an error.
        for (size_t i = 0; i < one.size(); ++i)
            for (const int flip : {1, 0x80, 0xFF}) {
                Vec bad = one;
                bad[i] ^= uint8_t(flip);
                CAPTURE(i);
                std::string text;
                if (!error_of([&] { text = text_of(inflate_gzip(bad, 1000)); }).empty()) continue;
                CHECK(text == kCats);
                CHECK(i < one.size() - 8);
            }
    }

    TEST_CASE("inflate: decodes codes of every length, in both loops") {
        // Use literals with codes of 1 to 15 bits, a length of each kind, and distances with long codes.
        std::vector<int> literals(286, 0), distances(30, 0);
        for (int i = 0; i < 12; ++i) literals[size_t('a' + i)] = i + 1; // these use 1 - 2^-12 of the code space
        literals[256] = 14, literals[257] = 14, literals[264] = 15, literals[284] = 15,
        literals[285] = 14; // this uses the other 2^-12
        for (int i = 0; i < 14; ++i) distances[size_t(i)] = i + 1;
        distances[20] = distances[29] = 15;
        const auto literal_code = canonical(literals), distance_code = canonical(distances);
        BitWriter w;
        put_dynamic_head(w, literals, distances);
        Vec expected;
        Rng rng(1, Purpose::test);
        const auto copy = [&](int length, int distance) {
            for (int k = 0; k < length; ++k) expected.push_back(expected[expected.size() - size_t(distance)]);
        };
        for (int i = 0; i < 60000; ++i) {
            const uint32_t kind = rng.uniform_below(100);
            const int letter = 'a' + int(rng.uniform_below(12));
            if (kind < 60 || expected.size() < 33000) {
                w.code(literal_code.at(letter).first, literal_code.at(letter).second);
                expected.push_back(uint8_t(letter));
                continue;
            }
            const int symbol = std::array{257, 264, 284, 285}[rng.uniform_below(4)],
                      extra = symbol == 284 ? int(rng.uniform_below(31)) : 0;
            const int length = symbol == 257 ? 3 : symbol == 264 ? 10 : symbol == 284 ? 227 + extra : 258;
            w.code(literal_code.at(symbol).first, literal_code.at(symbol).second)
                .put(uint32_t(extra), symbol == 284 ? 5 : 0);
            const int far = std::array{0, 1, 2, 3, 5, 7, 13, 20, 29}[rng.uniform_below(9)];
            const int bits = far < 4 ? 0 : far / 2 - 1, more = int(rng.uniform_below(1u << bits));
            w.code(distance_code.at(far).first, distance_code.at(far).second).put(uint32_t(more), bits);
            copy(length, (far < 4 ? far : (2 + far % 2) << bits) + 1 + more);
        }
        w.code(literal_code.at(256).first, literal_code.at(256).second);
        const Vec stream = w.finish(expected);
        CHECK(inflate_zlib(stream, expected.size()) == expected);
        CHECK(inflate_zlib(stream, 10 * expected.size()) == expected);
        CHECK(contains(zlib_error(stream, expected.size() - 1), "at most"));
    }

    TEST_CASE("inflate: has a message with an offset for each violation") {
        const auto dynamic = [](std::vector<int> literals, std::vector<int> distances) {
            BitWriter w;
            put_dynamic_head(w, std::move(literals), distances);
            return w;
        };
        std::vector<int> only_end(257, 0), good(257, 0);
        only_end[256] = 1;
        good['a'] = good[256] = 1;
        std::vector<int> too_many = good, too_few = good;
        too_many['b'] = 1;
        too_few['a'] = 2;
        const auto fixed = [] { return BitWriter().put(1, 1).put(1, 2); };
        const struct {
            const char* text;
            Vec stream;
        } cases[] = {
            {"expected a zlib header", {0x78}},
            {"compression method 8, got 7", {0x77, 0x01, 0, 0}},
            {"window of at most 32 KiB", {0x88, 0x1C, 0, 0}},
            {"check bits", {0x78, 0x02, 0, 0}},
            {"preset dictionary", {0x78, 0x20, 0, 0}},
            {"block type 0, 1 or 2, got 3", BitWriter().put(1, 1).put(3, 2).bytes},
            {"its complement", {0x78, 0x01, 0x01, 0x03, 0x00, 0xFC, 0xFE, 'a', 'b', 'c'}},
            {"stored block: expected 3 bytes, got 2", {0x78, 0x01, 0x01, 0x03, 0x00, 0xFC, 0xFF, 'a', 'b'}},
            {"length of a stored block", {0x78, 0x01, 0x01, 0x03}},
            {"literal and length codes, got 287", BitWriter().put(1, 1).put(2, 2).put(30, 5).put(0, 9).bytes},
            {"distance codes, got 31", BitWriter().put(1, 1).put(2, 2).put(0, 5).put(30, 5).put(0, 4).bytes},
            {"code lengths is incomplete", BitWriter().put(1, 1).put(2, 2).put(0, 14).put(0, 12).bytes},
            {"code lengths has more codes",
             BitWriter().put(1, 1).put(2, 2).put(0, 14).put(1, 3).put(1, 3).put(1, 3).put(0, 3).bytes},
            {"before the first one",
             BitWriter().put(1, 1).put(2, 2).put(0, 14).put(1, 3).put(1, 3).put(0, 6).code(0, 1).put(0, 2).bytes},
            {"258 code lengths, got more",
             BitWriter().put(1, 1).put(2, 2).put(0, 14).put(0, 3).put(1, 3).put(1, 3).put(0, 3)
                 .code(1, 1).put(127, 7).code(1, 1).put(127, 7).bytes},
            {"end of the block, got none", dynamic(std::vector<int>(257, 0), {0}).bytes},
            {"literals and lengths has more codes", dynamic(too_many, {0}).bytes},
            {"literals and lengths is incomplete", dynamic(too_few, {0}).bytes},
            {"distances is incomplete", dynamic(good, {2, 2, 2}).bytes},
            {"distances has more codes", dynamic(good, {1, 1, 1}).bytes},
            {"no literal or length code", dynamic(only_end, {0}).put(1, 1).put(0, 7).bytes},
            {"no literal or length code", fixed().code(0xC6, 8).put(0, 20).bytes},
            {"no distance code", fixed().code(0x30 + 'a', 8).code(1, 7).code(30, 5).put(0, 30).bytes},
            {"distance of at most 1, got 2", fixed().code(0x30 + 'a', 8).code(1, 7).code(1, 5).put(0, 30).bytes},
            {"expected more data", fixed().code(0x30 + 'a', 8).bytes},
            {"expected an Adler-32, got the end", fixed().code(0, 7).bytes},
            {"expected Adler-32", fixed().code(0, 7).finish({'x'})},
        };
        for (const auto& c : cases) {
            const std::string error = zlib_error(c.stream);
            CAPTURE(c.text);
            CHECK(error == Containing{c.text, "(t, offset "});
        }
        Vec longer = fixed().code(0, 7).finish({});
        CHECK(zlib_error(longer).empty());
        longer.push_back(0);
        CHECK(contains(zlib_error(longer), "got 1 bytes more"));
        // These are unusual but valid: no distance code, and a code of one symbol.
        CHECK(inflate_zlib(dynamic(only_end, {0}).code(0, 1).finish({}), 0).empty());
        CHECK(inflate_zlib(dynamic(good, {0}).code(0, 1).code(0, 1).code(1, 1).finish({'a', 'a'}), 2) == Vec{'a', 'a'});
    }

    TEST_CASE("inflate: stops a zip bomb at the limit") {
        BitWriter w; // 258 equal bytes for every 13 bits
        w.put(1, 1).put(1, 2).code(0x30, 8);
        for (int i = 0; i < 200000; ++i) w.code(0xC5, 8).code(0, 5);
        CHECK(contains(zlib_error(w.bytes, 1 << 16), "at most 65536 bytes"));
        w.code(0, 7);
        CHECK(contains(zlib_error(w.bytes, 0), "at most 0 bytes"));
        const Vec zeros(1 + 258 * size_t{200000}); // output within the limit needs no more memory than this
        const Vec whole = inflate_zlib(w.finish(zeros), zeros.size());
        CHECK(whole.size() == zeros.size());
        CHECK(whole.capacity() <= zeros.size() + 1024);
    }

    TEST_CASE("inflate: returns the first bytes of a damaged stream, however it continues") {
        const Vec huffman = from_hex(kNumbers), contents = inflate_zlib(huffman, 1000);
        BitWriter stored;
        stored.put(1, 1).put(0, 2).put(0, 5);
        for (const size_t length : {contents.size(), ~contents.size()}) stored.put(uint32_t(length & 0xFFFF), 16);
        for (const uint8_t byte : contents) stored.put(byte, 8);
        for (const Vec& whole : {huffman, stored.finish(contents)})
            for (const size_t limit :
                 {size_t{1}, size_t{2}, contents.size() / 2, contents.size() - 1, contents.size()}) {
                CAPTURE(limit);
                const Vec expected(contents.begin(), contents.begin() + int64_t(limit));
                const auto check = [&](const Vec& stream) { // returns true if the stream has enough bytes
                    std::string damage;
                    Vec got;
                    const std::string error = error_of([&] { got = inflate_zlib(stream, limit, "t", &damage); });
                    CHECK(error.empty() == damage.starts_with("inflate: "));
                    if (error.empty()) CHECK(got == expected);
                    return error.empty();
                };
                size_t enough = whole.size();
                for (size_t cut = whole.size(); cut-- > 0;)
                    if (check({whole.begin(), whole.begin() + int64_t(cut)})) {
                        CHECK(enough == cut + 1);
                        enough = cut;
                    }
                CHECK(enough < whole.size());
                for (const uint8_t next : {0, 1, 7, 255}) { // what follows may be anything
                    Vec other = whole;
                    std::fill(other.begin() + int64_t(enough), other.end(), next);
                    CHECK(check(other));
                }
            }
        std::string damage;
        CHECK(inflate_zlib(huffman, contents.size(), "t", &damage) == contents);
        CHECK(inflate_zlib(huffman, 1000, "t", &damage) == contents);
        CHECK(damage.empty());
    }

    TEST_CASE("inflate: rejects every truncation and every changed byte of a stream") {
        const Vec good = from_hex(kNumbers);
        for (size_t cut = 0; cut < good.size(); ++cut) {
            CAPTURE(cut);
            CHECK_THROWS_AS(inflate_zlib(Bytes(good).first(cut), 1000), Error);
        }
        int taken = 0, others = 0;
        for (size_t i = 0; i < good.size(); ++i)
            for (int value = 0; value < 256; ++value) {
                Vec bad = good;
                bad[i] = uint8_t(value);
                std::string text;
                if (!error_of([&] { text = text_of(inflate_zlib(bad, 1000)); }).empty()) continue;
                // These are accepted: changes of the level in the header, of unused bits at the end, and 33 others that
                // pass Adler-32, which is weak for short texts.
                ++taken;
                others += text != numbers();
            }
        CHECK(taken == 175); // zlib accepts as many
        CHECK(others == 33);
    }

    TEST_CASE("checksums: give the known values") {
        const std::string_view digits = "123456789";
        CHECK(crc32(as_bytes(digits)) == 0xCBF43926);
        CHECK(adler32(as_bytes("Wikipedia")) == 0x11E60398);
        Vec bytes(100001);
        Rng rng(2, Purpose::test);
        for (uint8_t& b : bytes) b = uint8_t(rng.uniform_below(4) ? 0xFF : rng.next());
        for (const size_t size : {0, 1, 7, 8, 5552, 5553, 100001}) {
            const Bytes part = Bytes(bytes).first(size);
            uint32_t crc = ~0u, a = 1, b = 0;
            for (const uint8_t v : part) {
                crc ^= v;
                for (int k = 0; k < 8; ++k) crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320 : 0);
                b = (b + (a = (a + v) % 65521)) % 65521;
            }
            CHECK(crc32(part) == ~crc);
            CHECK(adler32(part) == (b << 16 | a));
        }
    }

} // TEST_SUITE

} // namespace
} // namespace rg::data
