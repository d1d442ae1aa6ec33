// Addresses of dense tensors; see src/htaf/kernels/gated_mlp/cpu.py.
#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>

#include <array>

#include "bind_packed.hpp"
#include "gated.hpp"
#include "processor.hpp"

using namespace htaf;

void bind_gated(nb::module_& m) {
    // weights: gate, up, down, threshold, and rounded, step, rest, norm or zeros; sizes: inputs, neurons, outputs
    m.def("gated_mlp", [](int type, const std::array<std::uintptr_t, 8>& weights, const std::array<std::size_t, 3>& sizes,
                          std::uintptr_t x, std::uintptr_t y, std::uintptr_t open, std::size_t tokens, bool dense,
                          int threads) {
        nb::gil_scoped_release unlocked;
        GatedMLP mlp{static_cast<Type>(type), at<const void>(weights[0]), at<const void>(weights[1]),
                     at<const void>(weights[2]), at<const float>(weights[3]), sizes[0], sizes[1], sizes[2],
                     at<const std::int8_t>(weights[4]), at<const float>(weights[5]), at<const float>(weights[6]),
                     at<const float>(weights[7]), GateActivation::step};
        chosen().load()->gated->run(mlp, at<const float>(x), at<float>(y), at<std::uint8_t>(open), tokens, dense, threads);
    });
}
