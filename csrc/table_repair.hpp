// Bits of a float32 layer from sums by int16: what these cannot decide is summed anew in float32. Included once per
// instruction set; see tables.cpp.
#pragma once

#include "table_layer.hpp"

namespace htaf::HTAF_NAMESPACE {
namespace {

// The inputs of an output pixel as Floats takes them, straight from the images: out[(tap * fields + field) * stride].
inline void inputs_of(const Layer<Floats>& l, const std::uint64_t* bits, size_t group, size_t pixel, std::uint32_t* out,
                      size_t stride) {
    size_t width = l.out_width(), height = l.out_height();
    size_t x = pixel % width * l.stride[1] - l.padding[1], y = pixel / width % height * l.stride[0] - l.padding[0];
    size_t image = pixel / width / height * l.height;
    for (size_t i = 0; i < l.kernel[0]; ++i)
        for (size_t j = 0; j < l.kernel[1]; ++j) {
            size_t row = y + i * l.dilation[0], column = x + j * l.dilation[1];
            bool inside = row < l.height && column < l.width;  // before the image they have wrapped around
            const std::uint64_t* from = bits + (inside ? ((image + row) * l.width + column) * l.words : 0);
            std::uint64_t all = inside ? ~std::uint64_t{0} : 0;
            for (size_t c = 0; c < l.in_group; c += 64, out += 2 * stride) {
                size_t left = l.in_group - c;
                std::uint64_t word = word_at(from, group * l.in_group + c, std::min<size_t>(64, left)) & all;
                out[0] = static_cast<std::uint32_t>(word);
                if (left > 32) out[stride] = static_cast<std::uint32_t>(word >> 32);
                else out -= stride;
            }
        }
}

// Makes the bits of a block from its sums by int16. Pixels are taken in chunks whose borders do not depend on the blocks,
// so that the number of threads changes no bit: of a chunk with few undecided outputs each is summed by itself, of one
// with many all are summed by tables of float32.
class Repair {
   public:
    static constexpr size_t chunk = 32, most_undecided = 20;  // one output of so many is few
    static_assert(chunk == Integers<std::uint16_t>::lanes || chunk % Integers<std::uint16_t>::lanes == 0);

    Repair(const Tables& t, const std::uint64_t* bits, const Convolution& c, const Epilogue& e)
        : l_(c), t_(t), bits_(bits), e_(e) {}

    void operator()(const float* sums, size_t stride, size_t pixel, size_t n, size_t first, size_t outputs) const {
        const Epilogue e = e_;  // not seen through a pointer, which what is stored might change
        Masks found, near;
        size_t words = (n + 63) / 64, all = l_.outputs;
        size_t undecided[most_pixels / chunk] = {};
        for (size_t o = 0; o < outputs; ++o) {
            const float* ends = t_.rough.ends + first + o;
            reg low = one(ends[0]), high = one(ends[all]), lowest = one(ends[2 * all]), highest = one(ends[3 * all]);
            for (size_t w = 0; w < words; ++w) {
                std::uint64_t inside = 0, maybe = 0;
                scaled(e, sums + o * stride + w * 64, first + o, [&](reg y, size_t i) __attribute__((always_inline)) {
                    inside |= within(y, low, high) << i;
                    maybe |= within(y, lowest, highest) << i;
                });
                if (n - w * 64 < 64) maybe &= (std::uint64_t{1} << (n - w * 64)) - 1;
                found[o][w] = inside;
                near[o][w] = maybe &= ~inside;
                undecided[2 * w] += static_cast<size_t>(__builtin_popcountll(maybe & 0xffffffff));
                undecided[2 * w + 1] += static_cast<size_t>(__builtin_popcountll(maybe >> 32));
            }
        }
        std::uint64_t many[most_pixels / 64] = {};  // pixels of the chunks of which all outputs are summed anew
        size_t pixels[most_pixels / chunk], count = 0;  // the first of every such chunk
        for (size_t k = 0; k * chunk < n; ++k) {
            if (undecided[k] * most_undecided <= chunk * outputs) continue;
            many[k / 2] |= std::uint64_t{0xffffffff} << k % 2 * 32;
            pixels[count++] = k * chunk;
        }
        each(near, many, words, pixel, first, outputs, found);
        if (count) chunks(pixels, count, pixel, n, first, outputs, found);
        for (size_t w = 0; w < words; ++w) {
            alignas(64) std::uint64_t rows[64] = {};
            for (size_t o = 0; o < outputs; ++o) rows[o] = found[o][w];
            turn(rows);
            for (size_t i = 0; i < std::min<size_t>(64, n - w * 64); ++i)
                e.bits[(pixel + w * 64 + i) * ((all + 63) / 64) + first / 64] = rows[i];
        }
    }

   private:
    using Masks = std::uint64_t[64][most_pixels / 64];  // of outputs, a bit a pixel

    // Undecided outputs outside of those chunks, one by one: lanes are inputs.
    void each(const Masks& near, const std::uint64_t* many, size_t words, size_t pixel, size_t first, size_t outputs,
              Masks& found) const {
        static thread_local Arena arena;
        auto [inputs] = arrays<std::uint32_t>(arena, l_.flat());
        for (size_t o = 0; o < outputs; ++o)
            for (size_t w = 0; w < words; ++w)
                for (std::uint64_t left = near[o][w] & ~many[w]; left; left &= left - 1) {
                    size_t i = static_cast<size_t>(__builtin_ctzll(left)), c = first + o;
                    float y;
                    inputs_of(l_, bits_, c / l_.out_group, pixel + w * 64 + i, inputs, 1);
                    Floats::add_few(l_, t_, c, 1, inputs, 1, 1, &y);
                    if (e_.scale) y = y * e_.scale[c] + (e_.shift ? e_.shift[c] : 0.0f);
                    else if (e_.shift) y += e_.shift[c];
                    found[o][w] |= static_cast<std::uint64_t>(e_.lower[c] <= y && y <= e_.upper[c]) << i;
                }
    }

    void chunks(const size_t* pixels, size_t count, size_t pixel, size_t n, size_t first, size_t outputs,
                Masks& found) const {
        static thread_local Arena arena;
        size_t stride = count * chunk + 64;
        auto [indices, sums, scratch] = arrays<std::uint32_t, float, float>(
            arena, l_.flat() * stride, Floats::outputs * stride, Floats::scratch);
        size_t group = l_.groups;  // whose indices are there
        for (size_t o = 0, several; o < outputs; o += several) {
            if (group != (first + o) / l_.out_group) {
                group = (first + o) / l_.out_group;
                std::fill_n(indices, l_.flat() * stride, 0);
                for (size_t k = 0; k < count; ++k)
                    for (size_t i = 0; i < std::min(chunk, n - pixels[k]); ++i)
                        inputs_of(l_, bits_, group, pixel + pixels[k] + i, indices + k * chunk + i, stride);
            }
            several = std::min({outputs - o, (group + 1) * l_.out_group - first - o, Floats::outputs});
            Floats::add(l_, t_, first + o, several, indices, stride, count * chunk, scratch, sums);
            for (size_t s = 0; s < several; ++s)
                for (size_t k = 0; k < count; k += 2) {
                    size_t c = first + o + s;
                    std::uint64_t inside = 0;
                    scaled(e_, sums + s * stride + k * chunk, c, [&](reg y, size_t i) __attribute__((always_inline)) {
                        inside |= within(y, one(e_.lower[c]), one(e_.upper[c])) << i;
                    });
                    for (size_t half = 0; half < 2 && k + half < count; ++half) {
                        size_t at = pixels[k + half];
                        std::uint64_t& word = found[o + s][at / 64];
                        word &= ~(std::uint64_t{0xffffffff} << at % 64);
                        word |= (inside >> 32 * half & 0xffffffff) << at % 64;
                    }
                }
        }
        arena.forget_much();
    }

    Layer<Floats> l_;
    Tables t_;
    const std::uint64_t* bits_;
    Epilogue e_;
};

}  // namespace
}  // namespace htaf::HTAF_NAMESPACE
