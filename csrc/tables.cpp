// Compiled once per instruction set.
#include "tables.hpp"

#include "epilogue.hpp"
#include "parallel.hpp"

namespace htaf::HTAF_NAMESPACE {
extern const TableKernels tables;
const TableKernels tables = {0};
}  // namespace htaf::HTAF_NAMESPACE
