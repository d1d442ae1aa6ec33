// Layers whose sums grow in registers: lanes are outputs, a tile is some pixels by 64 outputs, and its words of 4 bytes pass.
// What a word adds, a `Tally` says: binary.cpp, integers.cpp. Included once per instruction set.
#pragma once

#include <algorithm>
#include <utility>

#include "binary_inputs.hpp"
#include "epilogue.hpp"
#include "parallel.hpp"

namespace htaf::HTAF_NAMESPACE {
namespace {

#if defined(__clang__)
#define HTAF_UNROLL _Pragma("unroll")
#else
#define HTAF_UNROLL _Pragma("GCC unroll 8")
#endif

#if defined(__AMX_INT8__)
constexpr int down = 32, across = 4;  // two tiles of the processor, of 16 pixels each: amx.cpp
#elif defined(__AVX512F__)
constexpr int down = 6, across = 4;  // pixels and registers of outputs that are counted together, as registers last
#elif defined(__ARM_NEON)
constexpr int down = 4, across = 4;
#else
constexpr int down = 2, across = 4;
#endif
constexpr size_t span = across * HTAF_LANES;
constexpr size_t near = 1 << 17;  // bytes of images that stay in a cache of the second level beside the weights

// The words of a tap, or of a row of taps where these lie in a row, are a run. All runs are of one length.
struct Runs {
    const size_t* offsets;  // in bytes, from a pixel's first tap
    size_t count, length;   // length in words
};

// counts[p] = what P pixels and the weights of R registers of outputs add up to.
template <template <int, int> class Tally, int P, int R>
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
template <template <int, int> class Tally, size_t... I>
constexpr Counts all_counts(std::index_sequence<I...>) {
    return {{count<Tally, I / across + 1, I % across + 1>...}};
}

struct Job {
    const Convolution& c;
    const Counts& counters;
    const uint32_t* weights;  // [groups, blocks, taps, words, 64]
    int shift;                // a sum is base - (count << shift)
    const Epilogue& epilogue;
    Images images;
    const Bases& bases;
    Runs runs;
    size_t pixels, height, width;  // of the output
    size_t tiles;                  // of up to `down` pixels
    size_t inner, in_group;        // outputs of a group, blocks of them
    size_t words;                  // of 4 bytes, that a group has a pixel

    bool at_words() const { return c.groups == 1 || inner % block == 0; }  // every group's outputs start at a word of bits
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
        signs = job.weights + b * job.c.kernel[0] * job.c.kernel[1] * job.words * block;
    }
};

struct Tile {
    size_t first, size;
    const uint8_t* pixels[down];
    const int32_t* bases[down];

    // Pixels are spread evenly over the tiles: a last tile of one pixel would be slow. Those of the processor are filled.
    Tile(const Job& job, size_t i) {
        size_t least = added ? down : job.pixels / job.tiles, larger = added ? 0 : job.pixels % job.tiles;
        first = i * least + std::min(i, larger);
        size = std::min(least + (i < larger), job.pixels - first);
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
        job.counters.of[(tile.size - 1) * across + registers - 1](job.runs, pixels, b.signs + from, to);
    }
}

HTAF_INLINE reg_i32 sums_of(const int32_t* counts, const int32_t* base, int shift) {
    reg_i32 all = read<reg_i32>(counts) << shift;
    return added ? read<reg_i32>(base) + all : read<reg_i32>(base) - all;
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
HTAF_INLINE void finish_counts(const Job& job, const Tile& tile, const Block& b, const int32_t (*counts)[block]) {
    const Epilogue e = job.epilogue;
    const size_t outputs = job.c.outputs;
    const int shift = job.shift;
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

void finish_block(const Job& job, const Tile& tile, const Block& b) {
    alignas(64) int32_t counts[down][block];
    count_block(job, tile, b, counts);
    finish_counts(job, tile, b, counts);
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
                    static_cast<float>(tile.bases[p][b.at + j] - (counts[p][j] << job.shift));
    }
    for (size_t p = 0; p < tile.size; ++p)
        for (size_t i = 0; i < outputs; i += block)
            finish(job.epilogue, sums + p * outputs + i, tile.first + p, i, std::min(block, outputs - i), outputs);
}

void every_tile(const Job& job, int threads) {
    const Convolution& c = job.c;
    if (!job.at_words()) {
        parallel(job.tiles, threads, [&](size_t begin, size_t end) {
            Buffer<float> sums(product(down, c.outputs));
            for (size_t i = begin; i < end; ++i) finish_groups(job, Tile(job, i), sums);
        });
        return;
    }
    // All blocks of outputs of as many tiles as stay near, then of the next ones.
    // What a tile adds to them, above 0 and without wrapping around where a stride is large.
    size_t fresh = down * std::min(c.stride[0], near) * std::min(c.stride[1], near) * std::min(job.images.pixel, near);
    size_t all = c.groups * job.in_group, together = std::min(job.tiles, std::max<size_t>(8, near / std::max<size_t>(fresh, 1)));
    parallel(job.tiles * all, threads, [&](size_t begin, size_t end) {
        size_t part = begin / (together * all) * together, here = std::min(together, job.tiles - part);
        size_t b = (begin - part * all) / here, i = (begin - part * all) % here;
        for (size_t left = end - begin; left; i = 0) {
            Block outputs(job, b);
            for (; i < here && left; ++i, --left) finish_block(job, Tile(job, part + i), outputs);
            if (++b == all) {
                b = 0;
                part += here;
                here = std::min(together, job.tiles - part);
            }
        }
    });
}

// The whole layer, from images in bytes; `words` of 4 bytes are a group's channels of a pixel.
template <void (*Loop)(const Job&, int) = every_tile>
void all_tiles(const Convolution& c, const Counts& counters, const uint32_t* weights, int shift, size_t words,
               const Images& images, Bases& bases, const Epilogue& epilogue, int threads) {
    size_t inner = c.outputs / c.groups, in_group = blocks(inner, block);
    bool in_a_row = c.dilation[1] == 1 && images.pixel == words * 4;  // the taps of a row of the kernel
    size_t wide = in_a_row ? 1 : c.kernel[1];
    Buffer<size_t> offsets(c.kernel[0] * wide);
    for (size_t y = 0; y < c.kernel[0]; ++y)
        for (size_t x = 0; x < wide; ++x)
            offsets[y * wide + x] = y * c.dilation[0] * images.row + x * c.dilation[1] * images.pixel;
    Runs runs{offsets, c.kernel[0] * wide, in_a_row ? c.kernel[1] * words : words};
    size_t tiles = blocks(c.pixels(), down);
    Job job{c,    counters,   weights,        shift,         epilogue, images, bases,
            runs, c.pixels(), c.out_height(), c.out_width(), tiles,    inner,  in_group, words};
    if (job.at_words()) bases.compare(epilogue, c.outputs);
    Loop(job, threads);
}

}  // namespace
}  // namespace htaf::HTAF_NAMESPACE
