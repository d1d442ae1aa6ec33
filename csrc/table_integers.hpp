// Sums of a few outputs of a block of pixels by tables of integers, and what the processor can do at best. Included once per
// instruction set; see tables.cpp.
#pragma once

#if defined(__aarch64__)
#include <arm_neon.h>
#endif

#include <chrono>

#include "table_tiles.hpp"

namespace htaf::HTAF_NAMESPACE {
namespace {

#if !defined(__AVX512VBMI__) && (defined(__AVX2__) || defined(__aarch64__))
#define HTAF_BYTES_LOOK_UP
#if defined(__AVX2__)
typedef std::uint8_t bytes __attribute__((vector_size(32)));
typedef std::uint16_t words __attribute__((vector_size(32)));
#else
typedef std::uint8_t bytes __attribute__((vector_size(16)));
typedef std::uint16_t words __attribute__((vector_size(16)));
#endif

// Bytes of a table of 16; indices beyond, which pixels that nobody asked for may have, give any byte.
HTAF_INLINE bytes look_up(const void* table, bytes i) {
#if defined(__AVX2__)
    return (bytes)_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(read<__m128i>(table)), (__m256i)i);
#else
    return (bytes)vqtbl1q_u8((uint8x16_t)read<bytes>(table), (uint8x16_t)i);
#endif
}
// Adds numbers of these lower and upper bytes, in every 16 the first 8 to a, the others to b.
HTAF_INLINE void interleave(bytes low, bytes high, words& a, words& b) {
#if defined(__AVX2__)
    a += (words)_mm256_unpacklo_epi8((__m256i)low, (__m256i)high);
    b += (words)_mm256_unpackhi_epi8((__m256i)low, (__m256i)high);
#else
    a += (words)vzip1q_u8((uint8x16_t)low, (uint8x16_t)high);
    b += (words)vzip2q_u8((uint8x16_t)low, (uint8x16_t)high);
#endif
}
#endif

// int16, int8: 64 sums of the subsets of 6 inputs, each of two entries of 8; indices are bytes, or as wide as entries.
template <class Entry>
struct Integers {
    static constexpr bool wide = sizeof(Entry) == 2;
    using index = std::uint8_t;
    using entry = Entry;
#if defined(__AVX512VBMI__)
    using gathered = Entry;
#else
    using gathered = std::uint8_t;
#endif
    static constexpr size_t bits_each = 6;
    // Sixes whose sums fit an entry are 16 (int16) or 2 (int8); so many are made together, and their sums fit 16 bits.
    static constexpr size_t sixes = wide ? 16 : 64;
#if defined(__AVX512VBMI__)
    static constexpr size_t lanes = wide ? 32 : 64, outputs = 4;
#else
#if defined(HTAF_BYTES_LOOK_UP)
    static constexpr size_t lanes = sizeof(bytes), outputs = 1;
#else
    static constexpr size_t lanes = 64, outputs = 1;
#endif
#endif
    static constexpr size_t scratch = sixes * outputs * 64;

    static constexpr index none = 0;

    static size_t fields(size_t channels) { return channels / 64 * 11 + (channels % 64 + 5) / 6; }
    static index of(std::uint64_t bits) { return static_cast<index>(bits); }

    static float finished(const Tables& t, size_t o, std::int32_t sum) {
        return static_cast<float>(sum - t.bias[o]) * t.unit[o];
    }

    template <class Layer>
    static void add_few(const Layer& l, const Tables& t, size_t first, size_t count, const gathered* indices, size_t stride,
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
    static void add(const Layer& l, const Tables& t, size_t first, size_t, const std::uint8_t* indices, size_t stride,
                    size_t n, Entry*, float* sums) {
        size_t flat = l.flat();
        const Entry* values = static_cast<const Entry*>(t.values) + first * flat * 16;
        for (size_t p = 0; p < n; p += lanes) {
            std::int32_t total[lanes] = {};
#if !defined(HTAF_BYTES_LOOK_UP)
            for (size_t g = 0; g < flat; ++g) {
                const std::uint8_t* i = indices + g * stride + p;
                Entry table[64];
                for (size_t k = 0; k < 64; ++k)
                    table[k] = static_cast<Entry>(values[g * 16 + k % 8] + values[g * 16 + 8 + k / 8]);
                for (size_t j = 0; j < lanes; ++j) total[j] += table[i[j] % 64];
            }
#else
            // both bytes of 16-bit entries are looked up by themselves, as a table has 16 bytes
            for (size_t from = 0; from < flat; from += sixes) {
                words a = {}, b = {};
                for (size_t g = from; g < std::min(flat, from + sixes); ++g) {
                    auto i = read<bytes>(indices + g * stride + p);
                    const Entry* table = values + g * 16;
                    if constexpr (wide) {
                        interleave(look_up(table, (i & 7) << 1), look_up(table, ((i & 7) << 1) | 1), a, b);
                        interleave(look_up(table + 8, (i >> 3) << 1), look_up(table + 8, ((i >> 3) << 1) | 1), a, b);
                    } else {
                        auto both = reinterpret_cast<words>(look_up(table, i & 7) + look_up(table, (i >> 3) | 8));
                        a += both & 0xff;
                        b += both >> 8;
                    }
                }
                constexpr size_t half = lanes / 2;
                for (size_t j = 0; j < half; ++j) {  // int16: 8 and 8 pixels in turn; int8: the even and the odd ones
                    total[wide ? j / 8 * 16 + j % 8 : 2 * j] += a[j];
                    total[wide ? j / 8 * 16 + 8 + j % 8 : 2 * j + 1] += b[j];
                }
            }
#endif
            for (size_t j = 0; j < std::min(lanes, n - p); ++j) sums[p + j] = finished(t, first, total[j]);
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
            case TableKind::fours: {
                each = 2 * 64 * 4;
                const __m512i ones = _mm512_set1_epi8(1);
                run([&](__m512i s) __attribute__((always_inline)) {
                    return _mm512_dpbusd_epi32(s, _mm512_permutexvar_epi8(i, table), ones);
                });
                break;
            }
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
