// Sums of a few outputs of a block of pixels by tables of the sums of four weights. Included once per instruction set; see
// tables.cpp.
#pragma once

#include "table_integers.hpp"

namespace htaf::HTAF_NAMESPACE {
namespace {

#if defined(__AVX512VBMI__) && defined(__AVX512VNNI__)
#define HTAF_FOURS
#endif

// fours: a register holds the sums of the subsets of 4 weights, 16 bytes each, of 16 inputs. The index of a pixel has a byte
// for each four: a permutation finds four sums of 16 pixels, and one instruction adds them to its sum of 32 bits.
struct Fours {
    using index = std::uint32_t;
    using gathered = std::uint32_t;
    using entry = std::uint8_t;
    static constexpr size_t bits_each = 16, lanes = 16, outputs = 4, scratch = 1;
    static constexpr index none = 0x30201000;  // what no input is: the first sum of each four

    static size_t fields(size_t channels) { return (channels + 15) / 16; }

    static index of(std::uint64_t bits) {
        auto x = static_cast<std::uint32_t>(bits);
        x = (x | x << 8) & 0x00ff00ff;
        return ((x | x << 4) & 0x0f0f0f0f) | none;
    }

#if defined(HTAF_FOURS)
    // to[f][i]: the indices of 8 pixels and their field f, of words of 64 channels.
    static HTAF_INLINE void eight(__m512i pixels, size_t count, index* to, size_t plane) {
        auto spread = [](__m256i x, int by, int mask) __attribute__((always_inline)) {
            return _mm256_and_si256(_mm256_or_si256(x, _mm256_slli_epi32(x, by)), _mm256_set1_epi32(mask));
        };
        for (size_t f = 0; f < count; ++f, pixels = _mm512_srli_epi64(pixels, 16)) {
            __m256i x = _mm256_and_si256(_mm512_cvtepi64_epi32(pixels), _mm256_set1_epi32(0xffff));
            x = spread(spread(x, 8, 0x00ff00ff), 4, 0x0f0f0f0f);
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + f * plane), _mm256_or_si256(x, _mm256_set1_epi32(none)));
        }
    }

    template <int R>
    static void tile(const index* indices, size_t index_stride, const entry* const* tables, size_t flat, __m512i (*sums)[R]) {
        const __m512i ones = _mm512_set1_epi8(1);
        __m512i total[outputs][R] = {};
        for (size_t k = 0; k < flat; ++k, indices += index_stride) {
            __m512i i[R];
            HTAF_UNROLL for (int r = 0; r < R; ++r) i[r] = _mm512_loadu_si512(indices + r * lanes);
            HTAF_UNROLL for (size_t o = 0; o < outputs; ++o) {
                __m512i table = _mm512_loadu_si512(tables[o] + k * 64);
                HTAF_UNROLL for (int r = 0; r < R; ++r)
                    total[o][r] = _mm512_dpbusd_epi32(total[o][r], _mm512_permutexvar_epi8(i[r], table), ones);
            }
        }
        HTAF_UNROLL for (size_t o = 0; o < outputs; ++o)
            HTAF_UNROLL for (int r = 0; r < R; ++r) sums[o][r] = total[o][r];
    }

    template <int R>
    static size_t tiles(const Tables& t, size_t first, size_t count, size_t flat, const index* indices, size_t stride, size_t p,
                        size_t n, float* sums) {
        const entry* tables[outputs];
        for (size_t o = 0; o < outputs; ++o)  // of outputs that are not there, one that is
            tables[o] = static_cast<const entry*>(t.values) + (first + std::min(o, count - 1)) * flat * 64;
        for (; p + (R - 1) * lanes < n; p += R * lanes) {
            __m512i found[outputs][R];
            tile<R>(indices + p, stride, tables, flat, found);
            for (size_t o = 0; o < count; ++o)
                HTAF_UNROLL for (int r = 0; r < R; ++r) {
                    __m512i sum = _mm512_sub_epi32(found[o][r], _mm512_set1_epi32(t.bias[first + o]));
                    _mm512_storeu_ps(sums + o * stride + p + r * lanes, _mm512_cvtepi32_ps(sum));
                }
        }
        return p;
    }

    template <class Layer>
    static void add(const Layer& l, const Tables& t, size_t first, size_t count, const index* indices, size_t stride, size_t n,
                    entry*, float* sums) {
        size_t flat = l.flat();
        size_t p = tiles<5>(t, first, count, flat, indices, stride, 0, n, sums);
        p = tiles<4>(t, first, count, flat, indices, stride, p, n, sums);
        p = tiles<3>(t, first, count, flat, indices, stride, p, n, sums);
        p = tiles<2>(t, first, count, flat, indices, stride, p, n, sums);
        tiles<1>(t, first, count, flat, indices, stride, p, n, sums);
    }
#else
    template <class Layer>
    static void add(const Layer& l, const Tables& t, size_t first, size_t count, const index* indices, size_t stride, size_t n,
                    entry*, float* sums) {
        size_t flat = l.flat();
        for (size_t o = 0; o < count; ++o) {
            const entry* table = static_cast<const entry*>(t.values) + (first + o) * flat * 64;
            for (size_t p = 0; p < n; ++p) {
                std::int32_t sum = -t.bias[first + o];
                for (size_t k = 0; k < flat; ++k)
                    for (int g = 0; g < 32; g += 8) sum += table[k * 64 + (indices[k * stride + p] >> g & 63)];
                sums[o * stride + p] = static_cast<float>(sum);
            }
        }
    }
#endif

    template <class Layer>
    static void add_few(const Layer& l, const Tables& t, size_t first, size_t count, const index* indices, size_t stride, size_t n,
                        float* sums) {
        add(l, t, first, count, indices, stride, n, nullptr, sums);
    }
};

}  // namespace
}  // namespace htaf::HTAF_NAMESPACE
