// Lanes are channels. The levels of the few rows that a row of the output needs become floats in the first-level cache, once
// for all taps that read them; a tap is then one multiply-add whose input is there. Outside the image the floats are 0, so
// no pixel is a special case. Compiled once per instruction set: see CMakeLists.txt.
#include "depthwise.hpp"

#include <algorithm>

#include "arena.hpp"
#include "epilogue.hpp"
#include "parallel.hpp"

namespace htaf::HTAF_NAMESPACE {
namespace {

using std::int32_t;
using std::size_t;
using std::uint32_t;
using std::uint8_t;

#if defined(__clang__)
#define HTAF_UNROLL _Pragma("unroll")
#else
#define HTAF_UNROLL _Pragma("GCC unroll 8")
#endif

#if defined(__AVX512F__) || defined(__ARM_NEON)
constexpr int abreast = 8;  // pixels whose sums grow together, so that a weight is loaded once for all
#else
constexpr int abreast = 4;
#endif
constexpr int registers = 2;  // of the sums of a pixel
constexpr size_t span = registers * HTAF_LANES;
static_assert(64 % span == 0);
constexpr size_t most_columns = 24, most_rows = 28;  // of the output that a part of the work has
static_assert(most_columns % abreast == 0);
constexpr size_t small_work = 1 << 13;  // taps of words of pixels that one thread does sooner than two begin

// The bits of the channels of a register, of which `first` in this word is the first.
HTAF_INLINE uint32_t some_bits(const uint8_t* word, size_t first) {
    if constexpr (HTAF_LANES == 16) return read<uint16_t>(word + first / 8);
    return word[first / 8] >> first % 8 & ((1u << HTAF_LANES) - 1);
}
#if defined(__AVX512F__)
HTAF_INLINE reg choose(uint32_t bits, reg yes, reg no) {
    return (reg)_mm512_mask_blend_ps(static_cast<__mmask16>(bits), (__m512)no, (__m512)yes);
}
#else
HTAF_INLINE reg_i32 lanes_of(uint32_t bits) {
    reg_i32 places;
    HTAF_UNROLL
    for (int j = 0; j < HTAF_LANES; ++j) places[j] = 1 << j;
    return (places & static_cast<int32_t>(bits)) == places;
}
HTAF_INLINE reg choose(uint32_t bits, reg yes, reg no) {
    reg_i32 chosen = lanes_of(bits);
    return (reg)(((reg_i32)yes & chosen) | ((reg_i32)no & ~chosen));
}
#endif

enum class Level { bit, sign, count };

struct Layer {
    const Convolution& c;
    const DepthwiseWeights& weights;
    const uint8_t* bits;
    const Epilogue& epilogue;
    size_t words = (c.channels + 63) / 64, plane = words * 8, pixel = plane * weights.planes;
    // A row of floats has the input's columns one after the other, or those of the first tap, then those of the second, ...
    bool dense = c.dilation[1] == 1 && c.stride[1] <= std::min<size_t>(2, c.kernel[1]);
    bool kept = c.dilation[0] == 1 && c.stride[0] < c.kernel[0];  // rows that the next row of the output reads again
    size_t line = 64 * (dense ? (most_columns - 1) * c.stride[1] + c.kernel[1] : most_columns * c.kernel[1]);

    // The levels of a word of a pixel, as floats.
    template <Level L>
    HTAF_INLINE void levels(const uint8_t* word, float* to) const {
        reg low = one(L == Level::sign ? -1.0f : 0.0f), high = one(1);
        HTAF_UNROLL
        for (size_t first = 0; first < 64; first += HTAF_LANES) {
            reg level = choose(some_bits(word, first), high, low);
            if constexpr (L == Level::count)
                for (size_t i = 1; i < weights.planes; ++i)
                    level += choose(some_bits(word + i * plane, first), one(static_cast<float>(1u << i)), reg{});
            std::memcpy(to + first, &level, sizeof level);
        }
    }

    // The floats of a row of the input that `columns` columns of the output need, from column `left` of the input on, beyond
    // 0 where it wraps around; `from`: the word of the row's first pixel, null where there is no such row.
    template <Level L>
    void fill(const uint8_t* from, size_t left, size_t columns, float* to) const {
        auto put = [&](size_t x) {
            if (from && x < c.width) levels<L>(from + x * pixel, to);
            else std::memset(to, 0, 64 * sizeof *to);
            to += 64;
        };
        if (dense) {
            size_t end = left + (columns - 1) * c.stride[1] + c.kernel[1];
            for (size_t x = left; x != end; ++x) put(x);
            return;
        }
        for (size_t kx = 0; kx < c.kernel[1]; ++kx, to += 64 * (most_columns - columns))
            for (size_t j = 0; j < columns; ++j) put(left + kx * c.dilation[1] + j * c.stride[1]);
    }

    // The sums of `span` channels of pixels in a row, whose first tap's inputs lie `step` floats apart.
    template <size_t step>
    HTAF_INLINE void sum(const float* const* rows, size_t next, const float* values, float* to) const {
        reg sums[abreast][registers] = {};
        for (size_t ky = 0; ky < c.kernel[0]; ++ky) {
            const float* x = rows[ky];
            for (size_t kx = 0; kx < c.kernel[1]; ++kx, x += next, values += words * 64) {
                reg w[registers];
                HTAF_UNROLL
                for (int r = 0; r < registers; ++r) w[r] = read<reg>(values + r * HTAF_LANES);
                HTAF_UNROLL
                for (int p = 0; p < abreast; ++p) {
                    HTAF_UNROLL
                    for (int r = 0; r < registers; ++r) sums[p][r] += w[r] * read<reg>(x + p * step + r * HTAF_LANES);
                }
            }
        }
        HTAF_UNROLL
        for (int p = 0; p < abreast; ++p) {
            HTAF_UNROLL
            for (int r = 0; r < registers; ++r) std::memcpy(to + 64 * p + r * HTAF_LANES, &sums[p][r], sizeof(reg));
        }
    }

    // Columns [column, column + columns) of a row of the output; `rows`: of floats, by the taps' rows.
    template <size_t step>
    void finish_row(const float* const* rows, const float** moved, size_t at, size_t columns, size_t word) const {
        alignas(64) float sums[abreast * 64];
        size_t n = std::min<size_t>(64, c.channels - word * 64);
        for (size_t j = 0; j < columns; j += abreast) {
            for (size_t first = 0; first < n; first += span) {
                for (size_t ky = 0; ky < c.kernel[0]; ++ky) moved[ky] = rows[ky] + j * step + first;
                sum<step>(moved, dense ? 64 : 64 * most_columns, weights.values + word * 64 + first, sums + first);
            }
            for (size_t p = 0; p < std::min<size_t>(abreast, columns - j); ++p)
                finish(epilogue, sums + 64 * p, at + j + p, word * 64, n, c.channels);
        }
    }

    // Rows [row, end) and columns [column, column + columns) of the output.
    template <Level L>
    void part(size_t image, size_t word, size_t row, size_t end, size_t column, size_t columns) const {
        static thread_local Arena arena;
        size_t down = c.kernel[0];
        auto [held, rows, moved] = arrays<float, const float*, const float*>(arena, down * line, down, down);
        size_t filled = up(columns, abreast), left = column * c.stride[1] - c.padding[1], there = 0;
        for (size_t start = row; row < end; ++row) {
            size_t top = row * c.stride[0];  // of the image with its padding
            for (size_t ky = 0; ky < down; ++ky) {
                size_t y = top + ky * c.dilation[0] - c.padding[0], slot = kept ? (top + ky) % down : ky;
                float* to = held + slot * line;
                rows[ky] = to;
                if (kept && row > start && top + ky < there) continue;
                const uint8_t* from = y < c.height ? bits + (image * c.height + y) * c.width * pixel + word * 8 : nullptr;
                fill<L>(from, left, filled, to);
            }
            there = top + down;
            size_t at = (image * c.out_height() + row) * c.out_width() + column;
            if (dense && c.stride[1] == 2) finish_row<128>(rows, moved, at, columns, word);
            else finish_row<64>(rows, moved, at, columns, word);
        }
        arena.forget_much();
    }

    template <Level L>
    void run(int threads) const {
        size_t down = c.out_height(), across = c.out_width(), taps = c.kernel[0] * c.kernel[1];
        size_t bands = (down + most_rows - 1) / most_rows, blocks = (across + most_columns - 1) / most_columns;
        size_t height = (down + bands - 1) / bands, all = c.batch * words * blocks * bands;
        parallel(all, c.pixels() * words * taps <= small_work ? 1 : threads, [&](size_t begin, size_t stop) {
            for (size_t i = begin; i < stop; ++i) {
                size_t column = i % blocks * most_columns, band = i / blocks % bands, rest = i / blocks / bands;
                size_t row = band * height, columns = std::min(most_columns, across - column);
                part<L>(rest / words, rest % words, row, std::min(down, row + height), column, columns);
            }
        });
    }
};

void forward(const Convolution& c, const DepthwiseWeights& weights, const uint8_t* bits, const Epilogue& epilogue,
             int threads) {
    if (!c.pixels()) return;
    Layer layer{c, weights, bits, epilogue};
    if (weights.bipolar) layer.run<Level::sign>(threads);
    else if (weights.planes == 1) layer.run<Level::bit>(threads);
    else layer.run<Level::count>(threads);
}

}  // namespace

extern const DepthwiseKernels depthwise;
const DepthwiseKernels depthwise = {forward};
}  // namespace htaf::HTAF_NAMESPACE
