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

// Weights as integers: values [blocks of 64 outputs, kernel height, pairs, 64, 2], the inputs of a row of taps in pairs; a
// weight is unit [outputs filled up to blocks] times its integer. Inputs become integers of at most `most_rounded`, in units of
// the largest |x| of their image / most_rounded, or of `least_unit` where that is more; NaN or inf in an image makes all its sums
// NaN. The caller checks that `most_rounded` times the sum of an output's |integers| fits in 32 bits.
constexpr int most_rounded = 8191;
constexpr float least_unit = 0x1p-126f;  // whose inverse is finite
struct RoundedWeights {
    const std::int16_t* values;
    const float* unit;
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
