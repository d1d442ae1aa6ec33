// Convolution of bits with binary weights: xor and popcount. The formulas: src/htaf/core/kernels/binary_convolution/reference.py.
#pragma once

#include "packed.hpp"

namespace htaf {

// `signs` [groups, blocks, taps, words, 64]: the outputs of a group in blocks of 64, the channels of a group in words of
// 32; `ones` [taps, groups, blocks, 64]: how many of a tap's signs are 1. What fills a block or a word up is 0.
struct BinaryWeights {
    const std::uint32_t* signs;
    const std::int32_t* ones;
    bool bipolar;  // the activations are -1 and 1 instead of 0 and 1
    // The same as bytes -1 and 1, which lie as those of IntegerWeights, for kernels with tiles; null: xor and popcount.
    const std::uint32_t* values = nullptr;
};

struct BinaryKernels {
    void (*forward)(const Convolution&, const BinaryWeights&, const std::uint8_t* bits, const Epilogue&, int threads);
    // The forward pass's xor, count and add (or counts alone) on registers, `steps` times; returns how many bits it took.
    std::uint64_t (*spin)(std::size_t steps, bool counts_alone);
    const char* by;  // the instruction that counts
};

}  // namespace htaf
