// Sums of products of signs are counts of differing bits: xor, popcount, add. Lanes are outputs, a tile is some pixels by
// 64 outputs, whose counts stay in registers while its words pass. Compiled once per instruction set: see CMakeLists.txt.
#include "binary.hpp"

#include <algorithm>
#include <cstdlib>
#include <new>
#include <utility>

#include "epilogue.hpp"
#include "parallel.hpp"
#if defined(__ARM_NEON)
#include <arm_neon.h>
#endif

namespace htaf::HTAF_NAMESPACE {
namespace {

using std::int32_t;
using std::size_t;
using std::uint32_t;
using std::uint64_t;
using std::uint8_t;

#if defined(__clang__)
#define HTAF_UNROLL _Pragma("unroll")
#else
#define HTAF_UNROLL _Pragma("GCC unroll 8")
#endif

constexpr size_t block = 64;  // outputs of a tile, a word of their bits
constexpr int across = 4;     // registers of outputs that are counted together
#if defined(__AVX512F__)
constexpr int down = 6;  // pixels of a tile, as far as registers last
constexpr size_t most = 0;
#elif defined(__ARM_NEON)
constexpr int down = 4;
constexpr size_t most = 31;  // words until a count of bits in a byte could overflow
#else
constexpr int down = 2;
constexpr size_t most = 31;
#endif
constexpr size_t span = across * HTAF_LANES;
constexpr size_t near = 1 << 17;       // bytes of images that stay in a cache of the second level beside the weights
constexpr size_t small_copy = 1 << 16;  // bytes that one thread copies faster than several

inline size_t blocks(size_t n, size_t size) { return (n + size - 1) / size; }

// malloc rather than std::vector, whose code could be shared with a processor that lacks this file's instructions.
template <class V>
class Buffer {
   public:
    explicit Buffer(size_t n) : first_(static_cast<V*>(std::malloc((n + !n) * sizeof(V)))) {
        if (!first_) throw std::bad_alloc();
    }
    Buffer(const Buffer&) = delete;
    ~Buffer() { std::free(first_); }
    operator V*() { return first_; }
    operator const V*() const { return first_; }

   private:
    V* first_;
};

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

template <int P, int R>
HTAF_INLINE void step(const uint8_t* const* pixels, size_t at, const uint32_t* signs, reg_u32 (&sums)[P][R]) {
    reg_u32 w[R];
    HTAF_UNROLL
    for (int r = 0; r < R; ++r) w[r] = read<reg_u32>(signs + r * HTAF_LANES);
    HTAF_UNROLL
    for (int p = 0; p < P; ++p) {
        reg_u32 a = reg_u32{} + read<uint32_t>(pixels[p] + at);
        HTAF_UNROLL
        for (int r = 0; r < R; ++r) sums[p][r] += ones(a ^ w[r]);
    }
}

// counts[p] = in how many bits P pixels differ from the signs of R registers of outputs.
template <int P, int R>
void count(const Runs& runs, const uint8_t* const* from, const uint32_t* signs, int32_t (*counts)[block]) {
    const uint8_t* pixels[P];
    for (int p = 0; p < P; ++p) pixels[p] = from[p];
    reg_u32 sums[P][R] = {}, total[P][R] = {};
    size_t room = most;
    for (size_t run = 0; run < runs.count; ++run) {
        size_t at = runs.offsets[run];
        for (size_t left = runs.length; left;) {
            size_t n = most ? std::min(left, room) : left;
            for (size_t i = 0; i < n; ++i, at += 4, signs += block) step<P, R>(pixels, at, signs, sums);
            left -= n;
            if (most && !(room -= n)) {
                room = most;
                for (int p = 0; p < P; ++p)
                    for (int r = 0; r < R; ++r) {
                        total[p][r] += lanes_of(sums[p][r]);
                        sums[p][r] = reg_u32{};
                    }
            }
        }
    }
    HTAF_UNROLL
    for (int p = 0; p < P; ++p) {
        HTAF_UNROLL
        for (int r = 0; r < R; ++r) {
            reg_u32 sum = lanes_of(sums[p][r]);
            if (most) sum += total[p][r];
            std::memcpy(counts[p] + r * HTAF_LANES, &sum, sizeof sum);
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
          copy_(copied_ ? c.batch * height_ * width_ * pixel_ : 0) {
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
class Bases {
   public:
    Bases(const Convolution& c, const BinaryWeights& w)
        : rows(c, 0, w.bipolar), columns(c, 1, w.bipolar),
          outputs_(c.groups * blocks(c.outputs / c.groups, block) * block),
          values_((rows.count * columns.count + 1) * outputs_) {
        int32_t channels = static_cast<int32_t>(c.channels / c.groups);
        int32_t* all = values_ + rows.count * columns.count * outputs_;
        add(all, w.ones, c.kernel[1], 0, c.kernel[0], 0, c.kernel[1]);
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
    const int32_t* at(size_t y, size_t x) const {
        return values_ + (rows.of[y] * columns.count + columns.of[x]) * outputs_;
    }

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

struct Job {
    const Convolution& c;
    const BinaryWeights& weights;
    const Epilogue& epilogue;
    Images images;
    const Bases& bases;
    Runs runs;
    size_t height, width, tiles;  // of the output; tiles of up to `down` pixels
    size_t inner, in_group;       // outputs of a group, blocks of them
};

struct Tile {
    size_t first, size;
    const uint8_t* pixels[down];
    const int32_t* bases[down];

    // Pixels are spread evenly over the tiles: a last tile of one pixel would be slow.
    Tile(const Job& job, size_t i) : first(job.c.pixels() * i / job.tiles) {
        size = job.c.pixels() * (i + 1) / job.tiles - first;
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

HTAF_INLINE reg sums_of(const int32_t* counts, const int32_t* base, int shift) {
    return __builtin_convertvector(read<reg_i32>(base) - (read<reg_i32>(counts) << shift), reg);
}

// counts[p] of block b of all groups' blocks, of which there are n outputs.
void count_block(const Job& job, const Tile& tile, size_t b, size_t n, int32_t (*counts)[block]) {
    size_t words = blocks(job.c.channels / job.c.groups, 32), taps = job.c.kernel[0] * job.c.kernel[1];
    const uint32_t* signs = job.weights.signs + b * taps * words * block;
    const uint8_t* pixels[down];
    for (size_t p = 0; p < tile.size; ++p) pixels[p] = tile.pixels[p] + b / job.in_group * words * 4;
    for (size_t from = 0; from < n; from += span) {
        size_t registers = std::min<size_t>(across, blocks(n - from, HTAF_LANES));
        auto to = reinterpret_cast<int32_t(*)[block]>(counts[0] + from);
        counters.of[(tile.size - 1) * across + registers - 1](job.runs, pixels, signs + from, to);
    }
}

// A tile of a block whose outputs start at a word of bits.
void finish_block(const Job& job, const Tile& tile, size_t b) {
    const Epilogue& e = job.epilogue;
    alignas(64) int32_t counts[down][block];
    size_t in_group = b % job.in_group * block, n = std::min(block, job.inner - in_group);
    size_t first = b / job.in_group * job.inner + in_group;
    int shift = job.weights.bipolar;
    count_block(job, tile, b, n, counts);
    for (size_t p = 0; p < tile.size; ++p) {
        const int32_t* base = tile.bases[p] + b * block;
        size_t pixel = tile.first + p, row = pixel * job.c.outputs + first;
        if (n < block) {
            alignas(64) float sums[block];
            for (size_t i = 0; i < n; i += HTAF_LANES) {
                reg y = sums_of(counts[p] + i, base + i, shift);
                std::memcpy(sums + i, &y, sizeof y);
            }
            finish(e, sums, pixel, first, n, job.c.outputs);
            continue;
        }
        uint64_t word = 0;
        HTAF_UNROLL
        for (size_t i = 0; i < block; i += HTAF_LANES) {
            reg y = finish_floats(e, sums_of(counts[p] + i, base + i, shift), first + i, row + i);
            if (e.bits) word |= within(y, read<reg>(e.lower + first + i), read<reg>(e.upper + first + i)) << i;
        }
        if (e.bits) e.bits[pixel * blocks(job.c.outputs, block) + first / block] = word;
    }
}

// A tile of all groups, whose outputs start anywhere in a word; sums [down, outputs].
void finish_groups(const Job& job, const Tile& tile, float* sums) {
    alignas(64) int32_t counts[down][block];
    size_t outputs = job.c.outputs;
    for (size_t b = 0; b < job.c.groups * job.in_group; ++b) {
        size_t in_group = b % job.in_group * block, n = std::min(block, job.inner - in_group);
        count_block(job, tile, b, n, counts);
        for (size_t p = 0; p < tile.size; ++p) {
            float* to = sums + p * outputs + b / job.in_group * job.inner + in_group;
            const int32_t* base = tile.bases[p] + b * block;
            for (size_t i = 0; i < n; ++i) to[i] = static_cast<float>(base[i] - (counts[p][i] << job.weights.bipolar));
        }
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
    Bases bases(c, weights);
    size_t words = blocks(c.channels / c.groups, 32);
    bool in_a_row = c.dilation[1] == 1 && images.pixel == words * 4;  // the taps of a row of the kernel
    size_t wide = in_a_row ? 1 : c.kernel[1];
    Buffer<size_t> offsets(c.kernel[0] * wide);
    for (size_t y = 0; y < c.kernel[0]; ++y)
        for (size_t x = 0; x < wide; ++x)
            offsets[y * wide + x] = y * c.dilation[0] * images.row + x * c.dilation[1] * images.pixel;
    Runs runs{offsets, c.kernel[0] * wide, in_a_row ? c.kernel[1] * words : words};
    size_t tiles = blocks(c.pixels(), down), inner = c.outputs / c.groups, in_group = blocks(inner, block);
    Job job{c, weights, epilogue, images, bases, runs, c.out_height(), c.out_width(), tiles, inner, in_group};
    if (c.groups > 1 && inner % block) {
        parallel(tiles, threads, [&](size_t begin, size_t end) {
            Buffer<float> sums(down * c.outputs);
            for (size_t i = begin; i < end; ++i) finish_groups(job, Tile(job, i), sums);
        });
        return;
    }
    // All blocks of outputs of as many tiles as stay near, then of the next ones.
    size_t all = c.groups * in_group, fresh = down * c.stride[0] * c.stride[1] * images.pixel;
    size_t together = std::min(tiles, std::max<size_t>(8, near / fresh));
    parallel(tiles * all, threads, [&](size_t begin, size_t end) {
        for (size_t i = begin; i < end; ++i) {
            size_t part = i / (together * all) * together, here = std::min(together, tiles - part), at = i - part * all;
            finish_block(job, Tile(job, part + at % here), at / here);
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
        // each step's words are others, for all that the compiler knows
        HTAF_UNROLL
        for (int p = 0; p < high; ++p) asm volatile("" : HTAF_REGISTER(a[p]));
        HTAF_UNROLL
        for (int r = 0; r < wide; ++r) asm volatile("" : HTAF_REGISTER(w[r]));
    }
    HTAF_UNROLL
    for (int p = 0; p < high; ++p) {
        HTAF_UNROLL
        for (int r = 0; r < wide; ++r) asm volatile("" : HTAF_REGISTER(sums[p][r]));
    }
    return uint64_t{high} * wide * 32 * HTAF_LANES * steps;
}

}  // namespace

extern const BinaryKernels binary;
const BinaryKernels binary = {forward, spin};
}  // namespace htaf::HTAF_NAMESPACE
