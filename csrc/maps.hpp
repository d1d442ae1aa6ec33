// Maps between floats and bits of images, and of bits. The formulas: src/htaf/kernels/packed_maps/reference.py.
#pragma once

#include "packed.hpp"

namespace htaf {

struct MapKernels {
    int unused;
};

}  // namespace htaf
