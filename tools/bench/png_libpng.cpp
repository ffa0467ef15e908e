// Calls libpng's classic interface from memory to memory.
//
// libpng reports errors with longjmp, which must not skip a destructor. So functions that call setjmp have only trivial
// variables, and their callers create the objects to which these point.
#include "ringgrad/tools/bench/png_libpng.h"

#include <csetjmp>
#include <cstring>
#include <png.h>

namespace rg {

namespace {

struct Reader {
    data::Bytes rest;
};

void read_bytes(png_structp png, png_bytep to, size_t count) {
    Reader& reader = *static_cast<Reader*>(png_get_io_ptr(png));
    if (count > reader.rest.size()) png_error(png, "end of the file");
    std::memcpy(to, reader.rest.data(), count);
    reader.rest = reader.rest.subspan(count);
}

void write_bytes(png_structp png, png_bytep from, size_t count) {
    auto& out = *static_cast<std::vector<uint8_t>*>(png_get_io_ptr(png));
    out.insert(out.end(), from, from + count);
}

void flush_nothing(png_structp) {}

bool read_size(png_structp png, png_infop info, data::Image& image) {
    if (setjmp(png_jmpbuf(png))) return false;
    png_read_info(png, info);
    image.width = png_get_image_width(png, info);
    image.height = png_get_image_height(png, info);
    png_set_expand(png);
    png_set_scale_16(png);
    png_set_gray_to_rgb(png);
    png_set_strip_alpha(png);
    png_set_interlace_handling(png);
    png_read_update_info(png, info);
    return png_get_rowbytes(png, info) == size_t(image.width) * 3;
}

bool read_rows(png_structp png, std::vector<png_bytep>& rows) {
    if (setjmp(png_jmpbuf(png))) return false;
    png_read_image(png, rows.data());
    png_read_end(png, nullptr);
    return true;
}

bool write_all(png_structp png, png_infop info, const data::Image& image, std::vector<png_bytep>& rows) {
    if (setjmp(png_jmpbuf(png))) return false;
    png_set_IHDR(png, info, png_uint_32(image.width), png_uint_32(image.height), 8, PNG_COLOR_TYPE_RGB,
                 PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
    png_write_info(png, info);
    png_write_image(png, rows.data());
    png_write_end(png, nullptr);
    return true;
}

std::vector<png_bytep> rows_of(const data::Image& image) {
    std::vector<png_bytep> rows;
    for (int64_t y = 0; y < image.height; ++y)
        rows.push_back(const_cast<png_bytep>(image.pixels.data() + y * image.width * 3));
    return rows;
}

} // namespace

data::Image libpng_decode(data::Bytes file) {
    png_structp png = png_create_read_struct(PNG_LIBPNG_VER_STRING, nullptr, nullptr, nullptr);
    png_infop info = png_create_info_struct(png);
    Reader reader{file};
    png_set_read_fn(png, &reader, read_bytes);
    data::Image image{0, 0, 3, 8, {}};
    bool good = read_size(png, info, image);
    if (good) {
        image.pixels.resize(size_t(image.width * image.height * 3));
        std::vector<png_bytep> rows = rows_of(image);
        good = read_rows(png, rows);
    }
    png_destroy_read_struct(&png, &info, nullptr);
    RG_CHECK(good, "libpng: expected a PNG file, got ", file.size(), " other bytes; is the file damaged?");
    return image;
}

std::vector<uint8_t> libpng_encode(const data::Image& rgb) {
    RG_CHECK(rgb.channels == 3 && rgb.bit_depth == 8, "libpng: expected 3 channels of 8 bits, got ", rgb.channels,
             " of ", rgb.bit_depth, "; convert with to_u8()");
    std::vector<uint8_t> out;
    png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, nullptr, nullptr, nullptr);
    png_infop info = png_create_info_struct(png);
    png_set_write_fn(png, &out, write_bytes, flush_nothing);
    std::vector<png_bytep> rows = rows_of(rgb);
    const bool good = write_all(png, info, rgb, rows);
    png_destroy_write_struct(&png, &info);
    RG_CHECK(good, "libpng: expected to encode ", rgb.width, " x ", rgb.height, " pixels, got an error; use fewer");
    return out;
}

} // namespace rg
