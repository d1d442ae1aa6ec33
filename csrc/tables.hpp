// Convolution of activations 0 and 1 with real weights, by tables of the sums of subsets. The formulas:
// src/htaf/kernels/table_convolution/reference.py.
#pragma once

#include "packed.hpp"

namespace htaf {

struct TableKernels {
    int unused;
};

}  // namespace htaf
