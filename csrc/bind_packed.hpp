// How the structs of packed.hpp come from Python: src/htaf/kernels/_packed_native.py makes the tuples.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/tuple.h>

#include <tuple>

#include "packed.hpp"

namespace nb = nanobind;

namespace htaf {

template <class T = void>
T* at(std::uintptr_t address) {
    return reinterpret_cast<T*>(address);
}

// scale, shift, residual, y, lower, upper, bits: addresses, 0 for what is left out
using Finishing = std::tuple<std::uintptr_t, std::uintptr_t, std::uintptr_t, std::uintptr_t, std::uintptr_t,
                             std::uintptr_t, std::uintptr_t>;
inline Epilogue epilogue(const Finishing& f) {
    auto [scale, shift, residual, y, lower, upper, bits] = f;
    return {at<const float>(scale), at<const float>(shift), at<const float>(residual), at<float>(y),
            at<const float>(lower), at<const float>(upper), at<std::uint64_t>(bits)};
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
    return {batch, height, width, channels, outputs, {k0, k1}, {s0, s1}, {p0, p1}, {d0, d1}, groups};
}

}  // namespace htaf
