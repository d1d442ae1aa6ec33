// Bits become bytes, four channels a word; a word times four weights of each output is added in one instruction where the
// processor has it. Compiled once per instruction set: see CMakeLists.txt.
#include "integers.hpp"

#include "integer_inputs.hpp"
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
#if defined(__AVX512VNNI__)
constexpr const char* by = "vpdpbusd";
#elif defined(__AVX2__)
constexpr const char* by = "vpmaddubsw";
#elif defined(__ARM_NEON)
constexpr const char* by = "smull";
#else
constexpr const char* by = "plain C++";
#endif
const IntegerKernels integers = {forward, by};
}  // namespace htaf::HTAF_NAMESPACE
