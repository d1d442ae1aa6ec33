// What the layers over packed bits share. Bits of an image lie as [batch, height, width, words], 64 channels a word, the
// first channel lowest; unused bits of the last word are 0. Floats lie as [batch, height, width, channels].
#pragma once

#include <cstddef>
#include <cstdint>

namespace htaf {

// A linear layer is a convolution of 1 x 1 over one image of one row.
struct Convolution {
    std::size_t batch, height, width, channels, outputs;
    std::size_t kernel[2], stride[2], padding[2], dilation[2], groups;

    std::size_t out_height() const { return extent(height, 0); }
    std::size_t out_width() const { return extent(width, 1); }
    std::size_t pixels() const { return batch * out_height() * out_width(); }

   private:
    std::size_t extent(std::size_t size, int i) const {
        return (size + 2 * padding[i] - dilation[i] * (kernel[i] - 1) - 1) / stride[i] + 1;
    }
};

// What becomes of a layer's sums: y = scale sum + shift + residual, bit = lower <= y <= upper. Null pointers: scale 1,
// shift 0, residual 0; y or the bits are not wanted. One entry a channel; residual, y and bits one row a pixel. The wide
// ones, both or none, stand for scale and shift: then scale sum + shift is computed in double and rounded once.
struct Epilogue {
    const float *scale, *shift, *residual;
    float* y;
    const float *lower, *upper;
    std::uint64_t* bits;
    const double *wide_scale = nullptr, *wide_shift = nullptr;
};

}  // namespace htaf
