// The samples of the test set with the largest errors, which the report shows as pictures.
#pragma once

#include "core/json.h"
#include "data/loader.h"
#include "data/png.h"
#include "par/group.h"

#include <functional>
#include <map>

namespace rg {

/// The outputs of a network for a batch of n samples: one or more tensors [n ...], such as scores [n classes].
using Outputs = std::span<const Tensor>;

/// A batch of a test, in host memory.
struct TestBatch {
    const data::ImageSet& set;
    const data::Normalise& normalise;
    const data::Batch& batch; // sample i is image batch.first + i of the set
    Outputs outputs;

    /// Return a picture of sample i, and of normalised values of the same size, such as a reconstruction of it. A
    /// picture has the first three channels, or the first one if there are fewer.
    data::Image image(int64_t i) const;
    data::Image image(std::span<const float> values) const;
};
/// Returns a picture of the class of each pixel, in the colours of PASCAL VOC.
data::Image picture_of_classes(std::span<const int32_t> classes, data::ImageSize size);

class WorstSamples;

/// Describes a gallery of pictures in the report: which samples it shows, and how.
struct GallerySpec {
    std::string title; // such as "largest errors"
    /// Calls WorstSamples::offer() for sample i if the gallery may show it.
    std::function<void(const TestBatch& test, int64_t i, WorstSamples& worst)> offer;
    std::vector<std::string> classes = {}; // names, for a legend of the colours in picture_of_classes()
};

/// The samples of a test with the largest errors.
class WorstSamples {
public:
    static constexpr size_t kMost = 24;      // largest number of samples that are kept
    static constexpr int64_t kMaxSide = 128; // longer side of a picture in pixels; larger pictures are scaled down

    /// `gallery` must outlive this.
    explicit WorstSamples(const GallerySpec& gallery) : gallery_(gallery) {}
    void add(const TestBatch& test) {
        for (int64_t i = 0; i < test.batch.size; ++i) gallery_.offer(test, i, *this);
    }
    struct ShownSample {
        std::string caption;
        std::vector<data::Image> pictures; // grey or RGB, shown side by side
    };
    /// Keeps sample i of the batch if its error is among the largest so far. Only then calls `show`.
    void offer(const TestBatch& test, int64_t i, double error, const std::function<ShownSample()>& show);
    /// Collective. Returns the worst samples of all ranks, on all ranks: an element of "samples" of a RUN (report.h).
    Json gather(par::Group& group, const data::ImageSet& set) const;

private:
    using Key = std::pair<double, int64_t>; // the negative error, and the index of the image
    const GallerySpec& gallery_;
    std::map<Key, ShownSample> worst_;
};

/// Returns the bytes as base64 (RFC 4648).
std::string base64(std::span<const uint8_t> bytes);

} // namespace rg
