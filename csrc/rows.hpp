// Rows of a matrix of weights times a vector of floats. Included once per instruction set, after simd.hpp's rules.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "simd.hpp"

namespace htaf::HTAF_NAMESPACE {
namespace {

using std::size_t;

#if defined(__AVX512F__)
HTAF_INLINE float sum(reg v) { return _mm512_reduce_add_ps((__m512)v); }
HTAF_INLINE reg widen(const std::int8_t* p) {
    return (reg)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(read<__m128i>(p)));
}
#else
HTAF_INLINE float sum(reg v) {
    for (int half = HTAF_LANES / 2; half; half /= 2)
        for (int i = 0; i < half; ++i) v[i] += v[i + half];
    return v[0];
}
HTAF_INLINE reg widen(const std::int8_t* p) {
    typedef std::int8_t reg_i8 __attribute__((vector_size(HTAF_LANES)));
    return __builtin_convertvector(__builtin_convertvector(read<reg_i8>(p), reg_i32), reg);
}
#endif
HTAF_INLINE float single(const float* p) { return *p; }
HTAF_INLINE float single(const bfloat16* p) {
    std::uint32_t bits = std::uint32_t{p->bits} << 16;
    float v;
    std::memcpy(&v, &bits, sizeof v);
    return v;
}
HTAF_INLINE float single(const std::int8_t* p) { return *p; }

// Asks for a part of a row that is wanted later: rows are read in no order, so the processor cannot foresee them. Into the
// second cache, which takes more requests at once than the first.
template <size_t Bytes, class T>
HTAF_INLINE void fetch(const T* p) {
    for (size_t i = 0; i < Bytes; i += 64) __builtin_prefetch(reinterpret_cast<const char*>(p) + i, 0, 2);
}

// w x, always in the same order; next: a row that is wanted later, or null
template <class T>
HTAF_INLINE float dot(const T* w, const float* x, size_t n, const T* next = nullptr) {
    constexpr size_t step = 4 * HTAF_LANES;
    reg part[4] = {};
    size_t i = 0;
    for (; i + step <= n; i += step) {
        if (next) fetch<step * sizeof(T)>(next + i);
        for (int k = 0; k < 4; ++k) part[k] += widen(w + i + k * HTAF_LANES) * read<reg>(x + i + k * HTAF_LANES);
    }
    for (; i + HTAF_LANES <= n; i += HTAF_LANES) part[0] += widen(w + i) * read<reg>(x + i);
    float total = sum((part[0] + part[1]) + (part[2] + part[3]));
    for (; i < n; ++i) total += single(w + i) * x[i];
    return total;
}

// y += a w
template <class T>
HTAF_INLINE void add(float* y, const T* w, float a, size_t n, const T* next = nullptr) {
    constexpr size_t step = 4 * HTAF_LANES;
    size_t i = 0;
    auto one = [&](size_t at) __attribute__((always_inline)) {
        reg v = read<reg>(y + at) + widen(w + at) * a;
        std::memcpy(y + at, &v, sizeof v);
    };
    for (; i + step <= n; i += step) {
        if (next) fetch<step * sizeof(T)>(next + i);
        for (int k = 0; k < 4; ++k) one(i + k * HTAF_LANES);
    }
    for (; i + HTAF_LANES <= n; i += HTAF_LANES) one(i);
    for (; i < n; ++i) y[i] += single(w + i) * a;
}

}  // namespace
}  // namespace htaf::HTAF_NAMESPACE
