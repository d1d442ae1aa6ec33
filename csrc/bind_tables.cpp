// Addresses of dense tensors; see src/htaf/kernels/table_convolution/cpu.py.
#include "bind_packed.hpp"
#include "processor.hpp"
#include "tables.hpp"

using namespace htaf;

void bind_tables(nb::module_& m) {
    // weights: kind, values, unit, bias
    using Weights = std::tuple<int, std::uintptr_t, std::uintptr_t, std::uintptr_t>;
    m.def("table_forward", [](const Shape2d& shape, std::uintptr_t bits, const Weights& weights, const Finishing& finishing,
                              int threads) {
        nb::gil_scoped_release unlocked;
        auto [kind, values, unit, bias] = weights;
        Tables tables = {TableKind(kind), at<const void>(values), at<const float>(unit), at<const std::int32_t>(bias)};
        for_packed(chosen())->tables->forward(tables, at<const std::uint64_t>(bits), convolution(shape), epilogue(finishing),
                                              threads);
    });
    m.def("permute_peak", [](int kind) {
        nb::gil_scoped_release unlocked;
        return for_packed(chosen().load())->tables->peak(TableKind(kind));
    });
}
