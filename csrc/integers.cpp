// Bits become bytes, four channels a word; a word times four weights of each output is added in one instruction where the
// processor has it. Compiled once per instruction set: see CMakeLists.txt.
#include "integers.hpp"

#include "tiles.hpp"
#if defined(__ARM_NEON)
#include <arm_neon.h>
#endif

namespace htaf::HTAF_NAMESPACE {
namespace {

// Sums of each lane: the four bytes of an input, without a sign, times those of the weights, with one.
template <int P, int R>
struct Products {
    reg_i32 sums[P][R] = {};

    static HTAF_INLINE reg_i32 add(reg_i32 sum, uint32_t inputs, reg_i32 weights) {
#if defined(__AVX512VNNI__)
        return (reg_i32)_mm512_dpbusd_epi32((__m512i)sum, _mm512_set1_epi32(static_cast<int>(inputs)), (__m512i)weights);
#elif defined(__AVX2__)
        __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi32(static_cast<int>(inputs)), (__m256i)weights);
        return (reg_i32)_mm256_add_epi32((__m256i)sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
#elif defined(__ARM_NEON)
        int8x16_t x = vreinterpretq_s8_u32(vdupq_n_u32(inputs)), w = (int8x16_t)weights;  // inputs are at most 127
        int16x8_t pairs = vpaddq_s16(vmull_s8(vget_low_s8(x), vget_low_s8(w)), vmull_high_s8(x, w));
        return (reg_i32)vpadalq_s16((int32x4_t)sum, pairs);
#else
        HTAF_UNROLL
        for (int j = 0; j < 4; ++j)
            sum += (weights << (24 - 8 * j) >> 24) * static_cast<int32_t>(inputs >> 8 * j & 0xff);
        return sum;
#endif
    }
    HTAF_INLINE void run(const uint8_t* const* pixels, size_t from, const uint32_t* weights, size_t length) {
        for (size_t i = 0; i < length; ++i, from += 4, weights += block) {
            reg_i32 w[R];
            HTAF_UNROLL
            for (int r = 0; r < R; ++r) w[r] = read<reg_i32>(weights + r * HTAF_LANES);
            HTAF_UNROLL
            for (int p = 0; p < P; ++p) {
                auto a = read<uint32_t>(pixels[p] + from);
                HTAF_UNROLL
                for (int r = 0; r < R; ++r) sums[p][r] = add(sums[p][r], a, w[r]);
            }
        }
    }
    HTAF_INLINE reg_u32 total(int p, int r) const { return (reg_u32)-sums[p][r]; }  // a sum is base - total
};
constexpr Counts counters = all_counts<Products>(std::make_index_sequence<down * across>{});

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

void forward(const Convolution& c, const IntegerWeights& weights, const uint8_t* bits, const Epilogue& epilogue,
             int threads) {
    if (!c.pixels()) return;
    Widened widened(c, bits, weights.planes, threads);
    Bases bases(c);
    size_t words = blocks(c.channels / c.groups, 4);
    all_tiles(c, counters, weights.values, 0, words, widened.images(), bases, epilogue, threads);
}

}  // namespace

extern const IntegerKernels integers;
const IntegerKernels integers = {forward};
}  // namespace htaf::HTAF_NAMESPACE
