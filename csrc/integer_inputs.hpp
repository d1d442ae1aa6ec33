// What products of bytes start from: images in bytes, with their border. Included once per instruction set.
#pragma once

#include "binary_inputs.hpp"

namespace htaf::HTAF_NAMESPACE {
namespace {

// 64 bytes of n <= 64 channels from one word of each plane, `apart` words from one to the next.
HTAF_INLINE void widen(const uint8_t* bits, size_t planes, size_t apart, size_t from, size_t n, uint8_t* to) {
#if defined(__AVX512F__)
    __m512i v = _mm512_setzero_si512();
    for (size_t i = 0; i < planes; ++i, bits += apart) {
        uint64_t word = bits_at(bits, from, std::min<size_t>(n, 32));
        if (n > 32) word |= uint64_t{bits_at(bits, from + 32, n - 32)} << 32;
        v = _mm512_mask_add_epi8(v, word, v, _mm512_set1_epi8(static_cast<char>(1 << i)));
    }
    _mm512_mask_storeu_epi8(to, ~uint64_t{0} >> (64 - blocks(n, 4) * 4), v);
#else
    std::fill_n(to, blocks(n, 4) * 4, uint8_t{0});
    for (size_t i = 0; i < planes; ++i, bits += apart)
        for (size_t j = 0; j < n; ++j) {
            size_t at = from + j;
            to[j] = static_cast<uint8_t>(to[j] + ((bits[at / 8] >> at % 8 & 1) << i));
        }
#endif
}

// Images in bytes with their border, every group starting at a word.
class Widened {
   public:
    Widened(const Convolution& c, const uint8_t* bits, size_t planes, int threads)
        : c_(c), inner_(c.channels / c.groups), pixel_(c.groups * blocks(inner_, 4) * 4), height_(c.height + 2 * c.padding[0]),
          width_(c.width + 2 * c.padding[1]), copy_(product(c.batch, height_, width_, pixel_)) {
        size_t rows = c.batch * height_;
        parallel(rows, rows * width_ * pixel_ <= small_copy ? 1 : threads, [&](size_t begin, size_t end) {
            for (size_t i = begin; i < end; ++i) fill(bits, planes, i / height_, i % height_, copy_ + i * width_ * pixel_);
        });
    }
    Images images() const { return {copy_, pixel_, width_ * pixel_, height_ * width_ * pixel_}; }

   private:
    void fill(const uint8_t* bits, size_t planes, size_t image, size_t y, uint8_t* to) const {
        if (y < c_.padding[0] || y >= c_.padding[0] + c_.height) {
            std::fill_n(to, width_ * pixel_, uint8_t{0});
            return;
        }
        size_t plane = blocks(c_.channels, 64) * 8, side = c_.padding[1] * pixel_, bytes = planes * plane;
        const uint8_t* from = bits + (image * c_.height + y - c_.padding[0]) * c_.width * bytes;
        std::fill_n(to, side, uint8_t{0});
        to += side;
        for (size_t x = 0; x < c_.width; ++x, from += bytes)
            for (size_t g = 0; g < c_.groups; ++g)
                for (size_t i = 0; i < inner_; i += 64) {
                    size_t n = std::min<size_t>(64, inner_ - i);
                    widen(from, planes, plane, g * inner_ + i, n, to);
                    to += blocks(n, 4) * 4;
                }
        std::fill_n(to, side, uint8_t{0});
    }

    const Convolution& c_;
    size_t inner_, pixel_, height_, width_;
    Buffer<uint8_t> copy_;
};

}  // namespace
}  // namespace htaf::HTAF_NAMESPACE
