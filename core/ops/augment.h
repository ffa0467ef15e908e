// Random views of images, normalised.
#pragma once

#include "core/op.h"

namespace rg {

struct Window {
    int64_t height = 0, width = 0;
    bool reflect = false; // pixels outside of the image: mirrored at the edge pixel; else black (byte 0)
    DType dtype = DType::f32;
};

/// Cuts windows from images that are all in memory, and normalises them. images u8 [N h w c], up to 4 channels; indices
/// i32 [n], the images to read; views i32 [n 3]: flip (0 or 1, left to right), and y0 and x0, where the window begins,
/// which may lie outside of the image; statistics [2 c], mean and standard deviation -> [n height width c]. The results
/// have the same bits as those of data/augment.h.
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
