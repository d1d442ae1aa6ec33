// A layer as its sums by tables see it, and the memory they need. Included once per instruction set; see tables.cpp.
#pragma once

#include "arena.hpp"
#include "epilogue.hpp"
#include "table_tiles.hpp"

namespace htaf::HTAF_NAMESPACE {
namespace {

constexpr size_t most_pixels = 1024;  // of a block: their sums of 64 outputs are as many bytes as its indices

// What follows from a convolution, for indices of one kind: `fields` of them a tap.
template <class Kind>
struct Layer : Convolution {
    size_t words, in_group, out_group, taps, fields, columns, row;

    explicit Layer(const Convolution& c)
        : Convolution(c), words((c.channels + 63) / 64), in_group(c.channels / c.groups),
          out_group(c.outputs / c.groups), taps(c.kernel[0] * c.kernel[1]), fields(Kind::fields(in_group)),
          columns((c.width + 2 * c.padding[1] + c.stride[1] - 1) / c.stride[1]), row(columns * c.stride[1]) {}

    size_t flat() const { return taps * fields; }
};

// Bits [from, from + n) of a pixel, n <= 64.
inline std::uint64_t word_at(const std::uint64_t* pixel, size_t from, size_t n) {
    size_t at = from / 64, shift = from % 64;
    std::uint64_t v = pixel[at] >> shift;
    if (shift + n > 64) v |= pixel[at + 1] << (64 - shift);
    return n < 64 ? v & ((std::uint64_t{1} << n) - 1) : v;
}

// f(lanes of y, their place) of 64 pixels' sums of output c, where there is no residual.
template <class F>
HTAF_INLINE void scaled(const Epilogue& e, const float* sums, size_t c, F f) {
    reg scale = one(e.scale ? e.scale[c] : 1), shift = one(e.shift ? e.shift[c] : 0);
    for (size_t i = 0; i < 64; i += HTAF_LANES) {
        reg y = read<reg>(sums + i);
        if (e.scale) y *= scale;
        if (e.shift) y += shift;
        if (e.wide_scale) y = widened(y, e.wide_scale[c], e.wide_shift[c]);
        f(y, i);
    }
}

}  // namespace
}  // namespace htaf::HTAF_NAMESPACE
