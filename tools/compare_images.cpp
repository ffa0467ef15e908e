// Resizes images and takes views of them for compare_images.py, and reads files for mixed_folder.py. These scripts
// compare the results with those of Pillow.
//
//     compare_images < REQUESTS > RESULTS
//
// The request "file PATH" reads a PNG or a JPEG. The result is a line "size HEIGHT WIDTH" and the bytes as RGB, or a
// line with the error. The other requests change an image.
//
// A request is a line "FUNCTION ROWS COLUMNS CHANNELS HEIGHT WIDTH" and the bytes of the image. The function is resize,
// fit or view. For view, the six integers of a View that map pixels to positions follow in the line. The result is the
// bytes of the image of HEIGHT x WIDTH.
#include "core/cpu/augment.h"
#include "core/text.h"
#include "data/image_folder.h"
#include "data/resize.h"

#include <cmath>
#include <cstdio>
#include <iostream>

using namespace rg;

namespace {

std::vector<uint8_t> view_of(const data::Image& image, int64_t height, int64_t width, const View& view) {
    const std::vector<float> zeros(size_t(image.channels)), ones(size_t(image.channels), 1);
    std::vector<float> out(size_t(height * width * image.channels));
    cpu::write_view({image.height, image.width, image.channels, height, width}, view,
                    cpu::byte_table<float>(zeros.data(), ones.data(), image.channels), image.pixels.data(), out.data());
    std::vector<uint8_t> bytes;
    for (const float value : out) bytes.push_back(uint8_t(std::lround(value * 255)));
    return bytes;
}

void write(const std::vector<uint8_t>& bytes) { std::cout << data::as_text(bytes); }

void answer_file() {
    std::string path;
    std::getline(std::cin >> std::ws, path);
    try {
        const data::Image image = data::to_u8(data::read_image(path), 3);
        std::cout << "size " << image.height << " " << image.width << "\n";
        write(image.pixels);
    } catch (const Error& error) {
        std::cout << printable(error.what()) << "\n";
    }
    std::cout.flush(); // the next request may depend on the answer
}

void answer(const std::string& function) {
    if (function == "file") return answer_file();
    data::Image image;
    int64_t height = 0, width = 0;
    View view;
    std::cin >> image.height >> image.width >> image.channels >> height >> width;
    if (function == "view")
        std::cin >> view.y0 >> view.y_per_row >> view.y_per_column >> view.x0 >> view.x_per_row >> view.x_per_column;
    std::cin.ignore(1);
    image.pixels.resize(size_t(image.height * image.width * image.channels));
    std::cin.read(reinterpret_cast<char*>(image.pixels.data()), std::streamsize(image.pixels.size()));
    RG_CHECK(std::cin, "compare_images: expected a request and its image, got the end of the input");
    write(function == "view"  ? view_of(image, height, width, view)
          : function == "fit" ? data::fit(image, height, width).pixels
                              : data::resize(image, height, width).pixels);
}

} // namespace

int main() {
    try {
        for (std::string function; std::cin >> function;) answer(function);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
    return 0;
}
