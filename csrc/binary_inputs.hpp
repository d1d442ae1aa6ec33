// What the tiles of binary.cpp start from: images with their border, and what a sum is when no bit differs.
// Included once per instruction set.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

#include "binary.hpp"
#include "parallel.hpp"
#include "simd.hpp"

namespace htaf::HTAF_NAMESPACE {
namespace {

using std::int32_t;
using std::size_t;
using std::uint32_t;
using std::uint64_t;
using std::uint8_t;

constexpr size_t block = 64;            // outputs of a tile, a word of their bits
constexpr size_t small_copy = 1 << 16;  // bytes that one thread copies faster than several
#if defined(__AMX_INT8__)
constexpr bool added = true;  // what is counted is a sum of products, which is added to a base, see Bases
#else
constexpr bool added = false;
#endif

inline size_t blocks(size_t n, size_t size) { return (n + size - 1) / size; }

// Of sizes; what does not fit cannot be allocated either.
template <class... N>
size_t product(N... n) {
    size_t all = 1;
    if ((__builtin_mul_overflow(all, static_cast<size_t>(n), &all) || ...)) throw std::bad_alloc();
    return all;
}

// malloc rather than std::vector, whose code could be shared with a processor that lacks this file's instructions.
template <class V>
class Buffer {
   public:
    explicit Buffer(size_t n) : first_(static_cast<V*>(std::malloc(product(n + !n, sizeof(V))))) {
        if (!first_) throw std::bad_alloc();
    }
    Buffer(const Buffer&) = delete;
    ~Buffer() { std::free(first_); }
    operator V*() const { return first_; }

   private:
    V* first_;
};

// Bits [from, from + n), n <= 32, of a row of words.
inline uint32_t bits_at(const uint8_t* row, size_t from, size_t n) {
    auto word = read<uint64_t>(row + from / 64 * 8) >> from % 64;
    if (from % 64 + n > 64) word |= read<uint64_t>(row + from / 64 * 8 + 8) << (64 - from % 64);
    return static_cast<uint32_t>(word & ((uint64_t{1} << n) - 1));
}

// Images as the tiles read them: with their border, every group starting at a word of 32 bits.
struct Images {
    const uint8_t* first;
    size_t pixel, row, image;  // bytes from one to the next
};

// The images themselves where they have no border and their groups start at words, else a copy of them.
class Bordered {
   public:
    Bordered(const Convolution& c, const uint8_t* bits, int threads)
        : c_(c), words_(blocks(c.channels / c.groups, 32)), dense_(c.groups == 1 || c.channels / c.groups % 32 == 0),
          copied_(c.padding[0] || c.padding[1] || !dense_), height_(c.height + 2 * c.padding[0]),
          width_(c.width + 2 * c.padding[1]), pixel_(copied_ ? c.groups * words_ * 4 : blocks(c.channels, 64) * 8),
          copy_(copied_ ? product(c.batch, height_, width_, pixel_) : 0) {
        if (!copied_) return;
        size_t rows = c.batch * height_;
        parallel(rows, rows * width_ * pixel_ <= small_copy ? 1 : threads, [&](size_t begin, size_t end) {
            for (size_t i = begin; i < end; ++i) fill(bits, i / height_, i % height_, copy_ + i * width_ * pixel_);
        });
    }
    Images of(const uint8_t* bits) const {
        return {copied_ ? copy_ : bits, pixel_, width_ * pixel_, height_ * width_ * pixel_};
    }

   private:
    void fill(const uint8_t* bits, size_t image, size_t y, uint8_t* to) const {
        if (y < c_.padding[0] || y >= c_.padding[0] + c_.height) {
            std::fill_n(to, width_ * pixel_, uint8_t{0});
            return;
        }
        size_t bytes = blocks(c_.channels, 64) * 8, inner = c_.channels / c_.groups, side = c_.padding[1] * pixel_;
        const uint8_t* from = bits + (image * c_.height + y - c_.padding[0]) * c_.width * bytes;
        std::fill_n(to, side, uint8_t{0});
        to += side;
        if (dense_ && pixel_ == bytes) {
            std::memcpy(to, from, c_.width * bytes);
            to += c_.width * bytes;
        } else {
            for (size_t x = 0; x < c_.width; ++x, from += bytes)
                for (size_t g = 0; g < c_.groups; ++g)
                    for (size_t i = 0; i < inner; i += 32, to += 4) {
                        uint32_t word = bits_at(from, g * inner + i, std::min<size_t>(32, inner - i));
                        std::memcpy(to, &word, 4);
                    }
        }
        std::fill_n(to, side, uint8_t{0});
    }

    const Convolution& c_;
    size_t words_;
    bool dense_, copied_;
    size_t height_, width_, pixel_;
    Buffer<uint8_t> copy_;
};

// Which taps of one dimension are inside the image: for every place of the output the number of its set of such taps,
// [low, high) of each set. Where the set does not matter there is one.
class Inside {
   public:
    Inside(const Convolution& c, int i, bool matters)
        : of(i ? c.out_width() : c.out_height()), low(of_size(c, i)), high(of_size(c, i)) {
        size_t size = i ? c.width : c.height, places = of_size(c, i);
        for (size_t y = 0; y < places; ++y) {
            size_t from = 0, to = 0;
            for (size_t k = 0; k < c.kernel[i]; ++k) {
                size_t at = y * c.stride[i] + k * c.dilation[i];
                if (matters && (at < c.padding[i] || at >= c.padding[i] + size)) continue;
                if (from == to) from = k;
                to = k + 1;
            }
            if (!count || low[count - 1] != from || high[count - 1] != to) low[count] = from, high[count] = to, ++count;
            of[y] = count - 1;
        }
    }
    Buffer<size_t> of, low, high;
    size_t count = 0;

   private:
    static size_t of_size(const Convolution& c, int i) { return i ? c.out_width() : c.out_height(); }
};

// A sum is base - (count << shift). With 0 and 1 the base is the number of signs that are 1. With -1 and 1 it is the number
// of products, and what the taps outside have been counted for, where every sign that is 1 differs from the border's 0.
// A count of products of 0 and 1 with signs is the number of signs that are 1 less the count of differences: with it a sum is
// base + (count << shift), and the base lacks these signs, once or, with -1 and 1, twice.
class Bases {
   public:
    Bases(const Convolution& c, const BinaryWeights& w)
        : rows(c, 0, w.bipolar), columns(c, 1, w.bipolar),
          outputs_(c.groups * blocks(c.outputs / c.groups, block) * block),
          values_(product(product(rows.count, columns.count) + 1, outputs_)) {
        int32_t channels = static_cast<int32_t>(c.channels / c.groups);
        int32_t* all = values_ + rows.count * columns.count * outputs_;
        add(all, w.ones, c.kernel[1], 0, c.kernel[0], 0, c.kernel[1]);
        if (added) std::fill_n(all, outputs_, 0);
        for (size_t i = 0; i < rows.count; ++i)
            for (size_t j = 0; j < columns.count; ++j) {
                int32_t* to = values_ + (i * columns.count + j) * outputs_;
                if (!w.bipolar) {
                    std::copy_n(all, outputs_, to);
                    continue;
                }
                add(to, w.ones, c.kernel[1], rows.low[i], rows.high[i], columns.low[j], columns.high[j]);
                auto products = static_cast<int32_t>((rows.high[i] - rows.low[i]) * (columns.high[j] - columns.low[j]));
                for (size_t o = 0; o < outputs_; ++o) to[o] = products * channels + 2 * (all[o] - to[o]);
            }
    }
    // Of sums that are counted from 0.
    explicit Bases(const Convolution& c)
        : rows(c, 0, false), columns(c, 1, false), outputs_(c.groups * blocks(c.outputs / c.groups, block) * block),
          values_(product(2, outputs_)) {
        std::fill_n(static_cast<int32_t*>(values_), 2 * outputs_, 0);
    }
    // Where only bits are wanted, and of the sums themselves: lower <= sum <= upper in integers, as one comparison of
    // sum - lower, without a sign, with upper - lower. An interval without integers starts where no sum is.
    void compare(const Epilogue& e, size_t outputs) {
        if (e.scale || e.shift || e.wide_scale || e.residual || e.y || !e.bits) return;
        constexpr float beyond = 1 << 25;
        size_t sets = rows.count * columns.count;
        Buffer<int32_t> least(outputs);
        int32_t* widest = values_ + sets * outputs_;
        for (size_t o = 0; o < outputs; ++o) {
            float lower = std::max(__builtin_ceilf(e.lower[o]), -beyond);
            float upper = std::min(__builtin_floorf(e.upper[o]), beyond);
            bool any = e.lower[o] <= e.upper[o] && lower <= upper;
            least[o] = any ? static_cast<int32_t>(lower) : 1 << 26;
            widest[o] = any ? static_cast<int32_t>(upper) - least[o] : 0;
        }
        for (size_t i = 0; i < sets; ++i)
            for (size_t o = 0; o < outputs; ++o) values_[i * outputs_ + o] -= least[o];
        widths = reinterpret_cast<const uint32_t*>(widest);
    }
    const int32_t* at(size_t y, size_t x) const {
        return values_ + (rows.of[y] * columns.count + columns.of[x]) * outputs_;
    }

    const uint32_t* widths = nullptr;  // of the intervals of `compare`, in whose place `at` is sum - lower's base

   private:
    void add(int32_t* to, const int32_t* ones, size_t width, size_t top, size_t bottom, size_t left, size_t right) {
        std::fill_n(to, outputs_, 0);
        for (size_t y = top; y < bottom; ++y)
            for (size_t x = left; x < right; ++x) {
                const int32_t* tap = ones + (y * width + x) * outputs_;
                for (size_t o = 0; o < outputs_; ++o) to[o] += tap[o];
            }
    }

    Inside rows, columns;
    size_t outputs_;
    Buffer<int32_t> values_;
};

}  // namespace
}  // namespace htaf::HTAF_NAMESPACE
