// A circuit of truth tables, bit-sliced: a vector holds one bit of many rows, and one operation computes it for all of them.
// Compiled once per instruction set: see CMakeLists.txt.
#include "logic.hpp"

#include <bit>
#include <limits>
#include <numeric>

#include "loops.hpp"

namespace htaf::HTAF_NAMESPACE {
namespace {

typedef std::uint64_t words __attribute__((vector_size(4 * HTAF_LANES)));
constexpr size_t slices = HTAF_LANES / 2;     // words of 64 rows in a vector
constexpr size_t block_rows = 64 * slices;
constexpr int most_counters = 25;             // bits of a count, and a last carry
constexpr std::int32_t unread = std::numeric_limits<std::int32_t>::min();  // the threshold of a plane that nothing reads
constexpr size_t few_rows = 8;                // that are quicker one by one

// The bits of 64 values: value i >= threshold i.
template <class T>
HTAF_INLINE std::uint64_t reached(const T* x, const T* thresholds) {
    std::uint64_t found = 0;
#if defined(__AVX512F__)
    if constexpr (sizeof(T) == 1) return _mm512_cmpge_epu8_mask(_mm512_loadu_si512(x), _mm512_loadu_si512(thresholds));
    for (int i = 0; i < 64; i += 16) {
        std::uint64_t some = _mm512_cmpge_epi32_mask(_mm512_loadu_si512(x + i), _mm512_loadu_si512(thresholds + i));
        found |= some << i;
    }
#elif defined(__AVX2__)
    for (int i = 0; i < 64; i += 32 / sizeof(T)) {
        __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + i));
        __m256i t = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(thresholds + i));
        std::uint32_t some;
        if constexpr (sizeof(T) == 1) some = _mm256_movemask_epi8(_mm256_cmpeq_epi8(_mm256_max_epu8(v, t), v));
        else some = ~_mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpgt_epi32(t, v))) & 255;
        found |= static_cast<std::uint64_t>(some) << i;
    }
#else
    for (int i = 0; i < 64; ++i) found |= static_cast<std::uint64_t>(x[i] >= thresholds[i]) << i;
#endif
    return found;
}

HTAF_INLINE words choose(words by, words on, words off) {
#if defined(__AVX512F__)
    return (words)_mm512_ternarylogic_epi64((__m512i)by, (__m512i)on, (__m512i)off, 0xca);
#else
    return (on & by) | (off & ~by);
#endif
}
// Three levels of a transposition: of the bits whose places differ by 4 j, 2 j and j, in eight words `stride` apart.
template <int stride, int j>
HTAF_INLINE void swap_bits(words* a) {
    words some[8];
    for (int i = 0; i < 8; ++i) some[i] = a[i * stride];
    auto level = [&](auto half) {
        constexpr int n = decltype(half)::value, by = n * j;
        words lower = words{} + ~std::uint64_t{0} / ((std::uint64_t{1} << by) + 1);  // `by` bits of every 2 `by`
        for (int i = 0; i < 8; ++i) {
            if (i & n) continue;
            words first = some[i], second = some[i + n];
            some[i] = choose(lower, first, second << by);
            some[i + n] = choose(lower, first >> by, second);
        }
    };
    level(std::integral_constant<int, 4>{});
    level(std::integral_constant<int, 2>{});
    level(std::integral_constant<int, 1>{});
    for (int i = 0; i < 8; ++i) a[i * stride] = some[i];
}

// 64 x 64 bits in each slice: bit i of word k becomes bit k of word i.
void turn(words* a) {
    for (int i = 0; i < 8; ++i) swap_bits<8, 8>(a + i);
    for (int i = 0; i < 64; i += 8) swap_bits<1, 1>(a + i);
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

HTAF_INLINE words other(words a) {
#if defined(__AVX512F__)  // of `~a` the compiler makes an instruction that waits for whatever its register held before
    return (words)_mm512_ternarylogic_epi64((__m512i)a, (__m512i)a, (__m512i)a, 0x55);
#else
    return ~a;
#endif
}

// The 16 functions of the first two inputs; the first and the last one are there.
HTAF_INLINE void functions(words a, words b, words* of) {
    words both = a & b, one = a ^ b, any = a | b;
    of[1] = other(any);
    of[2] = a ^ both;
    of[3] = other(b);
    of[4] = b ^ both;
    of[5] = other(a);
    of[6] = one;
    of[7] = other(both);
    of[8] = both;
    of[9] = other(one);
    of[10] = a;
    of[11] = other(b ^ both);
    of[12] = b;
    of[13] = other(a ^ both);
    of[14] = any;
}

// The entries name one of them for each value of the other four inputs; these choose.
HTAF_INLINE words table(const words* planes, const std::int32_t* inputs, std::uint64_t entries, const words* of) {
    words left[8], by = planes[inputs[2]];
    for (int i = 0; i < 8; ++i) left[i] = choose(by, of[entries >> (8 * i + 4) & 15], of[entries >> 8 * i & 15]);
    for (int k = 3, n = 4; k < 6; ++k, n /= 2) {
        by = planes[inputs[k]];
        for (int i = 0; i < n; ++i) left[i] = choose(by, left[2 * i + 1], left[2 * i]);
    }
    return left[0];
}

// How many of n planes are 1, as the bits of a number: counter k holds bit k, of bit_width(n).
void count(const words* planes, size_t n, words* counters) {
    words waiting[most_counters];
    std::uint32_t is_waiting = 0;
    auto add = [&](words carry, int k) {
        for (; is_waiting >> k & 1; ++k) {
            is_waiting &= ~(1u << k);
            words up = most_of(counters[k], waiting[k], carry);
            counters[k] = odd(counters[k], waiting[k], carry);
            carry = up;
        }
        waiting[k] = carry;
        is_waiting |= 1u << k;
    };
    auto carry = [](words& sum, words a, words b) {
        words up = most_of(sum, a, b);
        sum = odd(sum, a, b);
        return up;
    };
    size_t i = 0;
    if (n >= 8) {  // in registers
        words ones{}, twos{}, fours{};
        for (; i + 8 <= n; i += 8) {
            const words* p = planes + i;
            words a = carry(ones, p[0], p[1]), b = carry(ones, p[2], p[3]);
            words low = carry(twos, a, b);
            a = carry(ones, p[4], p[5]), b = carry(ones, p[6], p[7]);
            add(carry(fours, low, carry(twos, a, b)), 3);
        }
        counters[0] = ones, counters[1] = twos, counters[2] = fours;
    }
    for (; i < n; ++i) add(planes[i], 0);
    for (int k = 0; n >> k; ++k)
        if (is_waiting >> k & 1) {
            is_waiting &= ~(1u << k);
            words up = counters[k] & waiting[k];
            counters[k] ^= waiting[k];
            add(up, k + 1);
        }
}

// The same of a row, whose last values may be fewer than 64.
template <class T>
std::uint64_t reached_at_end(const Circuit& c, const T* row, size_t chunk) {
    T some[64] = {};
    size_t from = static_cast<size_t>(c.first[chunk]);
    std::copy_n(row + from, std::min<size_t>(64, c.columns - from), some);
    return reached(some, static_cast<const T*>(c.thresholds) + 64 * chunk);
}

// Planes of thresholds of the rows of a block: row r is bit r / slices of word r % slices of each. left: values of x.
// Of pixels, a row's 64 at once, and then the bits turned.
void compare(const Circuit& c, const std::uint8_t* x, size_t rows, size_t left, words* planes) {
    const auto* thresholds = static_cast<const std::uint8_t*>(c.thresholds);
    size_t whole = left < 64 ? 0 : std::min((left - 63) / c.columns, rows);  // rows with 63 values behind each
    auto* to = reinterpret_cast<std::uint64_t*>(planes);
    for (size_t first = 0; first < whole; first += slices)  // a line of the cache of each chunk
        for (size_t chunk = 0; chunk < c.chunks; ++chunk) {
            const std::uint8_t* at = x + first * c.columns + c.first[chunk];
            size_t some = std::min(slices, whole - first);
            for (size_t i = 0; i < some; ++i) {
                __builtin_prefetch(at + (i + slices) * c.columns);
                to[chunk * block_rows + first + i] = reached(at + i * c.columns, thresholds + 64 * chunk);
            }
        }
    for (size_t chunk = 0; chunk < c.chunks; ++chunk) {
        for (size_t r = whole; r < rows; ++r) to[chunk * block_rows + r] = reached_at_end(c, x + r * c.columns, chunk);
        std::fill(to + chunk * block_rows + rows, to + (chunk + 1) * block_rows, 0);
        turn(planes + 64 * chunk);
    }
}

// Of columns, which have several thresholds each, 64 rows at once.
void compare(const Circuit& c, const std::int32_t* x, size_t rows, size_t, words* planes) {
    constexpr size_t some = 8;  // columns, so that their values stay in the first cache
    std::int32_t values[some][block_rows] = {}, same[64];
    for (size_t column = 0; column < c.columns; ++column) {
        if (column % some == 0)
            for (size_t r = 0; r < rows; ++r)
                for (size_t i = 0; i < std::min(some, c.columns - column); ++i)
                    values[i][r % slices * 64 + r / slices] = x[r * c.columns + column + i];
        for (size_t chunk = 0; chunk < c.chunks; ++chunk) {
            size_t place = column - static_cast<size_t>(c.first[chunk]);  // none if it is beyond
            const auto* thresholds = static_cast<const std::int32_t*>(c.thresholds) + 64 * chunk;
            if (place >= 64 || thresholds[place] == unread) continue;
            std::fill_n(same, 64, thresholds[place]);
            words& plane = planes[64 * chunk + place];
            for (size_t slice = 0; slice < slices; ++slice) plane[slice] = reached(values[column % some] + 64 * slice, same);
        }
    }
}

// The counts of rows, of some groups at once: a row's counters side by side in a word.
void write_counts(const Circuit& c, const words* made, std::int64_t* counts, size_t rows) {
    size_t width = static_cast<size_t>(std::bit_width(c.size)), most = 64 / width;
    std::uint64_t mask = (std::uint64_t{1} << width) - 1;
    for (size_t first = 0; first < c.groups; first += most) {
        size_t some = std::min(most, c.groups - first);
        words counters[64] = {};
        for (size_t g = 0; g < some; ++g) count(made + (first + g) * c.size, c.size, counters + g * width);
        turn(counters);
        auto* of = reinterpret_cast<const std::uint64_t*>(counters);
        for (size_t r = 0; r < rows; ++r)
            for (size_t g = 0; g < some; ++g)
                counts[r * c.groups + first + g] = static_cast<std::int64_t>(of[r] >> g * width & mask);
    }
}

// The group of each row with the greatest count, the first of several: of planes of counters, then of counts.
void write_best(const Circuit& c, const words* made, std::int64_t* best, size_t rows) {
    int width = std::bit_width(c.size);
    words most[most_counters] = {}, places[64] = {}, ones = ~words{};
    for (size_t g = 0; g < c.groups; ++g) {
        words counters[most_counters] = {}, above{};
        count(made + g * c.size, c.size, counters);
        for (int k = 0; k < width; ++k) above = choose(counters[k] ^ most[k], counters[k], above);
        for (int k = 0; k < width; ++k) most[k] = choose(above, counters[k], most[k]);
        for (int k = 0; c.groups >> k; ++k) places[k] = choose(above, g >> k & 1 ? ones : words{}, places[k]);
    }
    turn(places);
    auto* of = reinterpret_cast<const std::uint64_t*>(places);
    for (size_t r = 0; r < rows; ++r) best[r] = static_cast<std::int64_t>(of[r]);
}

void greatest(const std::int64_t* counts, size_t rows, size_t groups, std::int64_t* best) {
    for (size_t r = 0; r < rows; ++r, counts += groups) {
        std::int64_t most = 0, others = std::int64_t{1} << 32;  // counts above, the groups that are left below: no branches
        for (size_t g = 0; g < groups; ++g) most = std::max(most, counts[g] * others + static_cast<std::int64_t>(groups - g));
        best[r] = static_cast<std::int64_t>(groups) - most % others;
    }
}

template <class T>
void run_block(const Circuit& c, const T* x, std::int64_t* counts, std::int64_t* best, size_t rows, size_t left,
               words* planes) {
    compare(c, x, rows, left, planes);
    words *made = planes + 64 * c.chunks, of[16] = {};
    of[15] = ~of[0];
    for (size_t t = 0; t < c.tables; ++t) {
        const std::int32_t* read = c.inputs + 6 * t;
        if (!t || read[0] != read[-6] || read[1] != read[-5]) functions(planes[read[0]], planes[read[1]], of);
        made[c.places[t]] = table(planes, read, c.entries[t], of);
    }
    made += c.tables - c.groups * c.size;
    if (counts) write_counts(c, made, counts, rows);
    if (best) write_best(c, made, best, rows);
}

// One row, a byte a bit.
template <class T>
void run_row(const Circuit& c, const T* x, std::int64_t* counts, std::uint8_t* on) {
    for (size_t chunk = 0; chunk < c.chunks; ++chunk) {
        std::uint64_t found = reached_at_end(c, x, chunk);
        for (int i = 0; i < 64; ++i) on[64 * chunk + i] = found >> i & 1;
    }
    std::uint8_t* made = on + 64 * c.chunks;
    for (size_t t = 0; t < c.tables; ++t) {
        const std::int32_t* read = c.inputs + 6 * t;
        int address = 0;
        for (int i = 0; i < 6; ++i) address |= on[read[i]] << i;
        made[c.places[t]] = c.entries[t] >> address & 1;
    }
    made += c.tables - c.groups * c.size;
    for (size_t g = 0; g < c.groups; ++g, made += c.size)
        counts[g] = std::accumulate(made, made + c.size, std::int64_t{0});
}

template <class T>
void run_all(const Circuit& c, const T* x, std::int64_t* counts, std::int64_t* best, size_t rows, int threads) {
    if (rows <= few_rows) {
        Buffer<std::uint8_t> on(64 * c.chunks + c.tables);
        Buffer<std::int64_t> held(counts ? 0 : rows * c.groups);
        counts = counts ? counts : &held[0];
        for (size_t r = 0; r < rows; ++r) run_row(c, x + r * c.columns, counts + r * c.groups, &on[0]);
        if (best) greatest(counts, rows, c.groups, best);
        return;
    }
    parallel(blocks(rows, block_rows), threads, [&](size_t begin, size_t end) {
        Buffer<std::uint8_t> held((64 * c.chunks + c.tables + 1) * sizeof(words));
        auto first = (reinterpret_cast<std::uintptr_t>(&held[0]) + sizeof(words) - 1) / sizeof(words) * sizeof(words);
        for (size_t from = begin * block_rows; from < std::min(rows, end * block_rows); from += block_rows) {
            size_t some = std::min(block_rows, rows - from);
            run_block(c, x + from * c.columns, counts ? counts + from * c.groups : nullptr, best ? best + from : nullptr,
                      some, (rows - from) * c.columns, reinterpret_cast<words*>(first));
        }
    });
}

void run(const Circuit& c, const void* x, std::int64_t* counts, std::int64_t* best, size_t rows, int threads) {
    switch (c.type) {
        case Column::uint8: return run_all(c, static_cast<const std::uint8_t*>(x), counts, best, rows, threads);
        case Column::int32: return run_all(c, static_cast<const std::int32_t*>(x), counts, best, rows, threads);
    }
}

}  // namespace

extern const LogicKernels logic;
const LogicKernels logic = {run};

}  // namespace htaf::HTAF_NAMESPACE
