// Addresses of dense tensors; see src/htaf/kernels.
#include <nanobind/nanobind.h>
#include <nanobind/stl/tuple.h>

#include <chrono>
#include <cstdint>
#include <tuple>

#include "binary.hpp"
#include "processor.hpp"

namespace nb = nanobind;
using namespace htaf;

namespace {

template <class T>
T* at(std::uintptr_t address) {
    return reinterpret_cast<T*>(address);
}

using Pair = std::tuple<std::size_t, std::size_t>;
// batch, height, width, channels, outputs, kernel, stride, padding, dilation, groups
using Sizes = std::tuple<std::size_t, std::size_t, std::size_t, std::size_t, std::size_t, Pair, Pair, Pair, Pair,
                         std::size_t>;
// scale, shift, residual, y, lower, upper, bits
using Addresses = std::tuple<std::uintptr_t, std::uintptr_t, std::uintptr_t, std::uintptr_t, std::uintptr_t,
                             std::uintptr_t, std::uintptr_t>;

Convolution convolution(const Sizes& sizes) {
    auto [batch, height, width, channels, outputs, kernel, stride, padding, dilation, groups] = sizes;
    Convolution c{batch, height, width, channels, outputs, {}, {}, {}, {}, groups};
    const Pair* pairs[] = {&kernel, &stride, &padding, &dilation};
    std::size_t* to[] = {c.kernel, c.stride, c.padding, c.dilation};
    for (int i = 0; i < 4; ++i) std::tie(to[i][0], to[i][1]) = *pairs[i];
    return c;
}

}  // namespace

void bind_binary(nb::module_& m) {
    m.def("binary_convolution", [](const Sizes& sizes, std::uintptr_t bits, std::uintptr_t signs, std::uintptr_t ones,
                                   bool bipolar, const Addresses& addresses, int threads) {
        nb::gil_scoped_release unlocked;
        auto [scale, shift, residual, y, lower, upper, outputs] = addresses;
        Epilogue epilogue{at<const float>(scale), at<const float>(shift), at<const float>(residual), at<float>(y),
                          at<const float>(lower), at<const float>(upper), at<std::uint64_t>(outputs)};
        for_packed(chosen())->binary->forward(convolution(sizes),
                                              {at<const std::uint32_t>(signs), at<const std::int32_t>(ones), bipolar},
                                              at<const std::uint8_t>(bits), epilogue, threads);
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
