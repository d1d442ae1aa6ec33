// Convolution of small integers with integer weights: products of bytes, sums of 32 bits. The formulas:
// src/htaf/kernels/integer_convolution/reference.py.
#pragma once

#include "packed.hpp"

namespace htaf {

// `values` [groups, blocks, taps, words, 64, 4] bytes: the outputs of a group in blocks of 64, its channels four a word.
// What fills a block or a word up is 0. The inputs are sums of 2^i times the bits of plane i: `planes` of them lie side by
// side in a pixel, each of whole words of 64 bits; the sum of the inputs' largest value times two weights fits 16 bits.
struct IntegerWeights {
    const std::uint32_t* values;
    std::size_t planes;
};

struct IntegerKernels {
    void (*forward)(const Convolution&, const IntegerWeights&, const std::uint8_t* bits, const Epilogue&, int threads);
};

}  // namespace htaf
