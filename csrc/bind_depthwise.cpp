// Addresses of dense tensors; see src/htaf/kernels/depthwise_convolution/cpu.py.
#include <tuple>

#include "bind_packed.hpp"
#include "depthwise.hpp"
#include "processor.hpp"

using namespace htaf;

void bind_depthwise(nb::module_& m) {
    // weights: values, planes, bipolar
    using Weights = std::tuple<std::uintptr_t, std::size_t, bool>;
    m.def("depthwise_convolution", [](const Shape2d& shape, std::uintptr_t bits, const Weights& weights,
                                      const Finishing& finishing, int threads) {
        nb::gil_scoped_release unlocked;
        auto [values, planes, bipolar] = weights;
        for_packed(chosen())->depthwise->forward(convolution(shape), {at<const float>(values), planes, bipolar},
                                                 at<const std::uint8_t>(bits), epilogue(finishing), threads);
    });
}
