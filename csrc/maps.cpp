// Compiled once per instruction set.
#include "maps.hpp"

#include "epilogue.hpp"
#include "parallel.hpp"

namespace htaf::HTAF_NAMESPACE {
extern const MapKernels maps;
const MapKernels maps = {0};
}  // namespace htaf::HTAF_NAMESPACE
