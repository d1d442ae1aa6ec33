// Addresses of dense tensors; see src/htaf/core/kernels/float_layers/cpu.py.
#include "bind_packed.hpp"
#include "processor.hpp"

using namespace htaf;

void bind_floats(nb::module_& m) {
    static const auto kernels = [] { return for_packed(chosen())->floats; };

    m.def("float_convolution", [](const Shape2d& shape, std::uintptr_t x, const Strides& strides, std::uintptr_t weights,
                                  const Window& w, const Finishing& e, int threads) {
        nb::gil_scoped_release unlocked;
        Convolution c = one_group(shape);
        kernels()->convolution(c, float_images(x, strides), at<const float>(weights), window(w, c), epilogue(e), threads);
    });
    m.def("rounded_convolution", [](const Shape2d& shape, std::uintptr_t x, const Strides& strides, const Rounded& weights,
                                    const Window& w, const Finishing& e, int threads) {
        nb::gil_scoped_release unlocked;
        Convolution c = one_group(shape);
        kernels()->rounded(c, float_images(x, strides), rounded_weights(weights), window(w, c), epilogue(e), threads);
    });
    m.def("average_windows", [](std::uintptr_t x, std::uintptr_t y, const Shape2d& shape, int threads) {
        nb::gil_scoped_release unlocked;
        kernels()->average(at<const float>(x), at<float>(y), convolution(shape), threads);
    });
    m.def("max_windows", [](std::uintptr_t x, const Shape2d& shape, const Finishing& e, int threads) {
        nb::gil_scoped_release unlocked;
        kernels()->maximum(at<const float>(x), convolution(shape), epilogue(e), threads);
    });
}
