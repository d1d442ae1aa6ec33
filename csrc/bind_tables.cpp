// Addresses of dense tensors; see src/htaf/kernels.
#include <nanobind/nanobind.h>

#include "tables.hpp"
#include "processor.hpp"

namespace nb = nanobind;
using namespace htaf;

void bind_tables(nb::module_&) {}
