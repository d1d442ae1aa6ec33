// Addresses of dense tensors; see src/htaf/core/kernels/packed_maps/cpu.py.
#include <nanobind/nanobind.h>

#include "bind_packed.hpp"
#include "maps.hpp"
#include "processor.hpp"

using namespace htaf;

void bind_maps(nb::module_& m) {
    static const auto kernels = [] { return for_packed(chosen())->maps; };

    m.def("finish", [](std::uintptr_t sums, std::size_t pixels, std::size_t channels, const Finishing& e, int threads) {
        nb::gil_scoped_release unlocked;
        kernels()->finish(at<const float>(sums), pixels, channels, epilogue(e), threads);
    });
    m.def("unpack_pixels", [](std::uintptr_t bits, std::uintptr_t values, std::size_t pixels, std::size_t channels,
                              float below, int threads) {
        nb::gil_scoped_release unlocked;
        kernels()->unpack(at<const std::uint64_t>(bits), at<float>(values), pixels, channels, below, threads);
    });
    m.def("max_pool_bits", [](std::uintptr_t bits, std::uintptr_t found, const Shape2d& s, std::uintptr_t smallest, int threads) {
        nb::gil_scoped_release unlocked;
        const std::uint64_t* least = at<const std::uint64_t>(smallest);
        kernels()->max_pool(at<const std::uint64_t>(bits), at<std::uint64_t>(found), convolution(s), least, threads);
    });
    m.def("linear_of_means", [](std::uintptr_t bits, std::uintptr_t y, const Counted& sizes, const Means& means, int threads) {
        nb::gil_scoped_release unlocked;
        auto [steps, images, pixels] = sizes;
        kernels()->means(at<const std::uint64_t>(bits), at<float>(y), steps, images, pixels, linear_of_means(means), threads);
    });
    // neuron: (scale, shift, leak, gain, threshold, soft)
    using Description = std::tuple<std::uintptr_t, std::uintptr_t, float, float, float, bool>;
    m.def("spikes", [](std::uintptr_t x, std::size_t stride, std::uintptr_t bits, std::size_t steps, std::size_t pixels,
                       std::size_t channels, const Description& d, int threads) {
        nb::gil_scoped_release unlocked;
        auto [scale, shift, leak, gain, threshold, soft] = d;
        SpikingNeuron k{at<const float>(scale), at<const float>(shift), leak, gain, threshold, soft};
        kernels()->spikes(at<const float>(x), stride, at<std::uint64_t>(bits), steps, pixels, channels, k, threads);
    });
}
