// Convolution of bits with binary weights: xor and popcount. The formulas: src/htaf/kernels/binary_convolution/reference.py.
#pragma once

#include "packed.hpp"

namespace htaf {

struct BinaryKernels {
    int unused;
};

}  // namespace htaf
