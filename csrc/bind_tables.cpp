// Addresses of dense tensors; see src/htaf/kernels/table_convolution/cpu.py.
#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>

#include <array>

#include "processor.hpp"
#include "tables.hpp"

namespace nb = nanobind;
using namespace htaf;

namespace {

template <class T>
T* at(std::uintptr_t address) {
    return reinterpret_cast<T*>(address);
}

}  // namespace

void bind_tables(nb::module_& m) {
    // weights: kind, values, unit, bias; shape: batch, height, width, channels, outputs, kernel, stride, padding and dilation
    // (two each), groups; epilogue: scale, shift, residual, y, lower, upper, bits
    m.def("table_forward", [](std::uintptr_t bits, std::array<std::uintptr_t, 4> weights, std::array<std::size_t, 14> s,
                              std::array<std::uintptr_t, 7> e, int threads) {
        nb::gil_scoped_release unlocked;
        Convolution c = {s[0], s[1], s[2], s[3], s[4], {s[5], s[6]}, {s[7], s[8]}, {s[9], s[10]}, {s[11], s[12]}, s[13]};
        Tables tables = {TableKind(weights[0]), at<const void>(weights[1]), at<const float>(weights[2]),
                         at<const std::int32_t>(weights[3])};
        Epilogue epilogue = {at<const float>(e[0]), at<const float>(e[1]), at<const float>(e[2]), at<float>(e[3]),
                             at<const float>(e[4]), at<const float>(e[5]), at<std::uint64_t>(e[6])};
        for_packed(chosen().load())->tables->forward(tables, at<const std::uint64_t>(bits), c, epilogue, threads);
    });
    m.def("permute_peak", [](int kind) {
        nb::gil_scoped_release unlocked;
        return for_packed(chosen().load())->tables->peak(TableKind(kind));
    });
}
