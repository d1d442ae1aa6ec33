// Addresses of dense tensors; see src/htaf/core/kernels/integer_convolution/cpu.py.
#include <tuple>

#include "bind_packed.hpp"
#include "integers.hpp"
#include "processor.hpp"

using namespace htaf;

void bind_integers(nb::module_& m) {
    // weights: values, planes
    using Weights = std::tuple<std::uintptr_t, std::size_t>;
    m.def("integer_convolution", [](const Shape2d& shape, std::uintptr_t bits, const Weights& weights,
                                    const Finishing& finishing, int threads) {
        nb::gil_scoped_release unlocked;
        auto [values, planes] = weights;
        for_packed(chosen())->integers->forward(convolution(shape), {at<const std::uint32_t>(values), planes},
                                                at<const std::uint8_t>(bits), epilogue(finishing), threads);
    });
}
