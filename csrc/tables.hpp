// Convolution of activations 0 and 1 with real weights, by tables of the sums of subsets. The formulas:
// src/htaf/core/kernels/table_convolution/reference.py.
#pragma once

#include "packed.hpp"

namespace htaf {

enum class TableKind : int { float32 = 0, int16 = 1, int8 = 2, fours = 3 };

// Weights as `prepare` lays them out, taps in the order of memory.
// float32: values are float [outputs, taps, ceil(channels of a group / 32), 32], 0 beyond the channels.
// int16, int8: values are uint16 or uint8 [outputs, taps, sixes, 2, 8], the sums of the subsets of two triples of inputs,
// shifted so that none is negative; sixes start anew every 64 channels. The sum of a layer is unit (sum of entries - bias).
// fours: values are uint8 [outputs, taps, ceil(channels of a group / 16), 4, 16], the sums of the subsets of four integer weights,
// shifted so that none is negative; unit is 1.
// float32 may come with `rough`, the same weights as int16, for layers that leave bits alone: ends [4, outputs] are lower
// and upper ends between which y by int16 is surely inside, then ends beyond which it is surely outside. What is neither
// is summed in float32.
struct Rough {
    const void* values;  // null: none
    const float* unit;
    const std::int32_t* bias;
    const float* ends;
};

struct Tables {
    TableKind kind;
    const void* values;
    const float* unit;
    const std::int32_t* bias;
    Rough rough = {};
    // float32 of a linear layer, again as [blocks of 64 outputs, inputs, 64], 0 beyond the outputs; null: none. Of few rows the
    // weights of the inputs that are 1 are added, which reads no others.
    const float* columns = nullptr;
};

struct TableKernels {
    void (*forward)(Tables, const std::uint64_t* bits, const Convolution&, const Epilogue&, int threads);
    // operations (two a multiply-add) a second of lookups and additions on registers alone; 0 where there is no permutation
    double (*peak)(TableKind);
    bool rough;  // Tables::rough is made use of
    bool fours;  // the processor has instructions for these
};

}  // namespace htaf
