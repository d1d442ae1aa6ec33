// The module htaf.kernels._native: addresses and sizes in, nothing of PyTorch linked. htaf/core/kernels/native.py checks what
// it passes.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "bind_packed.hpp"
#include "kernels.hpp"
#include "logic.hpp"
#include "processor.hpp"

using namespace htaf;

namespace {

// Rows of a [parameters, channels] matrix of doubles.
template <class T>
struct Rows {
    T* values[2];
    Rows(T* first, std::size_t channels) : values{first, first + channels} {}
};

}  // namespace

void bind_binary(nb::module_&);
void bind_tables(nb::module_&);
void bind_integers(nb::module_&);
void bind_maps(nb::module_&);
void bind_floats(nb::module_&);
void bind_plan(nb::module_&);

NB_MODULE(_native, m) {
    m.doc() = "Kernels on the CPU. Addresses of dense tensors in memory order; see htaf/core/kernels/native.py.";
    // Modules of PyTorch outlive the interpreter with what they hold, such as the data set of a worker process and its
    // packed model: that is said to leak, though the process ends. That plans go while it runs is tested.
    nb::set_leak_warnings(false);

    m.def("instruction_sets", [] {
        std::vector<std::string> names;
        for (const Kernels* k : available()) names.emplace_back(k->name);
        return names;
    });
    m.def("instruction_set", [] { return std::string(chosen().load()->name); });
    m.def("use_instruction_set", [](const std::string& name) {
        for (const Kernels* k : available())
            if (k->name == name) {
                chosen() = k;
                return;
            }
        throw std::invalid_argument("this processor cannot run the instruction set " + name);
    });

    m.def("forward", [](int kind, int type, std::uintptr_t x, std::uintptr_t y, std::size_t n, double p0, double p1,
                        float scale, float shift, int threads) {
        nb::gil_scoped_release unlocked;
        const double* p[] = {&p0, &p1};
        chosen().load()->smooth->forward(Smooth(kind), Type(type), at(x), at(y), {1, 1, n}, p, scale, shift, threads);
    });
    m.def("backward", [](int kind, int type, std::uintptr_t g, std::uintptr_t x, std::uintptr_t gx, std::size_t n,
                         double p0, double p1, float scale, int threads) {
        nb::gil_scoped_release unlocked;
        const double* p[] = {&p0, &p1};
        chosen().load()->smooth->backward(Smooth(kind), Type(type), at(g), at(x), at(gx), {1, 1, n}, p, scale, nullptr, threads);
    });
    m.def("forward_channels", [](int kind, int type, std::uintptr_t x, std::uintptr_t y, std::size_t outer,
                                 std::size_t channels, std::size_t inner, std::uintptr_t parameters, float scale,
                                 float shift, int threads) {
        nb::gil_scoped_release unlocked;
        Rows p(at<const double>(parameters), channels);
        chosen().load()->smooth->forward(Smooth(kind), Type(type), at(x), at(y), {outer, channels, inner}, p.values, scale, shift,
                        threads);
    });
    m.def("backward_channels", [](int kind, int type, std::uintptr_t g, std::uintptr_t x, std::uintptr_t gx,
                                  std::size_t outer, std::size_t channels, std::size_t inner,
                                  std::uintptr_t parameters, std::uintptr_t sums, float scale, int threads) {
        nb::gil_scoped_release unlocked;
        Rows p(at<const double>(parameters), channels);
        Rows s(at<double>(sums), channels);
        chosen().load()->smooth->backward(Smooth(kind), Type(type), at(g), at(x), at(gx), {outer, channels, inner}, p.values, scale,
                         sums ? s.values : nullptr, threads);
    });
    m.def("forward_levels", [](int kind, int type, std::uintptr_t x, std::uintptr_t y, std::size_t n, double p0, double p1,
                               const std::vector<float>& thresholds, float scale, float shift, int threads) {
        nb::gil_scoped_release unlocked;
        const double* p[] = {&p0, &p1};
        chosen().load()->smooth->forward_levels(Smooth(kind), Type(type), at(x), at(y), n, p, thresholds.data(),
                                                static_cast<int>(thresholds.size()), scale, shift, threads);
    });
    m.def("backward_levels", [](int kind, int type, std::uintptr_t g, std::uintptr_t x, std::uintptr_t gx, std::size_t n,
                                double p0, double p1, const std::vector<float>& thresholds, float scale, int threads) {
        nb::gil_scoped_release unlocked;
        const double* p[] = {&p0, &p1};
        chosen().load()->smooth->backward_levels(Smooth(kind), Type(type), at(g), at(x), at(gx), n, p, thresholds.data(),
                                                 static_cast<int>(thresholds.size()), scale, threads);
    });
    m.def("step_levels", [](int type, std::uintptr_t x, std::uintptr_t y, std::size_t n,
                            const std::vector<float>& thresholds, float scale, float shift, int threads) {
        nb::gil_scoped_release unlocked;
        chosen().load()->smooth->step_levels(Type(type), at(x), at(y), n, thresholds.data(),
                                             static_cast<int>(thresholds.size()), scale, shift, threads);
    });
    m.def("slope", [](int kind, int type, std::uintptr_t g, std::uintptr_t x, std::uintptr_t gx, std::size_t n,
                      float parameter, float scale, int threads) {
        nb::gil_scoped_release unlocked;
        chosen().load()->smooth->slope(Slope(kind), Type(type), at(g), at(x), at(gx), n, parameter, scale, threads);
    });
    m.def("heaviside", [](int type, std::uintptr_t x, std::uintptr_t y, std::size_t n, float below, int threads) {
        nb::gil_scoped_release unlocked;
        chosen().load()->heaviside(Type(type), at(x), at(y), n, below, threads);
    });
    m.def("lookup", [](std::uintptr_t x, std::uintptr_t entries, std::uintptr_t y, std::size_t rows, std::size_t tables,
                       int inputs, int threads) {
        nb::gil_scoped_release unlocked;
        lookup(at<const float>(x), at<const float>(entries), at<float>(y), rows, tables, inputs, threads);
    });
    // type; columns, chunks, tables, groups, size of one; first, thresholds, inputs, entries, places
    using Circuits = std::tuple<int, std::size_t, std::size_t, std::size_t, std::size_t, std::size_t, std::uintptr_t,
                                std::uintptr_t, std::uintptr_t, std::uintptr_t, std::uintptr_t>;
    m.def("circuit", [](const Circuits& c, std::uintptr_t x, std::uintptr_t counts, std::uintptr_t best, std::size_t rows,
                        int threads) {
        nb::gil_scoped_release unlocked;
        auto [type, columns, chunks, tables, groups, size, first, thresholds, inputs, entries, places] = c;
        Circuit made{Column(type), columns, chunks, tables, groups, size, at<const std::int32_t>(first),
                     at(thresholds), at<const std::int32_t>(inputs), at<const std::uint64_t>(entries),
                     at<const std::int32_t>(places)};
        for_packed(chosen())->logic->run(made, at(x), at<std::int64_t>(counts), at<std::int64_t>(best), rows, threads);
    });
    m.def("lookup_backward", [](std::uintptr_t g, std::uintptr_t x, std::uintptr_t entries, std::uintptr_t gx,
                                std::uintptr_t ge, std::size_t rows, std::size_t tables, int inputs, int threads) {
        nb::gil_scoped_release unlocked;
        lookup_backward(at<const float>(g), at<const float>(x), at<const float>(entries), at<float>(gx), at<float>(ge),
                        rows, tables, inputs, threads);
    });
    m.def("pack", [](int type, std::uintptr_t x, std::uintptr_t bits, std::size_t rows, std::size_t columns,
                     int threads) {
        nb::gil_scoped_release unlocked;
        return chosen().load()->pack(Type(type), at(x), at<std::uint8_t>(bits), rows, columns, threads);
    });
    m.def("transpose", [](std::uintptr_t bits, std::uintptr_t turned, std::size_t rows, std::size_t columns, int threads) {
        nb::gil_scoped_release unlocked;
        chosen().load()->transpose(at<const std::uint8_t>(bits), at<std::uint8_t>(turned), rows, columns, threads);
    });
    m.def("count_common", [](std::uintptr_t a, std::uintptr_t b, std::uintptr_t counts, std::size_t m, std::size_t n,
                             std::size_t bytes, int threads) {
        nb::gil_scoped_release unlocked;
        chosen().load()->count_common(at<const std::uint8_t>(a), at<const std::uint8_t>(b), at<std::int64_t>(counts), m, n,
                                    bytes, threads);
    });
    // neuron: (fire, p0, p1, scale, leak, gain, threshold, soft, exact_reset, attached)
    using Description = std::tuple<int, double, double, float, float, float, float, bool, bool, bool>;
    static const auto neuron = [](const Description& d) {
        auto [fire, p0, p1, scale, leak, gain, threshold, soft, exact_reset, attached] = d;
        return Neuron{Fire(fire), {p0, p1}, scale, leak, gain, threshold, soft, exact_reset, attached};
    };
    m.def("neuron_forward", [](const Description& k, int type, std::uintptr_t x, std::size_t stride, std::uintptr_t v0,
                               std::uintptr_t s, std::uintptr_t v, std::size_t steps, std::size_t n, int threads) {
        nb::gil_scoped_release unlocked;
        chosen().load()->neurons->forward(neuron(k), Type(type), at(x), stride, at<const float>(v0), at(s), at<float>(v),
                                      steps, n, threads);
    });
    m.def("neuron_backward", [](const Description& k, int type, std::uintptr_t gs, std::uintptr_t gv, std::uintptr_t x,
                                std::size_t stride, std::uintptr_t v0, std::uintptr_t gx, std::uintptr_t gv0,
                                std::size_t steps, std::size_t n, int threads) {
        nb::gil_scoped_release unlocked;
        chosen().load()->neurons->backward(neuron(k), Type(type), at(gs), at<const float>(gv), at(x), stride,
                                       at<const float>(v0), at(gx), at<float>(gv0), steps, n, threads);
    });

    bind_binary(m);
    bind_tables(m);
    bind_integers(m);
    bind_maps(m);
    bind_floats(m);
    bind_plan(m);
}
