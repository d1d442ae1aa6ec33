// Addresses of dense tensors; see src/htaf/core/kernels.
#include <chrono>
#include <cstdint>
#include <tuple>

#include "binary.hpp"
#include "bind_packed.hpp"
#include "processor.hpp"

using namespace htaf;

void bind_binary(nb::module_& m) {
    // weights: signs, ones, bipolar; the same as bytes, or 0
    using Weights = std::tuple<std::uintptr_t, std::uintptr_t, bool, std::uintptr_t>;
    m.def("binary_convolution", [](const Shape2d& shape, std::uintptr_t bits, const Weights& weights,
                                   const Finishing& finishing, int threads) {
        nb::gil_scoped_release unlocked;
        auto [signs, ones, bipolar, values] = weights;
        BinaryWeights w = {at<const std::uint32_t>(signs), at<const std::int32_t>(ones), bipolar, at<const std::uint32_t>(values)};
        for_packed(chosen())->binary->forward(convolution(shape), w, at<const std::uint8_t>(bits), epilogue(finishing), threads);
    });
    m.def(
        "popcount_peak",
        [](std::size_t steps, bool counts_alone) {
            nb::gil_scoped_release unlocked;
            const BinaryKernels* kernels = for_packed(chosen())->binary;
            auto start = std::chrono::steady_clock::now();
            double bits = static_cast<double>(kernels->spin(steps, counts_alone));
            return 2 * bits / std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        },
        nb::arg("steps"), nb::arg("counts_alone") = false,
        "Operations a second of xor, popcount and add on registers, two (a product and a sum) for every bit: what no "
        "convolution can exceed. `counts_alone`: of popcount without the others.");
}
