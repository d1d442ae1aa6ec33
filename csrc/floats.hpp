// Layers over floats that stand between those over bits: convolutions of few inputs, means of windows. Reference: PyTorch.
#pragma once

#include "packed.hpp"

namespace htaf {

// Images of any layout: floats from one image, row, pixel and channel to the next.
struct FloatImages {
    const float* first;
    std::size_t image, row, pixel, channel;
};

// A maximum over windows of the sums, before the epilogue; height 0: none. Places outside never count.
struct MaxWindow {
    std::size_t kernel[2], stride[2], padding[2];
    std::size_t extent(std::size_t size, int i) const { return (size + 2 * padding[i] - kernel[i]) / stride[i] + 1; }
};

// Inputs become integers round(x steps), half to even, clipped to +-most, of 16 bits. Weights are integers of as many, values
// [blocks of 64 outputs, kernel height, pairs, 64, 2], the inputs of a row of taps in pairs; a sum is unit [outputs filled up to
// blocks] times that of the integers, which the caller keeps within 2^24, so that float32 holds it. NaN in an image makes all its
// sums NaN.
struct RoundedWeights {
    const std::int16_t* values;
    const float* unit;
    float steps, most;
};

struct FloatKernels {
    // `weights` [blocks of 64 outputs, kernel height, kernel width, channels, 64], 0 for outputs that are not there; one
    // group. A sum is taken in the order of the weights. Pixels of y and bits are those after the window.
    void (*convolution)(const Convolution&, const FloatImages&, const float* weights, const MaxWindow&, const Epilogue&,
                        int threads);
    // the same in integers of 16 bits; taps of a row lie side by side
    void (*rounded)(const Convolution&, const FloatImages&, const RoundedWeights&, const MaxWindow&, const Epilogue&,
                    int threads);
    // means over the windows of `shape`, which has as many outputs as channels and no padding; dense images
    void (*average)(const float* x, float* y, const Convolution& shape, int threads);
    // y = x after x is taken as the maximum over windows: dense images
    void (*maximum)(const float* x, const Convolution& shape, const Epilogue&, int threads);
};

}  // namespace htaf
