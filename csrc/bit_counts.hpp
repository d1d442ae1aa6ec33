// Matrices of packed bits: turned on their side, and multiplied (popcount of the and of two rows).
// Included once per instruction set; see CMakeLists.txt.
#pragma once

#include <cstring>

#include "loops.hpp"
#if defined(__ARM_NEON)
#include <arm_neon.h>
#endif

namespace htaf::HTAF_NAMESPACE {
namespace {

// Processors with AVX-512 that lack this one instruction count with the kernel for AVX2.
#if defined(__AVX512F__)
#define HTAF_COUNTING __attribute__((target("avx512vpopcntdq")))
#else
#define HTAF_COUNTING
#endif

typedef std::uint64_t words __attribute__((vector_size(4 * HTAF_LANES)));
constexpr size_t word_bytes = sizeof(words);

// How many bits of each lane are set; all lanes are added in the end.
HTAF_COUNTING HTAF_INLINE words ones(words v) {
#if defined(__AVX512F__)
    return (words)_mm512_popcnt_epi64((__m512i)v);
#elif defined(__AVX2__)
    const __m256i of = _mm256_setr_epi8(0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4,  //
                                        0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4);
    const __m256i low = _mm256_set1_epi8(15);
    __m256i a = _mm256_shuffle_epi8(of, _mm256_and_si256((__m256i)v, low));
    __m256i b = _mm256_shuffle_epi8(of, _mm256_and_si256(_mm256_srli_epi16((__m256i)v, 4), low));
    return (words)_mm256_sad_epu8(_mm256_add_epi8(a, b), _mm256_setzero_si256());
#elif defined(__ARM_NEON)
    return (words)vpaddlq_u32(vpaddlq_u16(vpaddlq_u8(vcntq_u8((uint8x16_t)v))));
#else
    v = v - (v >> 1 & 0x5555555555555555);
    v = (v & 0x3333333333333333) + (v >> 2 & 0x3333333333333333);
    v = (v + (v >> 4)) & 0x0f0f0f0f0f0f0f0f;
    v = v + (v >> 8);
    v = v + (v >> 16);
    return (v + (v >> 32)) & 127;
#endif
}

#if defined(__AVX512F__) || defined(__ARM_NEON)
constexpr size_t tile = 4;  // rows by rows in registers, of which there are 32
#else
constexpr size_t tile = 2;
#endif
constexpr size_t band = 32;     // rows that are worked on by one thread at a time, by as many
constexpr size_t depth = 4096;  // bytes of each of these rows: both bands fit into a cache of the second level

HTAF_COUNTING HTAF_INLINE words word_at(const std::uint8_t* p) {
    words v;
    std::memcpy(&v, p, sizeof v);
    return v;
}

// sums[i][j] += the common bits of one register's bytes at a[i] and b[j], behind the first `at`.
HTAF_COUNTING HTAF_INLINE void add_common(const std::uint8_t* const* a, const std::uint8_t* const* b, size_t at,
                                          words (&sums)[tile][tile]) {
    words u[tile];
    for (size_t i = 0; i < tile; ++i) u[i] = word_at(a[i] + at);
    for (size_t j = 0; j < tile; ++j) {
        words v = word_at(b[j] + at);
        for (size_t i = 0; i < tile; ++i) sums[i][j] += ones(u[i] & v);
    }
}

// counts[i][j] = the common bits of n bytes at a[i] and b[j].
HTAF_COUNTING void count_tile(const std::uint8_t* const* a, const std::uint8_t* const* b, size_t n,
                              std::int64_t (*counts)[tile]) {
    words sums[tile][tile] = {};
    size_t at = 0;
    for (; at + word_bytes <= n; at += word_bytes) add_common(a, b, at, sums);
    if (at < n) {  // the last bytes, filled up with 0
        std::uint8_t rest[2][tile][word_bytes] = {};
        const std::uint8_t *left[tile], *right[tile];
        for (size_t i = 0; i < tile; ++i) {
            std::copy_n(a[i] + at, n - at, rest[0][i]);
            std::copy_n(b[i] + at, n - at, rest[1][i]);
            left[i] = rest[0][i];
            right[i] = rest[1][i];
        }
        add_common(left, right, 0, sums);
    }
    for (size_t i = 0; i < tile; ++i)
        for (size_t j = 0; j < tile; ++j) {
            counts[i][j] = 0;
            for (size_t k = 0; k < word_bytes / 8; ++k) counts[i][j] += static_cast<std::int64_t>(sums[i][j][k]);
        }
}

// counts [m, n] of rows of `bytes` bytes: the bits that row i of a and row j of b share.
void count_common(const std::uint8_t* a, const std::uint8_t* b, std::int64_t* counts, size_t m, size_t n, size_t bytes,
                  int threads) {
#if defined(__AVX512F__)
    static const bool here = __builtin_cpu_supports("avx512vpopcntdq");
    if (!here) return avx2.count_common(a, b, counts, m, n, bytes, threads);
#endif
    bool same = a == b && m == n;  // then the counts are symmetric
    size_t across = blocks(n, band);
    std::fill_n(counts, m * n, 0);
    parallel(blocks(m, band) * across, threads, [&](size_t begin, size_t end) {
        for (size_t piece = begin; piece < end; ++piece) {
            size_t first = piece / across * band, second = piece % across * band;
            if (same && second < first) continue;
            size_t rows = std::min(m, first + band), columns = std::min(n, second + band);
            for (size_t from = 0; from < bytes; from += depth)
                for (size_t i = first; i < rows; i += tile)
                    for (size_t j = second; j < columns; j += tile) {
                        if (same && j + tile <= i) continue;
                        const std::uint8_t *left[tile], *right[tile];
                        for (size_t k = 0; k < tile; ++k) {  // past the end the last row once more, not added below
                            left[k] = a + std::min(i + k, m - 1) * bytes + from;
                            right[k] = b + std::min(j + k, n - 1) * bytes + from;
                        }
                        std::int64_t found[tile][tile];
                        count_tile(left, right, std::min(depth, bytes - from), found);
                        for (size_t k = 0; k < std::min(tile, rows - i); ++k)
                            for (size_t l = 0; l < std::min(tile, columns - j); ++l)
                                counts[(i + k) * n + j + l] += found[k][l];
                    }
        }
    });
    if (same)
        for (size_t i = 1; i < m; ++i)
            for (size_t j = 0; j < i; ++j) counts[i * n + j] = counts[j * n + i];
}

// Bit b of each of the first `together` bytes at p, as a number that holds the first byte's bit lowest.
#if defined(__AVX512BW__)
constexpr size_t together = 64;
inline std::uint64_t bit_of_each(const std::uint8_t* p, int b) {
    return _mm512_test_epi8_mask(_mm512_loadu_si512(p), _mm512_set1_epi8(static_cast<char>(1 << b)));
}
#elif defined(__AVX2__)
constexpr size_t together = 32;
inline std::uint64_t bit_of_each(const std::uint8_t* p, int b) {
    __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return static_cast<std::uint32_t>(_mm256_movemask_epi8(_mm256_sll_epi16(v, _mm_cvtsi32_si128(7 - b))));
}
#else
constexpr size_t together = 8;
inline std::uint64_t bit_of_each(const std::uint8_t* p, int b) {
    std::uint64_t bytes;
    std::memcpy(&bytes, p, 8);  // little-endian, as every machine this runs on
    return (bytes >> b & 0x0101010101010101) * 0x0102040810204080 >> 56;
}
#endif

// turned [columns, ceil(rows / 8)] from bits [rows, ceil(columns / 8)].
void transpose(const std::uint8_t* bits, std::uint8_t* turned, size_t rows, size_t columns, int threads) {
    constexpr size_t group = 512;  // rows that make a line of the cache in each row of the result
    size_t bytes = blocks(columns, 8), turned_bytes = blocks(rows, 8);
    parallel(blocks(rows, group), threads, [&](size_t begin, size_t end) {
        for (size_t first = begin * group; first < std::min(rows, end * group); first += group) {
            size_t n = std::min(group, rows - first);
            for (size_t byte = 0; byte < bytes; ++byte) {
                std::uint8_t column[group] = {};
                for (size_t i = 0; i < n; ++i) column[i] = bits[(first + i) * bytes + byte];
                std::uint8_t* to = turned + 8 * byte * turned_bytes + first / 8;
                int wanted = static_cast<int>(std::min<size_t>(8, columns - 8 * byte));
                for (size_t i = 0; i < n; i += together)
                    for (int b = 0; b < wanted; ++b) {
                        std::uint64_t found = bit_of_each(column + i, b);
                        std::uint8_t* here = to + b * turned_bytes + i / 8;
                        if (n - i >= together) std::memcpy(here, &found, together / 8);  // of known length: one store
                        else std::memcpy(here, &found, blocks(n - i, 8));
                    }
            }
        }
    });
}

}  // namespace
}  // namespace htaf::HTAF_NAMESPACE
