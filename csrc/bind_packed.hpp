// How the structs of packed.hpp come from Python: src/htaf/core/kernels/packed_native.py makes the tuples.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <stdexcept>
#include <tuple>

#include "floats.hpp"
#include "maps.hpp"
#include "packed.hpp"

namespace nb = nanobind;

namespace htaf {

template <class T = void>
T* at(std::uintptr_t address) {
    return reinterpret_cast<T*>(address);
}

// scale, shift, residual, y, lower, upper, bits, wide scale and shift: addresses, 0 for what is left out
using Finishing = std::tuple<std::uintptr_t, std::uintptr_t, std::uintptr_t, std::uintptr_t, std::uintptr_t,
                             std::uintptr_t, std::uintptr_t, std::uintptr_t, std::uintptr_t>;
inline Epilogue epilogue(const Finishing& f) {
    auto [scale, shift, residual, y, lower, upper, bits, wide_scale, wide_shift] = f;
    return {at<const float>(scale), at<const float>(shift), at<const float>(residual), at<float>(y),
            at<const float>(lower), at<const float>(upper), at<std::uint64_t>(bits),
            at<const double>(wide_scale), at<const double>(wide_shift)};
}

// Whether the product is at most what a processor addresses, so that kernels may compute with it.
template <class... N>
bool fits(N... n) {
    std::size_t all = 1;
    return !(__builtin_mul_overflow(all, std::size_t{n}, &all) || ...) && all <= std::size_t{1} << 46;
}

// Throws where a kernel's sizes would wrap around, or divide by 0.
inline void check(const Convolution& c) {
    constexpr std::size_t most = std::size_t{1} << 31;
    auto size = [](std::size_t n) { return n >= 1 && n <= most; };
    bool right = size(c.channels) && size(c.outputs) && size(c.groups) && c.height <= most && c.width <= most;
    for (int i = 0; i < 2; ++i)
        right = right && size(c.kernel[i]) && size(c.stride[i]) && size(c.dilation[i]) && c.padding[i] <= most;
    if (!right || c.channels % c.groups || c.outputs % c.groups)
        throw std::invalid_argument("expected sizes from 1 to 2^31 and channels and outputs in whole groups");
    std::size_t height = c.height + 2 * c.padding[0], width = c.width + 2 * c.padding[1];
    if (height < c.dilation[0] * (c.kernel[0] - 1) + 1 || width < c.dilation[1] * (c.kernel[1] - 1) + 1)
        throw std::invalid_argument("expected padded images of at least the size of the kernel");
    // channels and outputs in words, every group in its own; the tables' columns fill up a stride
    std::size_t in = (c.channels / c.groups + 63) / 64 * 64, out = (c.outputs / c.groups + 63) / 64 * 64;
    std::size_t images = std::max<std::size_t>(c.batch, 1);
    if (!fits(images, height, width + c.stride[1], c.groups, in) || !fits(c.kernel[0], c.kernel[1], c.groups, in, out) ||
        !fits(images, c.out_height(), c.out_width(), c.groups, out))
        throw std::length_error("expected a convolution of at most 2^46 inputs, weights and outputs");
}

// (batch, height, width, channels, outputs), kernel, stride, padding, dilation, groups
using Pair = std::tuple<std::size_t, std::size_t>;
using Shape2d = std::tuple<std::tuple<std::size_t, std::size_t, std::size_t, std::size_t, std::size_t>, Pair, Pair, Pair,
                           Pair, std::size_t>;
inline Convolution convolution(const Shape2d& s) {
    auto [sizes, kernel, stride, padding, dilation, groups] = s;
    auto [batch, height, width, channels, outputs] = sizes;
    auto [k0, k1] = kernel;
    auto [s0, s1] = stride;
    auto [p0, p1] = padding;
    auto [d0, d1] = dilation;
    Convolution c = {batch, height, width, channels, outputs, {k0, k1}, {s0, s1}, {p0, p1}, {d0, d1}, groups};
    check(c);
    return c;
}

// Strides of images in floats: from one image, row, pixel and channel to the next; kernel, stride and padding of a window.
using Strides = std::tuple<std::size_t, std::size_t, std::size_t, std::size_t>;
using Window = std::tuple<Pair, Pair, Pair>;
inline FloatImages float_images(std::uintptr_t first, const Strides& s) {
    auto [image, row, pixel, channel] = s;
    return {at<const float>(first), image, row, pixel, channel};
}
// Addresses of values and unit; steps and most.
using Rounded = std::tuple<std::uintptr_t, std::uintptr_t, float, float>;
inline RoundedWeights rounded_weights(const Rounded& r) {
    auto [values, unit, steps, most] = r;
    return {at<const std::int16_t>(values), at<const float>(unit), steps, most};
}
inline MaxWindow window(const Window& w, const Convolution& c) {
    auto [kernel, stride, padding] = w;
    auto [k0, k1] = kernel;
    if (!k0) return {};
    auto [s0, s1] = stride;
    auto [p0, p1] = padding;
    if (!k1 || !s0 || !s1 || 2 * p0 > k0 || 2 * p1 > k1 || c.out_height() + 2 * p0 < k0 || c.out_width() + 2 * p1 < k1)
        throw std::invalid_argument("expected windows of at most the padded image, padded by at most their half");
    return {{k0, k1}, {s0, s1}, {p0, p1}};
}
// Steps, images, pixels; addresses of weights and bias, unit, channels, outputs.
using Counted = std::tuple<std::size_t, std::size_t, std::size_t>;
using Means = std::tuple<std::uintptr_t, std::uintptr_t, double, std::size_t, std::size_t>;
inline LinearOfMeans linear_of_means(const Means& m) {
    auto [weights, bias, unit, channels, outputs] = m;
    return {at<const std::int32_t>(weights), at<const std::int64_t>(bias), unit, channels, outputs};
}
inline Convolution one_group(const Shape2d& s) {
    Convolution c = convolution(s);
    if (c.groups != 1) throw std::invalid_argument("expected one group");
    return c;
}

}  // namespace htaf
