// Convolution of bits, or of sums of planes of bits, where every channel has weights of its own and one output. The
// formulas: src/htaf/kernels/depthwise_convolution/reference.py.
#pragma once

#include "packed.hpp"

namespace htaf {

// `values` [taps, channels filled up to words of 64]: what fills a word up is 0. The inputs are sums of 2^i times the bits of
// plane i: `planes` of them lie side by side in a pixel, each of whole words of 64 bits. Bipolar: bits are -1 and 1, of
// one plane.
struct DepthwiseWeights {
    const float* values;
    std::size_t planes;
    bool bipolar;
};

struct DepthwiseKernels {
    void (*forward)(const Convolution&, const DepthwiseWeights&, const std::uint8_t* bits, const Epilogue&, int threads);
};

}  // namespace htaf
