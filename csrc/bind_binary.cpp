// Addresses of dense tensors; see src/htaf/kernels.
#include <nanobind/nanobind.h>

#include "binary.hpp"
#include "processor.hpp"

namespace nb = nanobind;
using namespace htaf;

void bind_binary(nb::module_&) {}
