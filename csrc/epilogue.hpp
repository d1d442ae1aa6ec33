// From a layer's sums to its outputs, floats or bits. Included once per instruction set; the formulas stand in
// src/htaf/core/kernels/packed_maps/reference.py.
#pragma once

#include <algorithm>

#include "packed.hpp"
#include "simd.hpp"

namespace htaf::HTAF_NAMESPACE {
namespace {

// Bit j is set where lower <= v <= upper in lane j, or where v <= bound.
#if defined(__AVX512F__)
HTAF_INLINE std::uint64_t within(reg v, reg lower, reg upper) {
    __mmask16 some = _mm512_cmp_ps_mask((__m512)v, (__m512)lower, _CMP_GE_OQ);
    return _mm512_mask_cmp_ps_mask(some, (__m512)v, (__m512)upper, _CMP_LE_OQ);
}
HTAF_INLINE std::uint64_t no_more(reg_u32 v, reg_u32 bound) {
    return _mm512_cmple_epu32_mask((__m512i)v, (__m512i)bound);
}
#else
HTAF_INLINE std::uint64_t mask_of(reg_i32 inside) {
#if defined(__AVX__)
    return static_cast<unsigned>(_mm256_movemask_ps((__m256)inside));
#else
    static_assert(HTAF_LANES == 4);
    reg_i32 m = inside & reg_i32{1, 2, 4, 8};
    return static_cast<unsigned>(m[0] | m[1] | m[2] | m[3]);
#endif
}
HTAF_INLINE std::uint64_t within(reg v, reg lower, reg upper) { return mask_of((v >= lower) & (v <= upper)); }
HTAF_INLINE std::uint64_t no_more(reg_u32 v, reg_u32 bound) { return mask_of((reg_i32)(v <= bound)); }
#endif

// scale v + shift, computed in double and rounded once.
#if defined(__AVX512F__)
HTAF_INLINE __m512 widened(__m512 v, __m512d scale, __m512d scale2, __m512d shift, __m512d shift2) {
    __m256 low = _mm512_castps512_ps256(v), high = _mm512_extractf32x8_ps(v, 1);
    low = _mm512_cvtpd_ps(_mm512_fmadd_pd(_mm512_cvtps_pd(low), scale, shift));
    high = _mm512_cvtpd_ps(_mm512_fmadd_pd(_mm512_cvtps_pd(high), scale2, shift2));
    return _mm512_insertf32x8(_mm512_castps256_ps512(low), high, 1);
}
HTAF_INLINE reg widened(reg v, const double* scale, const double* shift) {
    return (reg)widened((__m512)v, _mm512_loadu_pd(scale), _mm512_loadu_pd(scale + 8), _mm512_loadu_pd(shift),
                        _mm512_loadu_pd(shift + 8));
}
HTAF_INLINE reg widened(reg v, double scale, double shift) {
    __m512d a = _mm512_set1_pd(scale), b = _mm512_set1_pd(shift);
    return (reg)widened((__m512)v, a, a, b, b);
}
#else
HTAF_INLINE reg widened(reg v, const double* scale, const double* shift) {
    for (int j = 0; j < HTAF_LANES; ++j) v[j] = static_cast<float>(std::fma(double{v[j]}, scale[j], shift[j]));
    return v;
}
HTAF_INLINE reg widened(reg v, double scale, double shift) {
    for (int j = 0; j < HTAF_LANES; ++j) v[j] = static_cast<float>(std::fma(double{v[j]}, scale, shift));
    return v;
}
#endif

// n <= 64 floats; std::memcpy of a number that is not known costs more than these.
HTAF_INLINE void copy(const float* from, std::size_t n, float* to) {
    std::size_t j = 0;
    for (; j + HTAF_LANES <= n; j += HTAF_LANES) {
        reg v = read<reg>(from + j);
        std::memcpy(to + j, &v, sizeof v);
    }
#if defined(__AVX512F__)
    auto rest = static_cast<__mmask16>((1u << (n - j)) - 1);
    _mm512_mask_storeu_ps(to + j, rest, _mm512_maskz_loadu_ps(rest, from + j));
#else
    for (; j < n; ++j) to[j] = from[j];
#endif
}

// A whole register of one pixel's channels, the first of which is `channel`; `row` is pixel * channels + channel.
HTAF_INLINE reg finish_floats(const Epilogue& e, reg y, std::size_t channel, std::size_t row) {
    if (e.wide_scale) y = widened(y, e.wide_scale + channel, e.wide_shift + channel);
    else if (e.scale && e.shift) y = y * read<reg>(e.scale + channel) + read<reg>(e.shift + channel);
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
    // bits of the sums themselves: no choices within the loop
    if (n % HTAF_LANES == 0 && e.bits && !e.y && !e.wide_scale && !e.scale && !e.shift && !e.residual) {
        for (; j < n; j += HTAF_LANES)
            word |= within(read<reg>(sums + j), read<reg>(e.lower + first + j), read<reg>(e.upper + first + j)) << j;
        e.bits[pixel * ((channels + 63) / 64) + first / 64] = word;
        return;
    }
    if (e.y && !e.bits && !e.wide_scale && !e.scale && !e.shift && !e.residual) {
        copy(sums, n, e.y + row);
        return;
    }
    for (; j + HTAF_LANES <= n; j += HTAF_LANES) {
        reg y = finish_floats(e, read<reg>(sums + j), first + j, row + j);
        if (e.bits) word |= within(y, read<reg>(e.lower + first + j), read<reg>(e.upper + first + j)) << j;
    }
    for (; j < n; ++j) {
        std::size_t c = first + j;
        float y = sums[j];
        if (e.wide_scale) y = static_cast<float>(std::fma(double{y}, e.wide_scale[c], e.wide_shift[c]));
        else if (e.scale) y = y * e.scale[c] + (e.shift ? e.shift[c] : 0.0f);
        else if (e.shift) y += e.shift[c];
        if (e.residual) y += e.residual[row + j];
        if (e.y) e.y[row + j] = y;
        if (e.bits) word |= static_cast<std::uint64_t>(e.lower[c] <= y && y <= e.upper[c]) << j;
    }
    if (e.bits) e.bits[pixel * ((channels + 63) / 64) + first / 64] = word;
}

}  // namespace
}  // namespace htaf::HTAF_NAMESPACE
