// Convolution of small integers with integer weights: products of bytes, sums of 32 bits. The formulas:
// src/htaf/core/kernels/integer_convolution/reference.py.
#pragma once

#include "packed.hpp"

namespace htaf {

// `values` [groups, blocks, taps, words, 64, 4] bytes: the outputs of a group in blocks of 64, its channels four a word.
// What fills a block or a word up is 0. The inputs are sums of 2^i times the bits of plane i: `planes` of them, at most 7, lie
// side by side in a pixel, each of whole words of 64 bits. Weights are -127 to 127, so that two products, of at most
// 127 * 127 each, fit 16 bits; no sum of an output reaches 2^24, so that float32 holds it. The caller checks both.
struct IntegerWeights {
    const std::uint32_t* values;
    std::size_t planes;
};

struct IntegerKernels {
    void (*forward)(const Convolution&, const IntegerWeights&, const std::uint8_t* bits, const Epilogue&, int threads);
    const char* by;      // the instruction that multiplies
    bool tiles = false;  // of AMX; then binary weights may come as bytes too, see binary.hpp
};

}  // namespace htaf
