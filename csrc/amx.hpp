// Layers of small integer and of binary weights on tiles, AMX's registers of 16 rows of 64 bytes.
#pragma once

#include "binary.hpp"
#include "integers.hpp"

namespace htaf {

struct TiledKernels {
    BinaryKernels binary;
    IntegerKernels integers;
};

namespace for_amx {
extern const TiledKernels amx[2];  // on the processor's tiles; on tiles in memory, so that all else is tested anywhere
}

}  // namespace htaf
