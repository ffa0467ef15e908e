// The op that cuts views out of images, flips them, and normalises them. The caller draws the random numbers.
#pragma once

#include "ringgrad/core/op.h"

namespace rg {

/// The largest number of channels of an image.
constexpr int64_t kMaxImageChannels = 16;

struct Window {
    int64_t height = 0, width = 0;
    bool reflect = false; // true: mirrors the image at its edge pixels; false: pixels outside are black (byte 0)
    DType dtype = DType::f32;
};

/// Cuts a window out of each selected image, flips it if asked, and normalises it. Returns [n height width c], with the
/// same bits as data/augment.h. Arguments:
/// - images u8 [N h w c], with up to 16 channels;
/// - indices i32 [n]: the selected images;
/// - views i32 [n 3]: flip (1 mirrors the window left to right, 0 does not), and the first row and column of the
///   window, which may lie outside of the image;
/// - statistics f32 [2 c]: the mean (row 0) and the standard deviation (row 1) of byte / 255, per channel.
Tensor augment(const Tensor& images, const Tensor& indices, const Tensor& views, const Tensor& statistics,
               const Window& window);

// ---- rows of the op table ----

#define RG_AUGMENT_OPS(X) X(augment)
RG_AUGMENT_OPS(RG_DECLARE_OP)

struct AugmentOp {
    enum In { images, indices, views, statistics };
    Window window;
};

} // namespace rg
