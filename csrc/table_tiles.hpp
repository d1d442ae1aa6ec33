// Sums of a few outputs of a block of pixels by tables of float32, and the turning of what comes out. Included once per
// instruction set; see tables.cpp.
#pragma once

#include <algorithm>

#include "simd.hpp"
#include "tables.hpp"

namespace htaf::HTAF_NAMESPACE {
namespace {

using std::size_t;

#define HTAF_UNROLL _Pragma("GCC unroll 16")

// ---- turning

// Rows of 64 bits on their side: bit i of row j becomes bit j of row i.
inline void turn(std::uint64_t* rows) {
#if defined(__AVX512VBMI__)
    // byte columns first: those of 8 rows in a register, then of 64; of these each bit is one mask
    alignas(64) static constexpr std::uint8_t columns[64] = {
        0, 8, 16, 24, 32, 40, 48, 56, 1, 9,  17, 25, 33, 41, 49, 57, 2, 10, 18, 26, 34, 42, 50, 58, 3, 11, 19, 27, 35, 43, 51, 59,
        4, 12, 20, 28, 36, 44, 52, 60, 5, 13, 21, 29, 37, 45, 53, 61, 6, 14, 22, 30, 38, 46, 54, 62, 7, 15, 23, 31, 39, 47, 55, 63};
    const __m512i order = _mm512_load_si512(columns);
    __m512i r[8], s[8];
    HTAF_UNROLL for (int i = 0; i < 8; ++i) r[i] = _mm512_permutexvar_epi8(order, _mm512_load_si512(rows + 8 * i));
    HTAF_UNROLL for (int i = 0; i < 8; i += 2) {
        s[i] = _mm512_unpacklo_epi64(r[i], r[i + 1]);
        s[i + 1] = _mm512_unpackhi_epi64(r[i], r[i + 1]);
    }
    HTAF_UNROLL for (int k = 0; k < 2; ++k) {  // columns 2 q + k of lane q
        __m512i a = _mm512_shuffle_i64x2(s[k], s[2 + k], 0x88), b = _mm512_shuffle_i64x2(s[4 + k], s[6 + k], 0x88);
        __m512i c = _mm512_shuffle_i64x2(s[k], s[2 + k], 0xdd), d = _mm512_shuffle_i64x2(s[4 + k], s[6 + k], 0xdd);
        r[k] = _mm512_shuffle_i64x2(a, b, 0x88);
        r[k + 4] = _mm512_shuffle_i64x2(a, b, 0xdd);
        r[k + 2] = _mm512_shuffle_i64x2(c, d, 0x88);
        r[k + 6] = _mm512_shuffle_i64x2(c, d, 0xdd);
    }
    for (int i = 0; i < 8; ++i)
        HTAF_UNROLL for (int bit = 7; bit >= 0; --bit) {
            rows[8 * i + bit] = _mm512_movepi8_mask(r[i]);
            r[i] = _mm512_add_epi8(r[i], r[i]);
        }
#else
    std::uint64_t mask = 0xffffffff;
    for (size_t j = 32; j; j >>= 1, mask ^= mask << j)
        for (size_t k = 0; k < 64; k += 2 * j)
            for (size_t i = k; i < k + j; ++i) {
                std::uint64_t t = ((rows[i] >> j) ^ rows[i + j]) & mask;
                rows[i] ^= t << j;
                rows[i + j] ^= t;
            }
#endif
}

// to[j][i] = from[i][j] of 16 by 16, in rows of 64 floats.
inline void turn_floats(const float* from, size_t stride, float* to) {
#if defined(__AVX512F__)
    __m512 r[16], s[16];
    HTAF_UNROLL for (int i = 0; i < 16; ++i) r[i] = _mm512_loadu_ps(from + i * stride);
    HTAF_UNROLL for (int i = 0; i < 16; i += 2) {
        s[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
        s[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
    }
    auto pairs = [](__m512 a, __m512 b, bool high) __attribute__((always_inline)) {
        auto x = _mm512_castps_pd(a), y = _mm512_castps_pd(b);
        return _mm512_castpd_ps(high ? _mm512_unpackhi_pd(x, y) : _mm512_unpacklo_pd(x, y));
    };
    HTAF_UNROLL for (int i = 0; i < 16; i += 4) {  // r[4 q + k]: column k of each lane of rows 4 q to 4 q + 3
        r[i] = pairs(s[i], s[i + 2], false);
        r[i + 1] = pairs(s[i], s[i + 2], true);
        r[i + 2] = pairs(s[i + 1], s[i + 3], false);
        r[i + 3] = pairs(s[i + 1], s[i + 3], true);
    }
    HTAF_UNROLL for (int k = 0; k < 4; ++k) {
        __m512 a = _mm512_shuffle_f32x4(r[k], r[4 + k], 0x88), b = _mm512_shuffle_f32x4(r[8 + k], r[12 + k], 0x88);
        __m512 c = _mm512_shuffle_f32x4(r[k], r[4 + k], 0xdd), d = _mm512_shuffle_f32x4(r[8 + k], r[12 + k], 0xdd);
        _mm512_storeu_ps(to + k * 64, _mm512_shuffle_f32x4(a, b, 0x88));
        _mm512_storeu_ps(to + (k + 8) * 64, _mm512_shuffle_f32x4(a, b, 0xdd));
        _mm512_storeu_ps(to + (k + 4) * 64, _mm512_shuffle_f32x4(c, d, 0x88));
        _mm512_storeu_ps(to + (k + 12) * 64, _mm512_shuffle_f32x4(c, d, 0xdd));
    }
#else
    for (size_t i = 0; i < 16; ++i)
        for (size_t j = 0; j < 16; ++j) to[j * 64 + i] = from[i * stride + j];
#endif
}

// How far from its place in this piece of an output's tables lies the same place of the next piece: of this output or, after
// its last piece, of the one `outputs` further.
inline size_t ahead(size_t flat, size_t from, size_t piece, size_t outputs) {
    return from + piece < flat ? piece : outputs * flat - from;
}

// ---- float32: 16 sums of the subsets of 4 inputs; an index holds 32 inputs, of which the lowest 4 count

struct Floats {
    using index = std::uint32_t;
    using gathered = std::uint32_t;
    using entry = float;
    static constexpr size_t bits_each = 32, lanes = HTAF_LANES;
    static constexpr size_t outputs = HTAF_LANES == 4 ? 4 : 8;  // of a tile
    static constexpr size_t words = 4;                          // of inputs whose tables are made together
    static constexpr size_t scratch = words * 8 * outputs * 16;

    static constexpr index none = 0;

    static size_t fields(size_t channels) { return (channels + 31) / 32; }
    static index of(std::uint64_t bits) { return static_cast<index>(bits); }

    static HTAF_INLINE reg look_up(const float* table, reg_u32 i) {
#if defined(__AVX512F__)
        return (reg)_mm512_permutexvar_ps((__m512i)i, _mm512_load_ps(table));
#elif defined(__AVX2__)
        auto low = _mm256_permutevar8x32_ps(_mm256_load_ps(table), (__m256i)i);
        auto high = _mm256_permutevar8x32_ps(_mm256_load_ps(table + 8), (__m256i)i);
        return (reg)_mm256_blendv_ps(low, high, (__m256)(i << 28));
#else
        reg found;
        for (int j = 0; j < HTAF_LANES; ++j) found[j] = table[i[j] & 15];
        return found;
#endif
    }

    template <class Layer>
    static size_t fours(const Layer& l, size_t word) {
        size_t field = word % l.fields;
        return field + 1 < l.fields ? 8 : (l.in_group - 32 * field + 3) / 4;
    }

    static void make(const float* w, float* table) {
#if defined(__AVX512F__)
        __m512 t = _mm512_maskz_mov_ps(0xaaaa, _mm512_set1_ps(w[0]));
        t = _mm512_mask_add_ps(t, 0xcccc, t, _mm512_set1_ps(w[1]));
        t = _mm512_mask_add_ps(t, 0xf0f0, t, _mm512_set1_ps(w[2]));
        t = _mm512_mask_add_ps(t, 0xff00, t, _mm512_set1_ps(w[3]));
        _mm512_store_ps(table, t);
#else
        table[0] = 0;
        for (int b = 0; b < 4; ++b)
            for (int i = 0; i < 1 << b; ++i) table[i + (1 << b)] = table[i] + w[b];
#endif
    }

    template <int R>
    static void tile(const std::uint32_t* indices, size_t index_stride, const float* tables, const size_t* fours,
                     size_t words, float* sums, size_t stride, bool start) {
        reg total[outputs][R] = {};
        for (size_t w = 0; w < words; ++w, indices += index_stride) {
            reg_u32 i[R];
            HTAF_UNROLL for (int r = 0; r < R; ++r) i[r] = read<reg_u32>(indices + r * HTAF_LANES);
            for (size_t g = 0; g < fours[w]; ++g, tables += outputs * 16) {
                HTAF_UNROLL for (size_t o = 0; o < outputs; ++o)
                    HTAF_UNROLL for (int r = 0; r < R; ++r) total[o][r] += look_up(tables + o * 16, i[r]);
                HTAF_UNROLL for (int r = 0; r < R; ++r) i[r] >>= 4;
            }
        }
        HTAF_UNROLL for (size_t o = 0; o < outputs; ++o)
            HTAF_UNROLL for (int r = 0; r < R; ++r) {
                float* to = sums + o * stride + r * HTAF_LANES;
                reg sum = start ? total[o][r] : read<reg>(to) + total[o][r];
                std::memcpy(to, &sum, sizeof sum);
            }
    }

    template <class Layer>
    static void add(const Layer& l, const Tables& t, size_t first, size_t count, const std::uint32_t* indices, size_t stride,
                    size_t n, float* tables, float* sums) {
        size_t flat = l.flat();
        const float* values = static_cast<const float*>(t.values) + first * flat * 32;
        for (size_t from = 0; from < flat; from += words) {
            size_t here = std::min(words, flat - from), each[words];
            float* table = tables;
            for (size_t w = 0; w < here; ++w) {
                each[w] = fours(l, from + w);
                for (size_t o = 0; o < count; ++o) {  // those that come after this piece, while it is worked on
                    const float* next = values + (o * flat + from + w) * 32 + ahead(flat, from, words, outputs) * 32;
                    __builtin_prefetch(next);
                    __builtin_prefetch(next + 16);
                }
                for (size_t g = 0; g < each[w]; ++g)
                    for (size_t o = 0; o < outputs; ++o, table += 16)
                        if (o < count) make(values + (o * flat + from + w) * 32 + g * 4, table);
                        else std::fill_n(table, 16, 0.0f);
            }
            const std::uint32_t* i = indices + from * stride;
            constexpr int most = HTAF_LANES == 16 ? 3 : 1;  // 24 of 32 registers hold sums, 8 of 16 for AVX2
            size_t p = 0;
            for (; p + most * HTAF_LANES <= n; p += most * HTAF_LANES)
                tile<most>(i + p, stride, tables, each, here, sums + p, stride, from == 0);
            if (most == 3 && p + HTAF_LANES < n) {
                tile<2>(i + p, stride, tables, each, here, sums + p, stride, from == 0);
                p += 2 * HTAF_LANES;
            }
            if (p < n) tile<1>(i + p, stride, tables, each, here, sums + p, stride, from == 0);
        }
    }

    // Lanes are inputs: the weights of those that are set are added.
    template <class Layer>
    static void add_few(const Layer& l, const Tables& t, size_t first, size_t count, const std::uint32_t* indices,
                        size_t stride, size_t n, float* sums) {
        constexpr size_t parts = 32 / HTAF_LANES;
        size_t flat = l.flat();
        const float* values = static_cast<const float*>(t.values) + first * flat * 32;
        for (size_t o = 0; o < count; ++o, values += flat * 32)
            for (size_t p = 0; p < n; ++p) {
                reg total[2][parts] = {};
                size_t w = 0;
                for (; w + 2 <= flat; w += 2)
                    HTAF_UNROLL for (size_t k = 0; k < 2; ++k)
                        some<parts>(total[k], values + (w + k) * 32, indices[(w + k) * stride + p]);
                if (w < flat) some<parts>(total[0], values + w * 32, indices[w * stride + p]);
                reg sum = {};
                for (size_t k = 0; k < parts; ++k) sum += total[0][k] + total[1][k];
                float all = 0;
                for (int j = 0; j < HTAF_LANES; ++j) all += sum[j];
                sums[o * stride + p] = all;
            }
    }

   private:
    template <size_t Parts>
    static HTAF_INLINE void some(reg* total, const float* w, std::uint32_t word) {
        HTAF_UNROLL for (size_t k = 0; k < Parts; ++k) {
#if defined(__AVX512F__)
            auto set = static_cast<__mmask16>(word >> (16 * k));
            total[k] = (reg)_mm512_mask_add_ps((__m512)total[k], set, (__m512)total[k], _mm512_loadu_ps(w + 16 * k));
#else
            reg_u32 bit;
            for (unsigned j = 0; j < HTAF_LANES; ++j) bit[j] = 1u << (k * HTAF_LANES + j);
            reg_i32 set = (bit & word) != 0;
            total[k] += reinterpret_cast<reg>(set & read<reg_i32>(w + k * HTAF_LANES));
#endif
        }
    }
};

}  // namespace
}  // namespace htaf::HTAF_NAMESPACE
