// Resizes images for compare_images.py, which compares the results with Pillow.
//
//     compare_images < REQUESTS > RESULTS
//
// A request is a line "FUNCTION ROWS COLUMNS CHANNELS HEIGHT WIDTH" and the bytes of the image. The function is resize
// or fit. The result is the bytes of the image of HEIGHT x WIDTH.
#include "ringgrad/data/resize.h"

#include <cstdio>
#include <iostream>

using namespace rg;

int main() {
    try {
        for (std::string function; std::cin >> function;) {
            data::Image image;
            int64_t height = 0, width = 0;
            std::cin >> image.height >> image.width >> image.channels >> height >> width;
            std::cin.ignore(1);
            image.pixels.resize(size_t(image.height * image.width * image.channels));
            std::cin.read(reinterpret_cast<char*>(image.pixels.data()), std::streamsize(image.pixels.size()));
            RG_CHECK(std::cin, "compare_images: expected a request, got ", function, " without an image");
            const data::Image result = (function == "fit" ? data::fit : data::resize)(image, height, width);
            std::cout.write(reinterpret_cast<const char*>(result.pixels.data()), std::streamsize(result.pixels.size()));
        }
    } catch (const std::exception& error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
    return 0;
}
