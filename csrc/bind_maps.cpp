// Addresses of dense tensors; see src/htaf/kernels.
#include <nanobind/nanobind.h>

#include "maps.hpp"
#include "processor.hpp"

namespace nb = nanobind;
using namespace htaf;

void bind_maps(nb::module_&) {}
