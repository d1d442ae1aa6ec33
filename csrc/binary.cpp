// Sums of products of signs are counts of differing bits: xor, popcount, add. Compiled once per instruction set: see
// CMakeLists.txt.
#include "binary.hpp"

#include "tiles.hpp"
#if defined(__ARM_NEON)
#include <arm_neon.h>
#endif

namespace htaf::HTAF_NAMESPACE {
namespace {

#if defined(__AVX512F__)
constexpr size_t most = 0;
#else
constexpr size_t most = 31;  // words until a count of bits in a byte could overflow
#endif

// How many bits are set: of each lane where the processor counts lanes, elsewhere of each byte.
HTAF_INLINE reg_u32 ones(reg_u32 v) {
#if defined(__AVX512F__)
    return (reg_u32)_mm512_popcnt_epi32((__m512i)v);
#elif defined(__AVX2__)
    const __m256i of = _mm256_setr_epi8(0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4,  //
                                        0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4);
    const __m256i low = _mm256_set1_epi8(15);
    __m256i a = _mm256_shuffle_epi8(of, _mm256_and_si256((__m256i)v, low));
    __m256i b = _mm256_shuffle_epi8(of, _mm256_and_si256(_mm256_srli_epi16((__m256i)v, 4), low));
    return (reg_u32)_mm256_add_epi8(a, b);
#elif defined(__ARM_NEON)
    return (reg_u32)vcntq_u8((uint8x16_t)v);
#else
    v = v - (v >> 1 & 0x55555555);
    v = (v & 0x33333333) + (v >> 2 & 0x33333333);
    return (v + (v >> 4)) & 0x0f0f0f0f;
#endif
}
// Sums of `ones`, added byte by byte: no carry leaves a byte that holds at most 31 * 8.
HTAF_INLINE reg_u32 lanes_of(reg_u32 bytes) {
    if constexpr (most == 0) return bytes;
    reg_u32 pairs = (bytes & 0x00ff00ff) + (bytes >> 8 & 0x00ff00ff);
    return (pairs & 0xffff) + (pairs >> 16);
}

// Counts of the lanes, or of each byte, which are widened before they could overflow.
template <int P, int R>
struct Tally {
    reg_u32 sums[P][R] = {}, lanes[P][R] = {};
    size_t room = most;

    HTAF_INLINE void step(const uint8_t* const* pixels, size_t from, const uint32_t* signs) {
        reg_u32 w[R];
        HTAF_UNROLL
        for (int r = 0; r < R; ++r) w[r] = read<reg_u32>(signs + r * HTAF_LANES);
        HTAF_UNROLL
        for (int p = 0; p < P; ++p) {
            reg_u32 a = reg_u32{} + read<uint32_t>(pixels[p] + from);
            HTAF_UNROLL
            for (int r = 0; r < R; ++r) sums[p][r] += ones(a ^ w[r]);
        }
    }
    HTAF_INLINE void run(const uint8_t* const* pixels, size_t from, const uint32_t* signs, size_t length) {
        while (length) {
            size_t n = most ? std::min(length, room) : length;
            for (size_t i = 0; i < n; ++i, from += 4, signs += block) step(pixels, from, signs);
            length -= n;
            if (most && !(room -= n)) widen();
        }
    }
    void widen() {
        for (int p = 0; p < P; ++p)
            for (int r = 0; r < R; ++r) {
                lanes[p][r] += lanes_of(sums[p][r]);
                sums[p][r] = reg_u32{};
            }
        room = most;
    }
    HTAF_INLINE reg_u32 total(int p, int r) const {
        return most ? lanes[p][r] + lanes_of(sums[p][r]) : sums[p][r];
    }
};

constexpr Counts counters = all_counts<Tally>(std::make_index_sequence<down * across>{});

void forward(const Convolution& c, const BinaryWeights& weights, const uint8_t* bits, const Epilogue& epilogue,
             int threads) {
    if (!c.pixels()) return;
    Bordered bordered(c, bits, threads);
    Bases bases(c, weights);
    size_t words = blocks(c.channels / c.groups, 32);
    all_tiles(c, counters, weights.signs, weights.bipolar, words, bordered.of(bits), bases, epilogue, threads);
}

#if defined(__x86_64__)
#define HTAF_REGISTER "+v"
#else
#define HTAF_REGISTER "+w"
#endif
uint64_t spin(size_t steps, bool counts_alone) {
    constexpr int wide = most ? 2 : 4, high = most ? 2 : 5;  // all of it in registers, also the words
    reg_u32 sums[high][wide] = {}, a[high] = {}, w[wide] = {};
    auto unknown = [](auto& registers) __attribute__((always_inline)) {  // to the compiler, which computes nothing ahead
        HTAF_UNROLL
        for (auto& v : registers) asm volatile("" : HTAF_REGISTER(v));
    };
    HTAF_UNROLL
    for (auto& row : sums) unknown(row);
    for (size_t i = 0; i < steps; ++i) {
        HTAF_UNROLL
        for (int p = 0; p < high; ++p) {
            HTAF_UNROLL
            for (int r = 0; r < wide; ++r) {
                if (counts_alone) {
                    sums[p][r] = ones(sums[p][r]);
                } else {
                    sums[p][r] += ones(a[p] ^ w[r]);
                }
            }
        }
        unknown(a);
        unknown(w);
    }
    HTAF_UNROLL
    for (auto& row : sums) unknown(row);
    return uint64_t{high} * wide * 32 * HTAF_LANES * steps;
}

}  // namespace

extern const BinaryKernels binary;
#if defined(__AVX512F__)
constexpr const char* by = "vpopcntd";
#elif defined(__AVX2__)
constexpr const char* by = "vpshufb";
#elif defined(__ARM_NEON)
constexpr const char* by = "vcnt";
#else
constexpr const char* by = "plain C++";
#endif
const BinaryKernels binary = {forward, spin, by};
}  // namespace htaf::HTAF_NAMESPACE
