// Embeds the sample: the assembler's .incbin makes data/sample/*.bin part of the program.
//
// RG_SAMPLE_DIR is that folder; the build defines it. A generated array of 3.7 MB would compile slowly and need a
// generator. Works for ELF targets only.
#include "data/sample.h"

#include "data/cifar.h"
#include "sample_stamp.h" // checksums of the files, so that this is compiled again when they change

#ifndef RG_SAMPLE_DIR
#error "RG_SAMPLE_DIR must name the folder data/sample"
#endif

asm(".pushsection .rodata\n"
    ".balign 16\n"
    ".global rg_sample_train, rg_sample_test, rg_sample_end\n"
    ".hidden rg_sample_train, rg_sample_test, rg_sample_end\n"
    "rg_sample_train: .incbin \"" RG_SAMPLE_DIR "/train.bin\"\n"
    "rg_sample_test: .incbin \"" RG_SAMPLE_DIR "/test.bin\"\n"
    "rg_sample_end: .byte 0\n"
    ".popsection\n");

extern "C" {
[[gnu::visibility("hidden")]] extern const uint8_t rg_sample_train[];
[[gnu::visibility("hidden")]] extern const uint8_t rg_sample_test[];
[[gnu::visibility("hidden")]] extern const uint8_t rg_sample_end[];
}

namespace rg::data {

TrainTest sample() {
    return {parse_cifar({rg_sample_train, rg_sample_test}, CifarKind::cifar10, "embedded training sample"),
            parse_cifar({rg_sample_test, rg_sample_end}, CifarKind::cifar10, "embedded test sample"), ""};
}

} // namespace rg::data
