// Sums of products of signs are counts of differing bits: xor, popcount, add. Lanes are outputs, a tile is some pixels by
// 64 outputs, whose counts stay in registers while its words pass. Compiled once per instruction set: see CMakeLists.txt.
#include "binary.hpp"

#include <algorithm>
#include <utility>

#include "binary_inputs.hpp"
#include "epilogue.hpp"
#include "parallel.hpp"
#if defined(__ARM_NEON)
#include <arm_neon.h>
#endif

namespace htaf::HTAF_NAMESPACE {
namespace {

#if defined(__clang__)
#define HTAF_UNROLL _Pragma("unroll")
#else
#define HTAF_UNROLL _Pragma("GCC unroll 8")
#endif

#if defined(__AVX512F__)
constexpr int down = 6, across = 4;  // pixels and registers of outputs that are counted together, as registers last
constexpr size_t most = 0;
#elif defined(__ARM_NEON)
constexpr int down = 4, across = 4;
constexpr size_t most = 31;  // words until a count of bits in a byte could overflow
#else
constexpr int down = 2, across = 4;
constexpr size_t most = 31;
#endif
constexpr size_t span = across * HTAF_LANES;
constexpr size_t near = 1 << 17;  // bytes of images that stay in a cache of the second level beside the weights

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

// The words of a tap, or of a row of taps where these lie in a row, are a run. All runs are of one length.
struct Runs {
    const size_t* offsets;  // in bytes, from a pixel's first tap
    size_t count, length;   // length in words
};

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

// counts[p] = in how many bits P pixels differ from the signs of R registers of outputs.
template <int P, int R>
void count(const Runs& runs, const uint8_t* const* from, const uint32_t* signs, int32_t (*counts)[block]) {
    const uint8_t* pixels[P];
    for (int p = 0; p < P; ++p) pixels[p] = from[p];
    Tally<P, R> tally;
    for (size_t i = 0; i < runs.count; ++i, signs += runs.length * block)
        tally.run(pixels, runs.offsets[i], signs, runs.length);
    HTAF_UNROLL
    for (int p = 0; p < P; ++p) {
        HTAF_UNROLL
        for (int r = 0; r < R; ++r) {
            reg_u32 total = tally.total(p, r);
            std::memcpy(counts[p] + r * HTAF_LANES, &total, sizeof total);
        }
    }
}

using Count = void (*)(const Runs&, const uint8_t* const*, const uint32_t*, int32_t (*)[block]);
struct Counts {
    Count of[down * across];
};
template <size_t... I>
constexpr Counts all_counts(std::index_sequence<I...>) {
    return {{count<I / across + 1, I % across + 1>...}};
}
constexpr Counts counters = all_counts(std::make_index_sequence<down * across>{});

struct Job {
    const Convolution& c;
    const BinaryWeights& weights;
    const Epilogue& epilogue;
    Images images;
    const Bases& bases;
    Runs runs;
    size_t pixels, height, width;  // of the output
    size_t tiles;                  // of up to `down` pixels
    size_t inner, in_group;        // outputs of a group, blocks of them
    size_t words;                  // of 32 channels of a group
};

// A block of outputs of a group.
struct Block {
    size_t first, size, at;  // first output, number of them, where they are in a row of `Bases`
    size_t offset;           // of the group, in bytes of a pixel
    const uint32_t* signs;

    Block(const Job& job, size_t b) {
        size_t group = b / job.in_group, within = b % job.in_group * block;
        first = group * job.inner + within;
        size = std::min(block, job.inner - within);
        at = b * block;
        offset = group * job.words * 4;
        signs = job.weights.signs + b * job.c.kernel[0] * job.c.kernel[1] * job.words * block;
    }
};

struct Tile {
    size_t first, size;
    const uint8_t* pixels[down];
    const int32_t* bases[down];

    // Pixels are spread evenly over the tiles: a last tile of one pixel would be slow.
    Tile(const Job& job, size_t i) {
        size_t least = job.pixels / job.tiles, larger = job.pixels % job.tiles;
        first = i * least + std::min(i, larger);
        size = least + (i < larger);
        size_t x = first % job.width, y = first / job.width % job.height, image = first / job.width / job.height;
        for (size_t p = 0; p < size; ++p) {
            pixels[p] = job.images.first + image * job.images.image + y * job.c.stride[0] * job.images.row +
                        x * job.c.stride[1] * job.images.pixel;
            bases[p] = job.bases.at(y, x);
            if (++x == job.width) {
                x = 0;
                if (++y == job.height) y = 0, ++image;
            }
        }
    }
};

void count_block(const Job& job, const Tile& tile, const Block& b, int32_t (*counts)[block]) {
    const uint8_t* pixels[down];
    for (size_t p = 0; p < tile.size; ++p) pixels[p] = tile.pixels[p] + b.offset;
    for (size_t from = 0; from < b.size; from += span) {
        size_t registers = std::min<size_t>(across, blocks(b.size - from, HTAF_LANES));
        auto to = reinterpret_cast<int32_t(*)[block]>(counts[0] + from);
        counters.of[(tile.size - 1) * across + registers - 1](job.runs, pixels, b.signs + from, to);
    }
}

HTAF_INLINE reg_i32 sums_of(const int32_t* counts, const int32_t* base, int shift) {
    return read<reg_i32>(base) - (read<reg_i32>(counts) << shift);
}
HTAF_INLINE reg floats_of(reg_i32 v) { return __builtin_convertvector(v, reg); }

// Bits alone, by intervals of the sums in integers.
template <int Shift>
void compare_block(const Job& job, const Tile& tile, const Block& b, const int32_t (*counts)[block]) {
    const size_t words = blocks(job.c.outputs, block);
    const uint64_t used = ~uint64_t{0} >> (block - b.size);
    uint64_t* to = job.epilogue.bits + tile.first * words + b.first / block;
    reg_u32 widths[block / HTAF_LANES];
    std::memcpy(widths, job.bases.widths + b.at, sizeof widths);
    for (size_t p = 0; p < tile.size; ++p, to += words) {
        uint64_t word = 0;
        HTAF_UNROLL
        for (size_t i = 0; i < block; i += HTAF_LANES) {
            reg_i32 above = sums_of(counts[p] + i, tile.bases[p] + b.at + i, Shift);
            word |= no_more((reg_u32)above, widths[i / HTAF_LANES]) << i;
        }
        *to = word & used;
    }
}

// A tile of a block whose outputs start at a word of bits.
void finish_block(const Job& job, const Tile& tile, const Block& b) {
    const Epilogue e = job.epilogue;
    const size_t outputs = job.c.outputs;
    const int shift = job.weights.bipolar;
    alignas(64) int32_t counts[down][block];
    count_block(job, tile, b, counts);
    if (job.bases.widths) return shift ? compare_block<1>(job, tile, b, counts) : compare_block<0>(job, tile, b, counts);
    for (size_t p = 0; p < tile.size; ++p) {
        const int32_t* base = tile.bases[p] + b.at;
        size_t pixel = tile.first + p, row = pixel * outputs + b.first;
        if (b.size < block) {
            alignas(64) float sums[block];
            for (size_t i = 0; i < b.size; i += HTAF_LANES) {
                reg y = floats_of(sums_of(counts[p] + i, base + i, shift));
                std::memcpy(sums + i, &y, sizeof y);
            }
            finish(e, sums, pixel, b.first, b.size, outputs);
        } else {
            uint64_t word = 0;
            HTAF_UNROLL
            for (size_t i = 0; i < block; i += HTAF_LANES) {
                size_t o = b.first + i;
                reg y = finish_floats(e, floats_of(sums_of(counts[p] + i, base + i, shift)), o, row + i);
                if (e.bits) word |= within(y, read<reg>(e.lower + o), read<reg>(e.upper + o)) << i;
            }
            if (e.bits) e.bits[pixel * blocks(outputs, block) + b.first / block] = word;
        }
    }
}

// A tile of all groups, whose outputs start anywhere in a word; sums [down, outputs].
void finish_groups(const Job& job, const Tile& tile, float* sums) {
    alignas(64) int32_t counts[down][block];
    size_t outputs = job.c.outputs;
    for (size_t i = 0; i < job.c.groups * job.in_group; ++i) {
        Block b(job, i);
        count_block(job, tile, b, counts);
        for (size_t p = 0; p < tile.size; ++p)
            for (size_t j = 0; j < b.size; ++j)
                sums[p * outputs + b.first + j] =
                    static_cast<float>(tile.bases[p][b.at + j] - (counts[p][j] << job.weights.bipolar));
    }
    for (size_t p = 0; p < tile.size; ++p)
        for (size_t i = 0; i < outputs; i += block)
            finish(job.epilogue, sums + p * outputs + i, tile.first + p, i, std::min(block, outputs - i), outputs);
}

void forward(const Convolution& c, const BinaryWeights& weights, const uint8_t* bits, const Epilogue& epilogue,
             int threads) {
    if (!c.pixels()) return;
    Bordered bordered(c, bits, threads);
    Images images = bordered.of(bits);
    size_t words = blocks(c.channels / c.groups, 32), inner = c.outputs / c.groups, in_group = blocks(inner, block);
    bool at_words = c.groups == 1 || inner % block == 0;  // every group's outputs start at a word of bits
    Bases bases(c, weights);
    if (at_words) bases.compare(epilogue, c.outputs);
    bool in_a_row = c.dilation[1] == 1 && images.pixel == words * 4;  // the taps of a row of the kernel
    size_t wide = in_a_row ? 1 : c.kernel[1];
    Buffer<size_t> offsets(c.kernel[0] * wide);
    for (size_t y = 0; y < c.kernel[0]; ++y)
        for (size_t x = 0; x < wide; ++x)
            offsets[y * wide + x] = y * c.dilation[0] * images.row + x * c.dilation[1] * images.pixel;
    Runs runs{offsets, c.kernel[0] * wide, in_a_row ? c.kernel[1] * words : words};
    size_t tiles = blocks(c.pixels(), down);
    Job job{c,     weights, epilogue, images, bases, runs, c.pixels(), c.out_height(), c.out_width(),
            tiles, inner,   in_group, words};
    if (!at_words) {
        parallel(tiles, threads, [&](size_t begin, size_t end) {
            Buffer<float> sums(product(down, c.outputs));
            for (size_t i = begin; i < end; ++i) finish_groups(job, Tile(job, i), sums);
        });
        return;
    }
    // All blocks of outputs of as many tiles as stay near, then of the next ones.
    // What a tile adds to them, above 0 and without wrapping around where a stride is large.
    size_t fresh = down * std::min(c.stride[0], near) * std::min(c.stride[1], near) * std::min(images.pixel, near);
    size_t all = c.groups * in_group, together = std::min(tiles, std::max<size_t>(8, near / std::max<size_t>(fresh, 1)));
    parallel(tiles * all, threads, [&](size_t begin, size_t end) {
        size_t part = begin / (together * all) * together, here = std::min(together, tiles - part);
        size_t b = (begin - part * all) / here, i = (begin - part * all) % here;
        for (size_t left = end - begin; left; i = 0) {
            Block outputs(job, b);
            for (; i < here && left; ++i, --left) finish_block(job, Tile(job, part + i), outputs);
            if (++b == all) {
                b = 0;
                part += here;
                here = std::min(together, tiles - part);
            }
        }
    });
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
const BinaryKernels binary = {forward, spin};
}  // namespace htaf::HTAF_NAMESPACE
