// Maps between floats and bits of images, and of bits. The formulas: src/htaf/core/kernels/packed_maps/reference.py.
#pragma once

#include "packed.hpp"

namespace htaf {

// Exact neurons: with z = scale x + shift, h = leak v + gain z, a spike where h >= threshold; then v = h - threshold spike
// (soft) or (1 - spike) h. scale and shift as in an Epilogue.
struct SpikingNeuron {
    const float *scale, *shift;
    float leak, gain, threshold;
    bool soft;
};

// y = unit (sum of weights count / n + bias), n = steps pixels, exact but for one rounding: weights are [channels, outputs filled
// up to 8], of at most 2^16.
struct LinearOfMeans {
    const std::int32_t* weights;
    const std::int64_t* bias;
    double unit;
    std::size_t channels, outputs;
};

struct MapKernels {
    // sums [pixels, channels] -> y and bits
    void (*finish)(const float* sums, std::size_t pixels, std::size_t channels, const Epilogue&, int threads);
    // values [pixels, channels] of `below` and 1
    void (*unpack)(const std::uint64_t* bits, float* values, std::size_t pixels, std::size_t channels, float below,
                   int threads);
    // the or of every window, the and in channels whose bit in `smallest` is set (null: none): bits and found as images of
    // `shape`, which has one group and as many outputs as channels
    void (*max_pool)(const std::uint64_t* bits, std::uint64_t* found, const Convolution& shape, const std::uint64_t* smallest,
                     int threads);
    // x [steps, pixels, channels] -> bits [steps, pixels, words]; `stride` floats from one step of x to the next
    void (*spikes)(const float* x, std::size_t stride, std::uint64_t* bits, std::size_t steps, std::size_t pixels,
                   std::size_t channels, const SpikingNeuron&, int threads);
    // y [images, outputs]: bits [steps, images, pixels, words] -> counts of each channel -> `linear`
    void (*means)(const std::uint64_t* bits, float* y, std::size_t steps, std::size_t images, std::size_t pixels,
                  const LinearOfMeans& linear, int threads);
};

}  // namespace htaf
