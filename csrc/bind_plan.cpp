// A list of kernel calls whose sizes, weights and places in memory are known, run as one call from Python. Made by
// src/htaf/program/packed/planning.py, which answers for the addresses.
#include <nanobind/stl/vector.h>

#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "binary.hpp"
#include "bind_packed.hpp"
#include "integers.hpp"
#include "maps.hpp"
#include "parallel.hpp"
#include "processor.hpp"
#include "tables.hpp"
#include "team.hpp"

using namespace htaf;

namespace {

// (0, .): none; (1, byte): in the scratch memory; (k + 2, byte): in tensor k of the call
using Place = std::tuple<int, std::size_t>;

struct Memory {
    const std::vector<std::uintptr_t>& tensors;
    std::uintptr_t scratch;

    template <class T>
    T* at(const Place& place) const {
        auto [which, byte] = place;
        if (which == 0) return nullptr;
        return reinterpret_cast<T*>((which == 1 ? scratch : tensors[static_cast<std::size_t>(which) - 2]) + byte);
    }
};

// scale, shift, lower, upper, wide scale and shift: addresses; residual, y, bits
using Constants = std::tuple<std::uintptr_t, std::uintptr_t, std::uintptr_t, std::uintptr_t, std::uintptr_t, std::uintptr_t>;
using Ends = std::tuple<Constants, Place, Place, Place>;

Epilogue epilogue_at(const Ends& e, const Memory& m) {
    auto& [constants, residual, y, bits] = e;
    auto [scale, shift, lower, upper, wide_scale, wide_shift] = constants;
    return {htaf::at<const float>(scale), htaf::at<const float>(shift), m.at<const float>(residual), m.at<float>(y),
            htaf::at<const float>(lower), htaf::at<const float>(upper), m.at<std::uint64_t>(bits),
            htaf::at<const double>(wide_scale), htaf::at<const double>(wide_shift)};
}

class Plan {
   public:
    using Address = std::uintptr_t;

    void binary(const Shape2d& shape, Place bits, const std::tuple<Address, Address, bool, Address>& weights, const Ends& e) {
        auto [signs, ones, bipolar, values] = weights;
        BinaryWeights w = {htaf::at<const std::uint32_t>(signs), htaf::at<const std::int32_t>(ones), bipolar,
                           htaf::at<const std::uint32_t>(values)};
        add({bits}, e, [c = convolution(shape), w, bits, e](const Kernels& k, const Memory& m, int threads) {
            k.binary->forward(c, w, m.at<const std::uint8_t>(bits), epilogue_at(e, m), threads);
        });
    }
    void table(const Shape2d& shape, Place bits,
               const std::tuple<int, Address, Address, Address, Address, Address, Address, Address, Address>& weights, const Ends& e) {
        auto [kind, values, unit, bias, rough_values, rough_unit, rough_bias, ends, columns] = weights;
        Rough rough = {htaf::at<const void>(rough_values), htaf::at<const float>(rough_unit),
                       htaf::at<const std::int32_t>(rough_bias), htaf::at<const float>(ends)};
        Tables t = {TableKind(kind), htaf::at<const void>(values), htaf::at<const float>(unit),
                    htaf::at<const std::int32_t>(bias), rough,
                    htaf::at<const float>(columns)};
        add({bits}, e, [c = convolution(shape), t, bits, e](const Kernels& k, const Memory& m, int threads) {
            k.tables->forward(t, m.at<const std::uint64_t>(bits), c, epilogue_at(e, m), threads);
        });
    }
    void integer(const Shape2d& shape, Place bits, const std::tuple<Address, std::size_t>& weights, const Ends& e) {
        auto [values, planes] = weights;
        IntegerWeights w = {htaf::at<const std::uint32_t>(values), planes};
        add({bits}, e, [c = convolution(shape), w, bits, e](const Kernels& k, const Memory& m, int threads) {
            k.integers->forward(c, w, m.at<const std::uint8_t>(bits), epilogue_at(e, m), threads);
        });
    }
    void floats(const Shape2d& shape, Place x, const Strides& strides, Address weights, const Window& w, const Ends& e) {
        Convolution c = one_group(shape);
        add({x}, e, [c, x, strides, weights, w = window(w, c), e](const Kernels& k, const Memory& m, int threads) {
            FloatImages images = float_images(reinterpret_cast<Address>(m.at<const float>(x)), strides);
            k.floats->convolution(c, images, htaf::at<const float>(weights), w, epilogue_at(e, m), threads);
        });
    }
    void rounded(const Shape2d& shape, Place x, const Strides& strides, const Rounded& weights, const Window& w, const Ends& e) {
        Convolution c = one_group(shape);
        add({x}, e, [c, x, strides, r = rounded_weights(weights), w = window(w, c), e](const Kernels& k, const Memory& m, int threads) {
            FloatImages images = float_images(reinterpret_cast<Address>(m.at<const float>(x)), strides);
            k.floats->rounded(c, images, r, w, epilogue_at(e, m), threads);
        });
    }
    void finish(Place sums, std::size_t pixels, std::size_t channels, const Ends& e) {
        add({sums}, e, [=](const Kernels& k, const Memory& m, int threads) {
            k.maps->finish(m.at<const float>(sums), pixels, channels, epilogue_at(e, m), threads);
        });
    }
    void unpack(Place bits, Place y, std::size_t pixels, std::size_t channels, float below) {
        add({bits, y}, {}, [=](const Kernels& k, const Memory& m, int threads) {
            k.maps->unpack(m.at<const std::uint64_t>(bits), m.at<float>(y), pixels, channels, below, threads);
        });
    }
    void max_bits(const Shape2d& shape, Place bits, Place found, Address smallest) {
        add({bits, found}, {}, [c = convolution(shape), bits, found, smallest](const Kernels& k, const Memory& m, int threads) {
            const std::uint64_t* least = htaf::at<const std::uint64_t>(smallest);
            k.maps->max_pool(m.at<const std::uint64_t>(bits), m.at<std::uint64_t>(found), c, least, threads);
        });
    }
    void means(Place bits, Place y, const Counted& sizes, const Means& means) {
        auto [steps, images, pixels] = sizes;
        add({bits, y}, {}, [=, linear = linear_of_means(means)](const Kernels& k, const Memory& m, int threads) {
            k.maps->means(m.at<const std::uint64_t>(bits), m.at<float>(y), steps, images, pixels, linear, threads);
        });
    }
    void spikes(Place x, std::size_t stride, Place bits, std::size_t steps, std::size_t pixels, std::size_t channels,
                const std::tuple<float, float, float, bool>& d) {
        auto [leak, gain, threshold, soft] = d;
        SpikingNeuron neuron = {nullptr, nullptr, leak, gain, threshold, soft};
        add({x, bits}, {}, [=](const Kernels& k, const Memory& m, int threads) {
            k.maps->spikes(m.at<const float>(x), stride, m.at<std::uint64_t>(bits), steps, pixels, channels, neuron,
                           threads);
        });
    }
    void average(const Shape2d& shape, Place x, Place y) {
        add({x, y}, {}, [c = convolution(shape), x, y](const Kernels& k, const Memory& m, int threads) {
            k.floats->average(m.at<const float>(x), m.at<float>(y), c, threads);
        });
    }
    void maximum(const Shape2d& shape, Place x, const Ends& e) {
        add({x}, e, [c = convolution(shape), x, e](const Kernels& k, const Memory& m, int threads) {
            k.floats->maximum(m.at<const float>(x), c, epilogue_at(e, m), threads);
        });
    }
    // to = a op b, of so many words; op: 0 and, 1 or, 2 xor
    void bitwise(int op, Place a, Place b, Place to, std::size_t words) {
        add({a, b, to}, {}, [=](const Kernels&, const Memory& m, int) {
            const std::uint64_t *left = m.at<const std::uint64_t>(a), *right = m.at<const std::uint64_t>(b);
            std::uint64_t* found = m.at<std::uint64_t>(to);
            if (op == 0) for (std::size_t i = 0; i < words; ++i) found[i] = left[i] & right[i];
            else if (op == 1) for (std::size_t i = 0; i < words; ++i) found[i] = left[i] | right[i];
            else for (std::size_t i = 0; i < words; ++i) found[i] = left[i] ^ right[i];
        });
    }
    // rows of `to` are those of the parts, so many words each, side by side
    void join(const std::vector<std::tuple<Place, std::size_t>>& parts, Place to, std::size_t rows) {
        std::size_t wide = 0;
        for (auto& [place, words] : parts) {
            check(place);
            wide += words;
        }
        add({to}, {}, [=](const Kernels&, const Memory& m, int) {
            std::uint64_t* found = m.at<std::uint64_t>(to);
            for (auto& [place, words] : parts) {
                const std::uint64_t* from = m.at<const std::uint64_t>(place);
                for (std::size_t i = 0; i < rows; ++i)
                    for (std::size_t w = 0; w < words; ++w) found[i * wide + w] = from[i * words + w];
                found += words;
            }
        });
    }
    void sum(Place a, Place b, Place to, std::size_t n) {
        add({a, b, to}, {}, [=](const Kernels&, const Memory& m, int) {
            const float *left = m.at<const float>(a), *right = m.at<const float>(b);
            float* found = m.at<float>(to);
            for (std::size_t i = 0; i < n; ++i) found[i] = left[i] + right[i];
        });
    }

    void run(const std::vector<Address>& tensors, Address scratch, int threads) const {
        nb::gil_scoped_release unlocked;
        if (tensors.size() < needed_) {
            std::string got = std::to_string(tensors.size());
            throw std::invalid_argument("expected " + std::to_string(needed_) + " tensors of the plan, got " + got);
        }
        const Kernels& kernels = *for_packed(chosen());
        Memory memory = {tensors, scratch};
        together(steps_.size() > 1 ? threads : 1, [&] {
            for (const auto& step : steps_) step(kernels, memory, threads);
        });
    }

   private:
    using Step = std::function<void(const Kernels&, const Memory&, int threads)>;

    void check(const Place& place) {
        int which = std::get<0>(place);
        if (which < 0) throw std::invalid_argument("expected a place >= 0 of a plan, got " + std::to_string(which));
        if (which > 1) needed_ = std::max(needed_, static_cast<std::size_t>(which) - 1);
    }
    void add(std::initializer_list<Place> places, const Ends& e, Step step) {
        for (const Place& place : places) check(place);
        check(std::get<1>(e)), check(std::get<2>(e)), check(std::get<3>(e));
        steps_.push_back(std::move(step));
    }

    std::vector<Step> steps_;
    std::size_t needed_ = 0;
};

}  // namespace

void bind_plan(nb::module_& m) {
    nb::class_<Plan>(m, "Plan", nb::is_weak_referenceable())
        .def(nb::init<>())
        .def("binary", &Plan::binary)
        .def("table", &Plan::table)
        .def("integer", &Plan::integer)
        .def("floats", &Plan::floats)
        .def("rounded", &Plan::rounded)
        .def("finish", &Plan::finish)
        .def("unpack", &Plan::unpack)
        .def("max_bits", &Plan::max_bits)
        .def("means", &Plan::means)
        .def("spikes", &Plan::spikes)
        .def("average", &Plan::average)
        .def("maximum", &Plan::maximum)
        .def("bitwise", &Plan::bitwise)
        .def("join", &Plan::join)
        .def("sum", &Plan::sum)
        .def("run", &Plan::run);
}
