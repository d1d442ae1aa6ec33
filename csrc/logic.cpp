// A circuit of truth tables, bit-sliced: a vector holds one bit of many rows, so that one operation computes it for all of them.
// Compiled once per instruction set: see CMakeLists.txt.
#include "logic.hpp"

#include "loops.hpp"

namespace htaf::HTAF_NAMESPACE {
namespace {

typedef std::uint64_t words __attribute__((vector_size(4 * HTAF_LANES)));
constexpr size_t slices = HTAF_LANES / 2;     // words of 64 rows in a vector
constexpr size_t block_rows = 64 * slices;
constexpr int most_counters = 24;             // bits of a count

// The bits of 64 values of a row: value i >= threshold i.
template <class T>
HTAF_INLINE std::uint64_t reached(const T* x, const T* thresholds) {
    std::uint64_t found = 0;
#if defined(__AVX512F__)
    if constexpr (sizeof(T) == 1) return _mm512_cmpge_epu8_mask(_mm512_loadu_si512(x), _mm512_loadu_si512(thresholds));
    for (int i = 0; i < 64; i += 16) {
        std::uint64_t some;
        if constexpr (std::is_same_v<T, float>)
            some = _mm512_cmp_ps_mask(_mm512_loadu_ps(x + i), _mm512_loadu_ps(thresholds + i), _CMP_GE_OQ);
        else some = _mm512_cmpge_epi32_mask(_mm512_loadu_si512(x + i), _mm512_loadu_si512(thresholds + i));
        found |= some << i;
    }
#elif defined(__AVX2__)
    if constexpr (sizeof(T) == 1) {
        for (int i = 0; i < 64; i += 32) {
            __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + i));
            __m256i t = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(thresholds + i));
            std::uint32_t some = _mm256_movemask_epi8(_mm256_cmpeq_epi8(_mm256_max_epu8(v, t), v));
            found |= static_cast<std::uint64_t>(some) << i;
        }
        return found;
    }
    for (int i = 0; i < 64; i += 8) {
        std::uint64_t some;
        if constexpr (std::is_same_v<T, float>)
            some = _mm256_movemask_ps(_mm256_cmp_ps(_mm256_loadu_ps(x + i), _mm256_loadu_ps(thresholds + i), _CMP_GE_OQ));
        else {
            __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + i));
            __m256i t = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(thresholds + i));
            some = ~_mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpgt_epi32(t, v))) & 255;
        }
        found |= some << i;
    }
#else
    for (int i = 0; i < 64; ++i) found |= static_cast<std::uint64_t>(x[i] >= thresholds[i]) << i;
#endif
    return found;
}

// 64 x 64 bits in each slice: bit i of word k becomes bit k of word i.
void turn(words* a) {
    std::uint64_t mask = 0xffffffffu;
    for (int j = 32; j; j >>= 1, mask ^= mask << j)
        for (int k = 0; k < 64; k = ((k | j) + 1) & ~j) {
            words t = (a[k] >> j ^ a[k + j]) & mask;
            a[k + j] ^= t;
            a[k] ^= t << j;
        }
}

HTAF_INLINE words choose(words by, words on, words off) {
#if defined(__AVX512F__)
    return (words)_mm512_ternarylogic_epi64((__m512i)by, (__m512i)on, (__m512i)off, 0xca);
#else
    return (on & by) | (off & ~by);
#endif
}
HTAF_INLINE words odd(words a, words b, words c) {
#if defined(__AVX512F__)
    return (words)_mm512_ternarylogic_epi64((__m512i)a, (__m512i)b, (__m512i)c, 0x96);
#else
    return a ^ b ^ c;
#endif
}
HTAF_INLINE words most_of(words a, words b, words c) {
#if defined(__AVX512F__)
    return (words)_mm512_ternarylogic_epi64((__m512i)a, (__m512i)b, (__m512i)c, 0xe8);
#else
    return (a & b) | (c & (a ^ b));
#endif
}

// The 16 functions of the first two inputs, of which the entries name one for each value of the other four; these choose.
HTAF_INLINE words table(const words* planes, const std::int32_t* inputs, std::uint64_t entries) {
    words a = planes[inputs[0]], b = planes[inputs[1]], none{}, both = a & b, one = a ^ b;
    words of[16] = {none, ~(a | b), a & ~b, ~b, b & ~a, ~a, one, ~both, both, ~one, a, a | ~b, b, b | ~a, a | b, ~none};
    words left[8], by = planes[inputs[2]];
    for (int i = 0; i < 8; ++i) left[i] = choose(by, of[entries >> (8 * i + 4) & 15], of[entries >> 8 * i & 15]);
    for (int k = 3, n = 4; k < 6; ++k, n /= 2) {
        by = planes[inputs[k]];
        for (int i = 0; i < n; ++i) left[i] = choose(by, left[2 * i + 1], left[2 * i]);
    }
    return left[0];
}

// How many of n planes are 1, as the bits of a number: counter k holds bit k. Returns how many bits there are.
int count(const words* planes, size_t n, words* counters) {
    words waiting[most_counters];
    std::uint32_t is_waiting = 0;
    int top = 0;
    auto add = [&](words carry, int k) {
        for (;; ++k) {
            if (k == top) counters[top++] = words{};
            if (!(is_waiting >> k & 1)) {
                waiting[k] = carry;
                is_waiting |= 1u << k;
                return;
            }
            is_waiting &= ~(1u << k);
            words up = most_of(counters[k], waiting[k], carry);
            counters[k] = odd(counters[k], waiting[k], carry);
            carry = up;
        }
    };
    for (size_t i = 0; i < n; ++i) add(planes[i], 0);
    for (int k = 0; k < top; ++k)
        if (is_waiting >> k & 1) {
            is_waiting &= ~(1u << k);
            words up = counters[k] & waiting[k];
            counters[k] ^= waiting[k];
            if (k + 1 < top || n >> (k + 1)) add(up, k + 1);
        }
    return top;
}

template <class T>
void run_rows(const Circuit& c, const T* x, std::int32_t* counts, size_t rows, words* planes) {
    for (size_t chunk = 0; chunk < c.chunks; ++chunk) {
        size_t from = static_cast<size_t>(c.first[chunk]), n = std::min<size_t>(64, c.columns - from);
        const T* thresholds = static_cast<const T*>(c.thresholds) + 64 * chunk;
        auto* to = reinterpret_cast<std::uint64_t*>(planes + 64 * chunk);  // row 64 s + i is word i of slice s
        for (size_t r = 0; r < block_rows; ++r) {
            T some[64] = {};
            const T* at = x + r * c.columns + from;
            if (r < rows && n < 64) at = static_cast<const T*>(std::copy_n(at, n, some) - n);
            to[r % 64 * slices + r / 64] = r < rows ? reached(at, thresholds) : 0;
        }
        turn(planes + 64 * chunk);
    }
    words* made = planes + 64 * c.chunks;
    for (size_t t = 0; t < c.tables; ++t) made[t] = table(planes, c.inputs + 6 * t, c.entries[t]);
    for (size_t g = 0; g < c.groups; ++g) {
        words counters[most_counters];
        int bits = count(made + c.tables - (c.groups - g) * c.size, c.size, counters);
        for (size_t r = 0; r < rows; ++r) {
            std::int32_t total = 0;
            for (int k = 0; k < bits; ++k) total |= static_cast<std::int32_t>(counters[k][r / 64] >> r % 64 & 1) << k;
            counts[r * c.groups + g] = total;
        }
    }
}

void run(const Circuit& c, const void* x, std::int32_t* counts, size_t rows, int threads) {
    parallel(blocks(rows, block_rows), threads, [&](size_t begin, size_t end) {
        Buffer<std::uint8_t> held((64 * c.chunks + c.tables + 1) * sizeof(words));
        auto first = (reinterpret_cast<std::uintptr_t>(&held[0]) + sizeof(words) - 1) / sizeof(words) * sizeof(words);
        auto* planes = reinterpret_cast<words*>(first);
        for (size_t b = begin; b < end; ++b) {
            size_t from = b * block_rows, n = std::min(block_rows, rows - from);
            std::int32_t* to = counts + from * c.groups;
            switch (c.type) {
                case Column::uint8: run_rows(c, static_cast<const std::uint8_t*>(x) + from * c.columns, to, n, planes); break;
                case Column::int32: run_rows(c, static_cast<const std::int32_t*>(x) + from * c.columns, to, n, planes); break;
                case Column::float32: run_rows(c, static_cast<const float*>(x) + from * c.columns, to, n, planes); break;
            }
        }
    });
}

}  // namespace

extern const LogicKernels logic;
const LogicKernels logic = {run};

}  // namespace htaf::HTAF_NAMESPACE
