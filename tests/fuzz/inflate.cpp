// Compares inflate_zlib and inflate_gzip with zlib: both accept the same streams, with the same contents.
#include "data/inflate.h"
#include "tests/fuzz/fuzz.h"

#include <algorithm>
#include <zlib.h>

namespace rg::fuzz {
namespace {

using data::inflate_gzip, data::inflate_zlib;

constexpr size_t kLimit = 1 << 16; // bytes of output
constexpr int kRaw = -15, kZlib = 15, kGzip = 31;

/// Returns the contents of a stream and the number of bytes after it, or nothing if zlib rejects it.
struct Unpacked {
    Vec contents;
    size_t left;
};
std::optional<Unpacked> zlib_inflate(Bytes in, int format) {
    z_stream stream{};
    ::inflateInit2(&stream, format);
    Vec out(kLimit);
    stream.next_in = const_cast<uint8_t*>(in.data());
    stream.avail_in = uInt(in.size());
    stream.next_out = out.data();
    stream.avail_out = uInt(out.size());
    const bool good = ::inflate(&stream, Z_FINISH) == Z_STREAM_END;
    out.resize(stream.total_out);
    ::inflateEnd(&stream);
    if (!good) return {};
    return Unpacked{std::move(out), stream.avail_in};
}

/// Returns the contents of all members of a .gz file.
std::optional<Vec> zlib_gunzip(Bytes in) {
    Vec all;
    do {
        const auto member = zlib_inflate(in, kGzip);
        if (!member) return {};
        append(all, member->contents);
        in = in.last(member->left);
    } while (std::any_of(in.begin(), in.end(), [](uint8_t byte) { return byte != 0; })); // zeros are padding
    if (all.size() > kLimit) return {};
    return all;
}

/// Adds the header and the checksum to a stream.
void fuzz_deflate(Bytes in) {
    const auto expected = zlib_inflate(in, kRaw);
    Vec framed{0x78, 0x01};
    if (!expected) {
        append(framed, in);
        std::string error;
        require(!accepted([&] { return inflate_zlib(framed, kLimit); }, &error), "zlib refuses what we take");
        require(error.find("Adler") == error.npos, "zlib refuses a stream that we would take");
        return;
    }
    const Bytes stream = in.first(in.size() - expected->left);
    const Vec& contents = expected->contents;
    append(framed, stream);
    append_be32(framed, data::adler32(contents));
    require(inflate_zlib(framed, contents.size()) == contents, "contents as zlib's");
    require(contents.empty() || !accepted([&] { return inflate_zlib(framed, contents.size() - 1); }), "the limit");
    const Bytes cut = Bytes(framed).first(framed.size() - 1);
    require(!accepted([&] { return inflate_zlib(cut, kLimit); }), "cuts are found");
    for (const size_t limit : {contents.size() / 2, contents.size()}) {
        std::string damage;
        const Vec part = inflate_zlib(cut, limit, "cut", &damage);
        require(part.size() == limit && std::equal(part.begin(), part.end(), contents.begin()), "the first contents");
        require(!damage.empty(), "damage is noticed");
    }

    Vec gzip{0x1F, 0x8B, 8, 0, 0, 0, 0, 0, 0, 0};
    append(gzip, stream);
    for (const size_t value : {size_t{data::crc32(contents)}, contents.size()})
        for (int shift = 0; shift < 32; shift += 8) gzip.push_back(uint8_t(value >> shift));
    append(gzip, Vec(gzip));
    Vec twice = contents;
    append(twice, contents);
    require(inflate_gzip(gzip, twice.size()) == twice, "gzip, two members");
}

} // namespace

void fuzz(Input input) {
    const int format = input.byte() % 4;
    const Bytes in = input.rest();
    require(data::crc32(in) == ::crc32(0, in.data(), uInt(in.size())), "CRC-32 as zlib's");
    require(data::adler32(in) == ::adler32(1, in.data(), uInt(in.size())), "Adler-32 as zlib's");
    if (format >= 2) return fuzz_deflate(in);
    if (format == 1) {
        require(accepted([&] { return inflate_gzip(in, kLimit); }) == zlib_gunzip(in), "gzip as zlib");
        return;
    }
    const auto expected = zlib_inflate(in, kZlib);
    const auto got = accepted([&] { return inflate_zlib(in, kLimit); });
    require(got.has_value() == (expected && expected->left == 0), "zlib streams as zlib");
    require(!got || *got == expected->contents, "contents as zlib's");
}

} // namespace rg::fuzz
