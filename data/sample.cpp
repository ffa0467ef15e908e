// Embeds the sample: the assembler's .incbin makes the PNGs and labels in data/sample part of the program.
//
// RG_SAMPLE_DIR is that folder; the build defines it. A generated array of 2.6 MB would compile slowly and need a
// generator. The assembler directives are for ELF targets only.
#include "data/sample.h"

#include "data/cifar.h"
#include "data/png.h"
#include "sample_stamp.h" // checksums of the files: if they change, this file is compiled again

#ifndef RG_SAMPLE_DIR
#error "RG_SAMPLE_DIR must name the folder data/sample"
#endif

// A section of its own: the linker drops it from programs that do not use the sample.
asm(".pushsection .rodata.rg_sample, \"a\", %progbits\n"
    ".global rg_train_png, rg_train_labels, rg_test_png, rg_test_labels, rg_sample_end\n"
    ".hidden rg_train_png, rg_train_labels, rg_test_png, rg_test_labels, rg_sample_end\n"
    "rg_train_png: .incbin \"" RG_SAMPLE_DIR "/train.png\"\n"
    "rg_train_labels: .incbin \"" RG_SAMPLE_DIR "/train.txt\"\n"
    "rg_test_png: .incbin \"" RG_SAMPLE_DIR "/test.png\"\n"
    "rg_test_labels: .incbin \"" RG_SAMPLE_DIR "/test.txt\"\n"
    "rg_sample_end: .byte 0\n"
    ".popsection\n");

extern "C" {
[[gnu::visibility("hidden")]] extern const uint8_t rg_train_png[];
[[gnu::visibility("hidden")]] extern const uint8_t rg_train_labels[];
[[gnu::visibility("hidden")]] extern const uint8_t rg_test_png[];
[[gnu::visibility("hidden")]] extern const uint8_t rg_test_labels[];
[[gnu::visibility("hidden")]] extern const uint8_t rg_sample_end[];
}

namespace rg::data {

namespace {

/// Returns the images of a PNG that holds them one below the other, 32 x 32 pixels each. `digits` has one character
/// from '0' to '9' per image, its label.
ImageSet unpack(Bytes png, Bytes digits, const std::string& name) {
    Image column = decode_png(png, name);
    ImageSet set{column.height / 32, 32, 32, 3, std::move(column.pixels), {}, class_names(CifarKind::cifar10)};
    for (const uint8_t digit : digits)
        if (digit != '\n') set.labels.push_back(digit - '0');
    set.check(name);
    return set;
}

} // namespace

TrainTest sample() {
    return {unpack({rg_train_png, rg_train_labels}, {rg_train_labels, rg_test_png}, "embedded training sample"),
            unpack({rg_test_png, rg_test_labels}, {rg_test_labels, rg_sample_end}, "embedded test sample"), ""};
}

} // namespace rg::data
