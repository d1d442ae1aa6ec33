// Sums of a few outputs of a block of pixels, for every kind of table. Included once per instruction set; see tables.cpp.
#pragma once

#include <algorithm>
#include <chrono>

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

    static size_t fields(size_t channels) { return (channels + 31) / 32; }

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

// ---- int16, int8: 64 sums of the subsets of 6 inputs, each of two entries of 8; indices are bytes, or as wide as entries

template <class Entry>
struct Integers {
    static constexpr bool wide = sizeof(Entry) == 2;
    using index = std::uint8_t;
    using gathered = Entry;
    using entry = Entry;
    static constexpr size_t bits_each = 6;
    // Sixes whose sums fit an entry are 16 (int16) or 2 (int8); so many are made together, and their sums fit 16 bits.
    static constexpr size_t sixes = wide ? 16 : 64;
#if defined(__AVX512VBMI__)
    static constexpr size_t lanes = wide ? 32 : 64, outputs = 4;
#else
    static constexpr size_t lanes = 16, outputs = 1;
#endif
    static constexpr size_t scratch = sixes * outputs * 64;

    static size_t fields(size_t channels) { return channels / 64 * 11 + (channels % 64 + 5) / 6; }

    static float finished(const Tables& t, size_t o, std::int32_t sum) {
        return static_cast<float>(sum - t.bias[o]) * t.unit[o];
    }

    template <class Layer>
    static void add_few(const Layer& l, const Tables& t, size_t first, size_t count, const Entry* indices, size_t stride,
                        size_t n, float* sums) {
        size_t flat = l.flat();
        for (size_t o = first; o < first + count; ++o, sums += stride) {
            const Entry* values = static_cast<const Entry*>(t.values) + o * flat * 16;
            for (size_t p = 0; p < n; ++p) {
                std::int32_t sum = 0;
                for (size_t g = 0; g < flat; ++g) {
                    size_t i = indices[g * stride + p];
                    sum += values[g * 16 + i % 8] + values[g * 16 + 8 + i / 8];
                }
                sums[p] = finished(t, o, sum);
            }
        }
    }

#if defined(__AVX512VBMI__)
    static HTAF_INLINE void make(const Entry* two, Entry* table) {
        if constexpr (wide) {
            auto eight = [&](int k) __attribute__((always_inline)) {
                return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(two + 8 * k)));
            };
            // lane i of the first register takes the upper entry i / 8, of the second 4 + i / 8
            alignas(64) static constexpr std::uint16_t at[32] = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1,
                                                                 2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3};
            __m512i low = eight(0), high = eight(1), i = _mm512_load_si512(at);
            __m512i next = _mm512_permutexvar_epi16(_mm512_add_epi16(i, _mm512_set1_epi16(4)), high);
            _mm512_store_si512(table, _mm512_add_epi16(low, _mm512_permutexvar_epi16(i, high)));
            _mm512_store_si512(table + 32, _mm512_add_epi16(low, next));
        } else {
            __m512i low = _mm512_set1_epi64(read<long long>(two)), high = _mm512_set1_epi64(read<long long>(two + 8));
            __m512i at = _mm512_set_epi64(0x0707070707070707, 0x0606060606060606, 0x0505050505050505, 0x0404040404040404,
                                          0x0303030303030303, 0x0202020202020202, 0x0101010101010101, 0);
            _mm512_store_si512(table, _mm512_add_epi8(low, _mm512_shuffle_epi8(high, at)));
        }
    }

    static HTAF_INLINE void put(bool start, void* p, __m512i v) {
        _mm512_store_si512(p, start ? v : _mm512_add_epi32(_mm512_load_si512(p), v));
    }

    // Sums of 32 bits lie as [even lanes of 16 bits, odd ones], int8's as [lanes of bytes 4 i, 4 i + 2, 4 i + 1, 4 i + 3].
    template <int R>
    static void tile(const Entry* indices, size_t index_stride, const Entry* tables, size_t count, float* sums,
                     size_t stride, bool start) {
        const __m512i ones = _mm512_set1_epi32(0xffff);
        __m512i total[4][R] = {}, odd[4][R] = {};
        const __m512i second = _mm512_set1_epi16(0x0100);
        for (size_t g = 0; g < count; g += wide ? 1 : 2) {
            __m512i i[R], j[R];
            HTAF_UNROLL for (int r = 0; r < R; ++r) {
                i[r] = _mm512_loadu_si512(indices + g * index_stride + r * lanes);
                if (!wide) j[r] = _mm512_loadu_si512(indices + (g + 1) * index_stride + r * lanes);
            }
            const Entry* table = tables + g * 4 * 64;
            HTAF_UNROLL for (int o = 0; o < 4; ++o) {
                if constexpr (wide) {
                    __m512i low = _mm512_load_si512(table + o * 64), high = _mm512_load_si512(table + o * 64 + 32);
                    HTAF_UNROLL for (int r = 0; r < R; ++r)
                        total[o][r] = _mm512_add_epi16(total[o][r], _mm512_permutex2var_epi16(low, i[r], high));
                } else {
                    __m512i a = _mm512_load_si512(table + o * 64), b = _mm512_load_si512(table + (4 + o) * 64);
                    HTAF_UNROLL for (int r = 0; r < R; ++r) {
                        __m512i two = _mm512_add_epi8(_mm512_permutexvar_epi8(i[r], a), _mm512_permutexvar_epi8(j[r], b));
                        total[o][r] = _mm512_add_epi16(total[o][r], two);
                        odd[o][r] = _mm512_add_epi16(odd[o][r], _mm512_maddubs_epi16(two, second));
                    }
                }
            }
        }
        HTAF_UNROLL for (int o = 0; o < 4; ++o)
            HTAF_UNROLL for (int r = 0; r < R; ++r) {
                float* to = sums + o * stride + r * lanes;
                __m512i even = wide ? total[o][r] : _mm512_sub_epi16(total[o][r], _mm512_slli_epi16(odd[o][r], 8));
                put(start, to, _mm512_and_si512(even, ones));
                put(start, to + 16, _mm512_srli_epi32(even, 16));
                if constexpr (!wide) {
                    put(start, to + 32, _mm512_and_si512(odd[o][r], ones));
                    put(start, to + 48, _mm512_srli_epi32(odd[o][r], 16));
                }
            }
    }

    // Lanes i of a and b side by side.
    static HTAF_INLINE void side_by_side(__m512i& a, __m512i& b) {
        const __m512i low = _mm512_set_epi32(23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
        __m512i first = _mm512_permutex2var_epi32(a, low, b);
        b = _mm512_permutex2var_epi32(a, _mm512_add_epi32(low, _mm512_set1_epi32(8)), b);
        a = first;
    }

    static void finish_rows(const Tables& t, size_t first, size_t count, size_t n, float* sums, size_t stride) {
        for (size_t o = 0; o < count; ++o, sums += stride)
            for (size_t p = 0; p < n; p += lanes) {
                constexpr int parts = lanes / 16;
                __m512i s[4];
                HTAF_UNROLL for (int k = 0; k < parts; ++k) s[k] = _mm512_load_si512(sums + p + 16 * k);
                if constexpr (wide) {
                    side_by_side(s[0], s[1]);
                } else {  // 0 2 and 1 3 mod 4 to all even and all odd, then these
                    side_by_side(s[0], s[1]);
                    side_by_side(s[2], s[3]);
                    side_by_side(s[0], s[2]);
                    side_by_side(s[1], s[3]);
                    std::swap(s[1], s[2]);
                }
                HTAF_UNROLL for (int k = 0; k < parts; ++k) {
                    __m512 y = _mm512_cvtepi32_ps(_mm512_sub_epi32(s[k], _mm512_set1_epi32(t.bias[first + o])));
                    _mm512_store_ps(sums + p + 16 * k, _mm512_mul_ps(y, _mm512_set1_ps(t.unit[first + o])));
                }
            }
    }

    template <class Layer>
    static void add(const Layer& l, const Tables& t, size_t first, size_t count, const Entry* indices, size_t stride,
                    size_t n, Entry* tables, float* sums) {
        size_t flat = l.flat();
        const Entry* values = static_cast<const Entry*>(t.values) + first * flat * 16;
        for (size_t from = 0; from < flat; from += sixes) {
            size_t here = std::min(sixes, flat - from), made = wide ? here : (here + 1) / 2 * 2;
            size_t next = ahead(flat, from, sixes, outputs);  // what comes after this piece, while it is worked on
            for (size_t g = 0; g < made; ++g)
                for (size_t o = 0; o < 4; ++o) {
                    Entry* table = tables + (g * 4 + o) * 64;
                    if (g < here && o < count) {
                        const Entry* two = values + (o * flat + from + g) * 16;
                        __builtin_prefetch(two + next * 16);
                        make(two, table);
                    } else {
                        std::fill_n(table, 64, Entry{});
                    }
                }
            const Entry* i = indices + from * stride;
            constexpr int most = wide ? 4 : 2;
            size_t p = 0;
            for (; p + (most - 1) * lanes < n; p += most * lanes) tile<most>(i + p, stride, tables, made, sums + p, stride, from == 0);
            if (most == 4 && p + 2 * lanes < n) tile<3>(i + p, stride, tables, made, sums + p, stride, from == 0);
            else if (most == 4 && p + lanes < n) tile<2>(i + p, stride, tables, made, sums + p, stride, from == 0);
            else if (p < n) tile<1>(i + p, stride, tables, made, sums + p, stride, from == 0);
        }
        finish_rows(t, first, count, n, sums, stride);
    }
#else
    template <class Layer>
    static void add(const Layer& l, const Tables& t, size_t first, size_t, const Entry* indices, size_t stride, size_t n,
                    Entry*, float* sums) {
        size_t flat = l.flat();
        const Entry* values = static_cast<const Entry*>(t.values) + first * flat * 16;
        constexpr size_t some = 64;  // pixels, whose sums stay in registers or next to them
        for (size_t p = 0; p < n; p += some) {
            std::int32_t total[some] = {};
            for (size_t g = 0; g < flat; ++g) {
                Entry table[64];
                for (int i = 0; i < 64; ++i)
                    table[i] = static_cast<Entry>(values[g * 16 + i % 8] + values[g * 16 + 8 + i / 8]);
                for (size_t j = 0; j < some; ++j) total[j] += table[indices[g * stride + p + j] % 64];
            }
            for (size_t j = 0; j < std::min(some, n - p); ++j) sums[p + j] = finished(t, first, total[j]);
        }
    }
#endif
};

// ---- what the processor can do at best

double peak(TableKind kind) {
#if defined(__AVX512VBMI__)
    constexpr int steps = 200000, chains = 12;
    double best = 0;
    for (int round = 0; round < 7; ++round) {
        __m512i total[chains] = {}, i = _mm512_set1_epi8(3), table = _mm512_set1_epi8(5), more = table;
        auto run = [&](auto f) __attribute__((always_inline)) {
            for (int k = 0; k < steps; ++k)
                HTAF_UNROLL for (int j = 0; j < chains; ++j) {
                    asm volatile("" : "+v"(i), "+v"(table));
                    total[j] = f(total[j]);
                }
        };
        auto start = std::chrono::steady_clock::now();
        double each = 0;  // operations of one permutation and addition
        switch (kind) {
            case TableKind::float32:
                each = 2 * 16 * 4;
                run([&](__m512i s) __attribute__((always_inline)) {
                    return (__m512i)_mm512_add_ps((__m512)s, _mm512_permutexvar_ps(i, (__m512)table));
                });
                break;
            case TableKind::int16:
                each = 2 * 32 * 6;
                run([&](__m512i s) __attribute__((always_inline)) {
                    return _mm512_add_epi16(s, _mm512_permutex2var_epi16(table, i, more));
                });
                break;
            case TableKind::int8:
                each = 2 * 64 * 6;
                run([&](__m512i s) __attribute__((always_inline)) {
                    return _mm512_add_epi8(s, _mm512_permutexvar_epi8(i, table));
                });
                break;
        }
        for (auto& s : total) asm volatile("" ::"v"(s));
        double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        best = std::max(best, steps * chains * each / seconds);
    }
    return best;
#else
    (void)kind;
    return 0;
#endif
}

}  // namespace
}  // namespace htaf::HTAF_NAMESPACE
