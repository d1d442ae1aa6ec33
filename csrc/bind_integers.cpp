// Addresses of dense tensors; see src/htaf/core/kernels/integer_convolution/cpu.py.
#include <nanobind/stl/string.h>

#include <string>
#include <tuple>

#include "binary.hpp"
#include "bind_packed.hpp"
#include "integers.hpp"
#include "processor.hpp"
#include "tables.hpp"

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
    m.def("tiles", [] { return for_packed(chosen().load())->integers->tiles; }, "Whether layers may run on tiles.");
    m.def("layers", [] {
        const Kernels* k = for_packed(chosen());
        std::string integers = std::string("the faster of tables ") + (k->tables->fours ? "by vpermb" : "of bytes") +
                               " and products by " + k->integers->by;
        return std::string("AMX: ") + amx() + "; int8 weights: " + integers + "; binary weights: xor and counts by " + k->binary->by;
    }, "Which kernels run layers over bits, in words.");
}
