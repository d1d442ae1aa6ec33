// From a layer's sums to its outputs, floats or bits. Included once per instruction set; the formulas stand in
// src/htaf/kernels/packed_maps/reference.py.
#pragma once

#include <algorithm>

#include "packed.hpp"
#include "simd.hpp"

namespace htaf::HTAF_NAMESPACE {
namespace {

// Bit j is set where lower <= v <= upper in lane j.
HTAF_INLINE std::uint64_t within(reg v, reg lower, reg upper) {
#if defined(__AVX512F__)
    __mmask16 some = _mm512_cmp_ps_mask((__m512)v, (__m512)lower, _CMP_GE_OQ);
    return _mm512_mask_cmp_ps_mask(some, (__m512)v, (__m512)upper, _CMP_LE_OQ);
#else
    reg_i32 inside = (v >= lower) & (v <= upper);
#if defined(__AVX__)
    return static_cast<unsigned>(_mm256_movemask_ps((__m256)inside));
#else
    static_assert(HTAF_LANES == 4);
    reg_i32 m = inside & reg_i32{1, 2, 4, 8};
    return static_cast<unsigned>(m[0] | m[1] | m[2] | m[3]);
#endif
#endif
}

// A whole register of one pixel's channels, the first of which is `channel`; `row` is pixel * channels + channel.
HTAF_INLINE reg finish_floats(const Epilogue& e, reg y, std::size_t channel, std::size_t row) {
    if (e.scale && e.shift) y = y * read<reg>(e.scale + channel) + read<reg>(e.shift + channel);
    else if (e.scale) y *= read<reg>(e.scale + channel);
    else if (e.shift) y += read<reg>(e.shift + channel);
    if (e.residual) y += read<reg>(e.residual + row);
    if (e.y) std::memcpy(e.y + row, &y, sizeof y);
    return y;
}

// The outputs of channels [first, first + n), n <= 64 and first a multiple of 64, of one pixel from their sums.
HTAF_INLINE void finish(const Epilogue& e, const float* sums, std::size_t pixel, std::size_t first, std::size_t n,
                        std::size_t channels) {
    std::size_t row = pixel * channels + first, j = 0;
    std::uint64_t word = 0;
    for (; j + HTAF_LANES <= n; j += HTAF_LANES) {
        reg y = finish_floats(e, read<reg>(sums + j), first + j, row + j);
        if (e.bits) word |= within(y, read<reg>(e.lower + first + j), read<reg>(e.upper + first + j)) << j;
    }
    for (; j < n; ++j) {
        std::size_t c = first + j;
        float y = sums[j];
        if (e.scale) y = y * e.scale[c] + (e.shift ? e.shift[c] : 0.0f);
        else if (e.shift) y += e.shift[c];
        if (e.residual) y += e.residual[row + j];
        if (e.y) e.y[row + j] = y;
        if (e.bits) word |= static_cast<std::uint64_t>(e.lower[c] <= y && y <= e.upper[c]) << j;
    }
    if (e.bits) e.bits[pixel * ((channels + 63) / 64) + first / 64] = word;
}

}  // namespace
}  // namespace htaf::HTAF_NAMESPACE
