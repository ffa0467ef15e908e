// Fuzzes parse_cifar with records whose number and labels come from the input.
#include "data/cifar.h"
#include "tests/fuzz/fuzz.h"

namespace rg::fuzz {

using namespace rg::data;

void fuzz(Input input) {
    constexpr size_t kPlane = 1024, kPixels = 3 * kPlane, kMost = 2 * (2 + kPixels) + 1;
    const bool fine = input.byte() & 1;
    const CifarKind kind = fine ? CifarKind::cifar100 : CifarKind::cifar10;
    const size_t labels = fine ? 2 : 1, record = labels + kPixels, classes = fine ? 100 : 10;
    const size_t extra = input.below(4) ? 0 : input.below(uint32_t(record)); // most files have whole records
    Vec file(std::min(record * input.below(3) + extra, kMost));
    for (size_t i = 0; i < file.size(); ++i)
        file[i] = i % record < labels ? input.byte() : uint8_t(i * 31 + i / kPlane * 7);

    bool good = !file.empty() && file.size() % record == 0;
    for (size_t i = labels - 1; i < file.size(); i += record) good = good && file[i] < classes;
    const auto set = accepted([&] { return parse_cifar({{file, "fuzz"}}, kind); });
    require(set.has_value() == good, "whole records with labels in range, and nothing else");
    for (size_t i = 0; set && i < file.size() / record; ++i) {
        const uint8_t* const from = &file[i * record + labels];
        require(set->labels[i] == from[-1], "labels");
        bool same = true;
        for (size_t p = 0; p < kPixels; p += 5) same &= set->pixels.data()[i * kPixels + p] == from[p % 3 * kPlane + p / 3];
        require(same, "pixels, interleaved");
    }
    if (const auto guess = accepted([&] { return cifar_kind(file, "fuzz"); }))
        require(file.size() % (*guess == CifarKind::cifar10 ? 1 + kPixels : 2 + kPixels) == 0, "the kind");
}

} // namespace rg::fuzz
