// Addresses of dense tensors; see src/htaf/core/kernels/table_convolution/cpu.py.
#include "bind_packed.hpp"
#include "processor.hpp"
#include "tables.hpp"

using namespace htaf;

void bind_tables(nb::module_& m) {
    // weights: kind, values, unit, bias; values, unit, bias and ends of `rough`, columns; 0 for none
    using Address = std::uintptr_t;
    using Weights = std::tuple<int, Address, Address, Address, Address, Address, Address, Address, Address>;
    m.def("table_forward", [](const Shape2d& shape, std::uintptr_t bits, const Weights& weights, const Finishing& finishing,
                              int threads) {
        nb::gil_scoped_release unlocked;
        auto [kind, values, unit, bias, rough_values, rough_unit, rough_bias, ends, columns] = weights;
        Rough rough = {at<const void>(rough_values), at<const float>(rough_unit), at<const std::int32_t>(rough_bias),
                       at<const float>(ends)};
        Tables tables = {TableKind(kind), at<const void>(values), at<const float>(unit), at<const std::int32_t>(bias), rough,
                         at<const float>(columns)};
        for_packed(chosen())->tables->forward(tables, at<const std::uint64_t>(bits), convolution(shape), epilogue(finishing),
                                              threads);
    });
    m.def("tables_take_rough", [] { return for_packed(chosen().load())->tables->rough; });
    m.def("tables_take_fours", [] { return for_packed(chosen().load())->tables->fours; });
    m.def("permute_peak", [](int kind) {
        nb::gil_scoped_release unlocked;
        return for_packed(chosen().load())->tables->peak(TableKind(kind));
    });
}
