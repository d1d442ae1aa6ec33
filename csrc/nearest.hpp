// The rows of packed bits that differ least from each of many queries: every row is read from memory once for all of them.
// Included once per instruction set, behind bit_counts.hpp; see CMakeLists.txt.
#pragma once

#include <limits>
#include <mutex>

#include "bit_counts.hpp"

namespace htaf::HTAF_NAMESPACE {
namespace {

constexpr size_t across = word_bytes / 8;  // rows in a register, a word of 8 bytes of each
constexpr size_t panel = 16384;            // bytes of rows turned on their side at once: they stay in the first-level cache

struct Near {
    std::int64_t distance, row;
};

// Whether a comes behind b: it is further away, or as far and of a higher row number.
HTAF_INLINE bool behind(const Near& a, const Near& b) {
    return a.distance != b.distance ? a.distance > b.distance : a.row > b.row;
}

// Puts `found` in the place of the last of k, which is the first of a heap.
inline void replace_last(Near* heap, size_t k, Near found) {
    size_t i = 0;
    for (size_t child = 1; child < k; child = 2 * i + 1) {
        if (child + 1 < k && behind(heap[child + 1], heap[child])) ++child;
        if (!behind(heap[child], found)) break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = found;
}

// Counts of the bits of v, in lanes that hold the sum of `deep` of them; `widened` adds lanes up to 64 bits.
#if (defined(__AVX2__) && !defined(__AVX512F__)) || defined(__ARM_NEON)
typedef std::uint8_t counts_of_bytes __attribute__((vector_size(sizeof(words))));
constexpr size_t deep = 31;  // 8 bits each: at most 248
HTAF_INLINE words some_ones(words v, words sum) {
#if defined(__AVX2__)
    const __m256i of = _mm256_setr_epi8(0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4,  //
                                        0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4);
    const __m256i low = _mm256_set1_epi8(15);
    __m256i a = _mm256_shuffle_epi8(of, _mm256_and_si256((__m256i)v, low));
    __m256i b = _mm256_shuffle_epi8(of, _mm256_and_si256(_mm256_srli_epi16((__m256i)v, 4), low));
    return (words)_mm256_add_epi8((__m256i)sum, _mm256_add_epi8(a, b));
#else
    return (words)vaddq_u8((uint8x16_t)sum, vcntq_u8((uint8x16_t)v));
#endif
}
HTAF_INLINE words widened(words v) {
#if defined(__AVX2__)
    return (words)_mm256_sad_epu8((__m256i)v, _mm256_setzero_si256());
#else
    return (words)vpaddlq_u32(vpaddlq_u16(vpaddlq_u8((uint8x16_t)v)));
#endif
}
#else
constexpr size_t deep = 1 << 20;
HTAF_COUNTING HTAF_INLINE words some_ones(words v, words sum) { return sum + ones(v); }
HTAF_COUNTING HTAF_INLINE words widened(words v) { return v; }
#endif

// Whether any lane of v, whose numbers are small, is below the limit.
HTAF_COUNTING HTAF_INLINE bool any_below(words v, std::int64_t limit) {
#if defined(__AVX512F__)
    return _mm512_cmplt_epi64_mask((__m512i)v, _mm512_set1_epi64(limit));
#elif defined(__AVX2__)
    return _mm256_movemask_epi8(_mm256_cmpgt_epi64(_mm256_set1_epi64x(limit), (__m256i)v));
#else
    bool found = false;
    for (size_t i = 0; i < across; ++i) found = found || static_cast<std::int64_t>(v[i]) < limit;
    return found;
#endif
}

// A query's heap against `groups` registers' worth of rows turned on their side, the first of which is `row`. Words: how
// many there are, where the compiler is to know it, else 0.
template <size_t Words>
HTAF_COUNTING void against(const std::uint64_t* turned, size_t groups, const std::uint64_t* query, size_t several,
                           Near* heap, size_t k, std::int64_t bound, std::int64_t row, std::int64_t end) {
    const size_t n = Words ? Words : several;
    std::int64_t limit = std::min(bound, heap->distance);
    for (size_t g = 0; g < groups; ++g, row += across, turned += n * across) {
        words sum = {};
        for (size_t from = 0; from < n; from += deep) {
            words some = {};
            for (size_t w = from; w < std::min(n, from + deep); ++w)
                some = some_ones(word_at(reinterpret_cast<const std::uint8_t*>(turned + w * across)) ^ query[w], some);
            sum += widened(some);
        }
        if (!any_below(sum, limit)) continue;
        for (size_t i = 0; i < across; ++i) {
            Near found = {static_cast<std::int64_t>(sum[i]), row + static_cast<std::int64_t>(i)};
            if (found.distance >= limit || found.row >= end) continue;  // rows ascend: an equal one comes behind
            replace_last(heap, k, found);
            limit = std::min(bound, heap->distance);
        }
    }
}

// Rows [begin, end) of `rows`, `bytes` each, as words of 64 bits on their side: word w of row i of a group of `across`.
inline void turn(const std::uint8_t* rows, size_t begin, size_t end, size_t bytes, std::uint64_t* turned) {
    size_t n = blocks(bytes, 8), whole = bytes / 8;
    for (size_t row = begin; row < end; ++row) {
        const std::uint8_t* from = rows + row * bytes;
        std::uint64_t* to = turned + (row - begin) / across * across * n + (row - begin) % across;
        for (size_t w = 0; w < whole; ++w) std::memcpy(to + w * across, from + 8 * w, 8);
        if (whole < n) {
            to[whole * across] = 0;
            std::memcpy(to + whole * across, from + 8 * whole, bytes % 8);
        }
    }
}

// From `distances` and `rows` [queries, k], by distance, then row; row -1: none yet, which come last. They become those of
// the k nearest of these and of n rows at `bits`, whose numbers begin with `first`.
void nearest(const std::uint8_t* bits, size_t n, size_t bytes, const std::uint8_t* queries, size_t count, size_t k,
             std::int64_t first, std::int32_t* distances, std::int64_t* rows, int threads) {
#if defined(__AVX512F__)
    static const bool here = __builtin_cpu_supports("avx512vpopcntdq");
    if (!here) return avx2.nearest(bits, n, bytes, queries, count, k, first, distances, rows, threads);
#endif
    if (!n || !count || !k) return;
    constexpr Near none = {std::numeric_limits<std::int64_t>::max(), std::numeric_limits<std::int64_t>::max()};
    size_t words_each = blocks(bytes, 8);
    size_t at_once = std::max<size_t>(1, panel / std::max<size_t>(1, word_bytes * words_each)) * across;
    Buffer<std::uint64_t> asked(count * words_each + 1);
    for (size_t q = 0; q < count; ++q) std::memcpy(&asked[0] + q * words_each, queries + q * bytes, bytes);
    std::mutex merging;
    parallel(blocks(n, at_once), threads, [&](size_t begin, size_t end) {
        Buffer<Near> heaps(count * k);
        for (size_t i = 0; i < count * k; ++i) heaps[i] = none;
        Buffer<std::int64_t> bounds(count);  // of what is known already: what is further is of no use
        {
            std::lock_guard guard(merging);
            for (size_t q = 0; q < count; ++q)
                bounds[q] = rows[q * k + k - 1] < 0 ? none.distance : std::int64_t{distances[q * k + k - 1]} + 1;
        }
        Buffer<std::uint64_t> room(at_once * words_each + 8);
        std::uint64_t* turned = &room[0];
        while (reinterpret_cast<std::uintptr_t>(turned) % word_bytes) ++turned;  // no register across two lines
        size_t last = std::min(n, end * at_once);
        for (size_t row = begin * at_once; row < last; row += at_once) {
            size_t stop = std::min(last, row + at_once);
            turn(bits, row, stop, bytes, turned);
            auto* compare = words_each == 8    ? against<8>
                            : words_each == 16 ? against<16>
                            : words_each == 4  ? against<4>
                                               : against<0>;
            for (size_t q = 0; q < count; ++q)
                compare(turned, blocks(stop - row, across), &asked[0] + q * words_each, words_each, &heaps[q * k], k,
                        bounds[q], first + static_cast<std::int64_t>(row), first + static_cast<std::int64_t>(stop));
        }
        std::lock_guard guard(merging);
        for (size_t q = 0; q < count; ++q) {
            Near* heap = &heaps[q * k];
            for (size_t i = q * k; i < (q + 1) * k; ++i)
                if (Near known = {distances[i], rows[i]}; known.row >= 0 && behind(heap[0], known))
                    replace_last(heap, k, known);
            std::sort(heap, heap + k, [](const Near& a, const Near& b) { return behind(b, a); });
            for (size_t i = 0; i < k; ++i) {
                bool there = heap[i].row != none.row;
                distances[q * k + i] = there ? static_cast<std::int32_t>(heap[i].distance) : -1;
                rows[q * k + i] = there ? heap[i].row : -1;
            }
        }
    });
}

#undef HTAF_COUNTING

}  // namespace
}  // namespace htaf::HTAF_NAMESPACE
