// Fuzzes decode_jpeg with unchanged files, and with scans of the input after valid tables. Decoded images have the
// size that the header states, and the same bytes give the same pixels.
#include "data/jpeg.h"
#include "tests/fuzz/fuzz.h"

namespace rg::fuzz {
namespace {

using namespace rg::data;

constexpr uint64_t kPixels = 1 << 10; // larger images take more time, but run no other code

/// Returns the number of pixels that the first frame header states; 0 if there is none.
uint64_t pixels_of(Bytes file) {
    for (size_t at = 0; at + 9 < file.size(); ++at)
        if (file[at] == 0xFF && file[at + 1] >= 0xC0 && file[at + 1] <= 0xC2) {
            const uint32_t sides = load_be32(&file[at + 5]);
            if (const uint64_t pixels = uint64_t{sides >> 16} * (sides & 0xFFFF); pixels > kPixels) return pixels;
        }
    return 0;
}

void fuzz_file(Bytes file) {
    if (pixels_of(file) > kPixels) return;
    const auto image = accepted([&] { return decode_jpeg(file, "fuzz"); });
    if (!image) return;
    require(is_jpeg(file), "the signature");
    require(image->width > 0 && image->height > 0 && uint64_t(image->width * image->height) <= kPixels, "the size");
    require((image->channels == 1 || image->channels == 3) && image->bit_depth == 8, "the form");
    require(image->pixels.size() == size_t(image->width * image->height * image->channels), "the number of samples");
    require(decode_jpeg(file, "again").pixels == image->pixels, "the same pixels again");
}

void append_segment(Vec& out, int marker, Bytes body) {
    out.insert(out.end(), {0xFF, uint8_t(marker), 0, uint8_t(body.size() + 2)});
    append(out, body);
}

/// Makes a file with valid tables, and scans of data from the input. Almost all bits are valid codes: those of DC
/// symbols have 4 bits, and those of AC symbols 8.
void fuzz_scans(Input& input) {
    const uint8_t form = input.byte();
    const bool progressive = form & 1;
    const size_t count = form & 2 ? 3 : form & 4 ? 4 : 1;
    Vec file{0xFF, 0xD8}, steps(65, 1), frame{8, 0, uint8_t(1 + input.byte() % 32), 0, uint8_t(1 + input.byte() % 32)};
    append_segment(file, 0xDB, steps);
    if (form & 8) append_segment(file, 0xEE, Vec{'A', 'd', 'o', 'b', 'e', 0, 100, 0, 0, 0, 0, uint8_t(form >> 4 & 3)});
    frame.push_back(uint8_t(count));
    for (size_t i = 0; i < count; ++i) {
        const uint8_t factors = input.byte();
        frame.insert(frame.end(), {uint8_t(i), uint8_t(0x11 + (factors & 0x33)), 0});
    }
    append_segment(file, progressive ? 0xC2 : 0xC0, frame);
    for (int ac = 0; ac < 2; ++ac) {
        Vec code(17 + (ac ? 240 : 16));
        code[0] = uint8_t(ac << 4);
        code[ac ? 8 : 4] = uint8_t(code.size() - 17); // symbols of each size, and runs of up to 15
        for (size_t i = 0; i + 17 < code.size(); ++i) code[17 + i] = uint8_t(i * (ac ? 77 : 1) % (ac ? 256 : 16));
        const size_t length = code.size() + 2;
        file.insert(file.end(), {0xFF, 0xC4, uint8_t(length >> 8), uint8_t(length)});
        append(file, code);
    }
    if (form & 64) append_segment(file, 0xDD, Vec{0, uint8_t(input.byte() % 4)});
    const size_t scans = 1 + input.byte() % 8;
    for (size_t scan = 0; scan < scans; ++scan) {
        Vec header;
        const uint8_t components = input.byte(), first = input.byte() % 64, bits = input.byte();
        for (size_t i = 0; i < count; ++i)
            if (components & 1 << i) header.insert(header.end(), {uint8_t(i), 0});
        header.insert(header.begin(), uint8_t(header.size() / 2));
        header.insert(header.end(), {first, uint8_t(first ? 63 : 0), bits});
        append_segment(file, 0xDA, header);
        for (const uint8_t byte : input.bytes(input.below(512))) {
            file.push_back(byte);
            if (byte == 0xFF) file.push_back(uint8_t(input.byte() & 1 ? 0xD0 + scan : 0));
        }
    }
    file.insert(file.end(), {0xFF, 0xD9});
    fuzz_file(file);
}

} // namespace

void fuzz(Input input) {
    if (input.byte() % 2) return fuzz_scans(input);
    fuzz_file(input.rest());
}

} // namespace rg::fuzz
