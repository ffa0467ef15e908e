// Defines the entry point of libFuzzer.
#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
    rg::fuzz::fuzz(rg::fuzz::Input({bytes, size}));
    return 0;
}
