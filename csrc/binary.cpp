// Compiled once per instruction set.
#include "binary.hpp"

#include "epilogue.hpp"
#include "parallel.hpp"

namespace htaf::HTAF_NAMESPACE {
extern const BinaryKernels binary;
const BinaryKernels binary = {0};
}  // namespace htaf::HTAF_NAMESPACE
