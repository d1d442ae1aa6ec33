// Lanes are outputs, a tile is some pixels by 64 outputs, whose sums stay in registers while the inputs pass: each is one
// broadcast for as many multiply-adds as there are registers of outputs. Compiled once per instruction set.
#include "floats.hpp"

#include <algorithm>
#include <utility>

#include "arena.hpp"
#include "epilogue.hpp"
#include "parallel.hpp"

namespace htaf::HTAF_NAMESPACE {
namespace {

#if defined(__clang__)
#define HTAF_UNROLL _Pragma("unroll")
#else
#define HTAF_UNROLL _Pragma("GCC unroll 8")
#endif

#if defined(__AVX512F__) || defined(__ARM_NEON)
constexpr int down = 6, across = 4;  // pixels and registers of outputs: 24 of 32 registers hold sums
#else
constexpr int down = 6, across = 2;  // 12 of 16
#endif
constexpr size_t block = 64;         // outputs that lie side by side
constexpr size_t span = across * HTAF_LANES;
constexpr size_t small = 1 << 17;    // multiply-adds that one thread does sooner than several start
constexpr size_t copied = 1 << 14;   // floats likewise

// The inputs of a tap, or of a row of taps where these lie in a row, are a run. All runs are of one length.
struct Runs {
    const size_t* offsets;  // from a pixel's first tap
    size_t count, length;
};

template <int P, int R>
void multiply(const Runs& runs, const float* const* from, const float* weights, float (*sums)[block]) {
    reg total[P][R] = {};
    for (size_t k = 0; k < runs.count; ++k) {
        const float* pixels[P];
        HTAF_UNROLL for (int p = 0; p < P; ++p) pixels[p] = from[p] + runs.offsets[k];
        for (size_t i = 0; i < runs.length; ++i, weights += block) {
            reg w[R];
            HTAF_UNROLL for (int r = 0; r < R; ++r) w[r] = read<reg>(weights + r * HTAF_LANES);
            HTAF_UNROLL for (int p = 0; p < P; ++p) {
                reg x = one(pixels[p][i]);
                HTAF_UNROLL for (int r = 0; r < R; ++r) total[p][r] += x * w[r];
            }
        }
    }
    HTAF_UNROLL for (int p = 0; p < P; ++p)
        HTAF_UNROLL for (int r = 0; r < R; ++r) std::memcpy(sums[p] + r * HTAF_LANES, &total[p][r], sizeof(reg));
}

using Multiply = void (*)(const Runs&, const float* const*, const float*, float (*)[block]);
struct Multiplies {
    Multiply of[down * across];
};
template <size_t... I>
constexpr Multiplies all_multiplies(std::index_sequence<I...>) {
    return {{multiply<I / across + 1, I % across + 1>...}};
}
constexpr Multiplies multiplies = all_multiplies(std::make_index_sequence<down * across>{});

// Images with their border, channels side by side: the images themselves where they are so, else a copy.
struct Bordered {
    const float* first;
    size_t pixel, row, image;

    Bordered(const Convolution& c, const FloatImages& x, Arena& arena, int threads) {
        if (!c.padding[0] && !c.padding[1] && x.channel == 1) {
            first = x.first, pixel = x.pixel, row = x.row, image = x.image;
            return;
        }
        size_t height = c.height + 2 * c.padding[0], width = c.width + 2 * c.padding[1];
        pixel = c.channels, row = width * pixel, image = height * row;
        auto [to] = arrays<float>(arena, c.batch * image);
        first = to;
        size_t rows = c.batch * height;
        parallel(rows, rows * row < copied ? 1 : threads, [&, this, to = to](size_t begin, size_t end) {
            for (size_t i = begin; i < end; ++i) {
                size_t y = i % height - c.padding[0];  // above the image it wraps around
                float* at = to + i * row;
                if (y >= c.height) {
                    std::fill_n(at, row, 0.0f);
                    continue;
                }
                size_t side = c.padding[1] * pixel;
                std::fill_n(at, side, 0.0f);
                std::fill_n(at + row - side, side, 0.0f);
                const float* from = x.first + i / height * x.image + y * x.row;
                for (size_t k = 0; k < c.channels; ++k)
                    for (size_t j = 0; j < c.width; ++j) at[side + j * pixel + k] = from[j * x.pixel + k * x.channel];
            }
        });
    }
};

struct Sizes {
    const Convolution& c;
    size_t width, height, blocks;  // of the sums; of the outputs

    explicit Sizes(const Convolution& c)
        : c(c), width(c.out_width()), height(c.out_height()), blocks((c.outputs + block - 1) / block) {}
    size_t size(size_t b) const { return std::min(block, c.outputs - b * block); }
    // f(p, address of its first tap, image) of pixels first + p, p < n.
    template <class Images, class F>
    HTAF_INLINE void each(const Images& x, size_t first, size_t n, const F& f) const {
        size_t column = first % width, row = first / width, y = row % height, image = row / height;
        auto line = [&] { return x.first + image * x.image + y * c.stride[0] * x.row; };
        auto at = line() + column * c.stride[1] * x.pixel;
        for (size_t p = 0; p < n; ++p, at += c.stride[1] * x.pixel) {
            if (column == width) {
                column = 0;
                if (++y == height) y = 0, ++image;
                at = line();
            }
            f(p, at, image);
            ++column;
        }
    }
};

struct Job : Sizes {
    const float* weights;
    Bordered x;
    Runs runs;

    Job(const Convolution& c, const float* weights, Bordered x, Runs runs) : Sizes(c), weights(weights), x(x), runs(runs) {}
    size_t inputs() const { return runs.count * runs.length; }

    // The sums of pixels [first, first + n), n <= down, and block b.
    void sum(size_t first, size_t n, size_t b, float (*sums)[block]) const {
        const float* pixels[down];
        each(x, first, n, [&](size_t p, const float* at, size_t) { pixels[p] = at; });
        for (size_t from = 0; from < size(b); from += span) {
            size_t registers = std::min<size_t>(across, (size(b) - from + HTAF_LANES - 1) / HTAF_LANES);
            auto to = reinterpret_cast<float(*)[block]>(sums[0] + from);
            multiplies.of[(n - 1) * across + registers - 1](runs, pixels, weights + b * inputs() * block + from, to);
        }
    }
};

// ---- the same in integers of 16 bits

template <int P, int R>
void multiply_pairs(size_t rows, size_t pairs, size_t down_one, const std::int16_t* const* from, const std::int16_t* weights,
                    reg_i32 (*sums)[across]) {
    reg_i32 total[P][R] = {};
    for (size_t k = 0; k < rows; ++k) {
        const std::int16_t* pixels[P];
        HTAF_UNROLL for (int p = 0; p < P; ++p) pixels[p] = from[p] + k * down_one;
        for (size_t i = 0; i < pairs; ++i, weights += 2 * block) {
            reg_i32 w[R];
            HTAF_UNROLL for (int r = 0; r < R; ++r) w[r] = read<reg_i32>(weights + 2 * r * HTAF_LANES);
            HTAF_UNROLL for (int p = 0; p < P; ++p) {
                auto pair = read<std::int32_t>(pixels[p] + 2 * i);
#if defined(__AVX512VNNI__)
                __m512i x = _mm512_set1_epi32(pair);
                HTAF_UNROLL for (int r = 0; r < R; ++r)
                    total[p][r] = (reg_i32)_mm512_dpwssd_epi32((__m512i)total[p][r], x, (__m512i)w[r]);
#elif defined(__AVX2__)
                __m256i x = _mm256_set1_epi32(pair);
                HTAF_UNROLL for (int r = 0; r < R; ++r) total[p][r] += (reg_i32)_mm256_madd_epi16(x, (__m256i)w[r]);
#else
                std::int32_t low = static_cast<std::int16_t>(pair), high = pair >> 16;
                HTAF_UNROLL for (int r = 0; r < R; ++r) {
                    reg_i32 even = (reg_i32)((reg_u32)w[r] << 16) >> 16;
                    total[p][r] += even * low + (w[r] >> 16) * high;
                }
#endif
            }
        }
    }
    HTAF_UNROLL for (int p = 0; p < P; ++p)
        HTAF_UNROLL for (int r = 0; r < R; ++r) sums[p][r] = total[p][r];
}

using MultiplyPairs = void (*)(size_t, size_t, size_t, const std::int16_t* const*, const std::int16_t*, reg_i32 (*)[across]);
struct MultipliesPairs {
    MultiplyPairs of[down * across];
};
template <size_t... I>
constexpr MultipliesPairs all_multiplies_pairs(std::index_sequence<I...>) {
    return {{multiply_pairs<I / across + 1, I % across + 1>...}};
}
constexpr MultipliesPairs multiplies_pairs = all_multiplies_pairs(std::make_index_sequence<down * across>{});

// n floats, `apart` from one to the next, as integers that lie side by side; whether one is NaN.
HTAF_INLINE bool round_floats(const float* from, size_t apart, size_t n, float steps, float most, std::int16_t* to) {
    int wrong = 0;
    auto one = [&](size_t i, float x) __attribute__((always_inline)) {
        float v = __builtin_rintf(x * steps);
        wrong |= x != x;
        v = v >= -most ? v : -most;  // of NaN too
        to[i] = static_cast<std::int16_t>(v <= most ? v : most);
    };
    if (apart == 1) for (size_t i = 0; i < n; ++i) one(i, from[i]);
    else for (size_t i = 0; i < n; ++i) one(i, from[i * apart]);
    return wrong;
}

// Integers of images with their border, and of each image 1, or NaN.
struct RoundedImages {
    const std::int16_t* first;
    size_t pixel, row, image;
    const float* one;

    RoundedImages(const Convolution& c, const FloatImages& x, const RoundedWeights& w, Arena& arena, int threads) {
        size_t height = c.height + 2 * c.padding[0], width = c.width + 2 * c.padding[1], rows = c.batch * height;
        pixel = c.channels, row = width * pixel, image = height * row;
        // of the last pair of a row, the second input may be one behind it
        auto [to, ones, wrong] = arrays<std::int16_t, float, bool>(arena, c.batch * image + 1, c.batch, rows);
        to[c.batch * image] = 0;
        first = to, one = ones;
        parallel(rows, rows * row < copied ? 1 : threads, [&, this, to = to, wrong = wrong](size_t begin, size_t end) {
            static thread_local Arena of_planes;
            auto [planes] = arrays<std::int16_t>(of_planes, c.width * c.channels);
            for (size_t i = begin; i < end; ++i) {
                size_t y = i % height - c.padding[0], side = c.padding[1] * pixel;  // above the image it wraps around
                std::int16_t* at = to + i * row;
                wrong[i] = false;
                if (y >= c.height) {
                    std::fill_n(at, row, std::int16_t{0});
                    continue;
                }
                std::fill_n(at, side, std::int16_t{0});
                std::fill_n(at + row - side, side, std::int16_t{0});
                const float* from = x.first + i / height * x.image + y * x.row;
                if (x.channel == 1 && x.pixel == c.channels) {
                    wrong[i] = round_floats(from, 1, c.width * c.channels, w.steps, w.most, at + side);
                    continue;
                }
                for (size_t k = 0; k < c.channels; ++k)
                    wrong[i] |= round_floats(from + k * x.channel, x.pixel, c.width, w.steps, w.most, planes + k * c.width);
                for (size_t j = 0; j < c.width; ++j)
                    for (size_t k = 0; k < c.channels; ++k) at[side + j * pixel + k] = planes[k * c.width + j];
            }
            of_planes.forget_much();
        });
        for (size_t n = 0; n < c.batch; ++n)
            ones[n] = std::any_of(wrong + n * height, wrong + (n + 1) * height, [](bool b) { return b; }) ? NAN : 1;
    }
};

struct RoundedJob : Sizes {
    RoundedWeights weights;
    RoundedImages x;
    size_t pairs;

    RoundedJob(const Convolution& c, const RoundedWeights& weights, RoundedImages x)
        : Sizes(c), weights(weights), x(x), pairs((c.kernel[1] * c.channels + 1) / 2) {}

    void sum(size_t first, size_t n, size_t b, float (*sums)[block]) const {
        const std::int16_t* pixels[down];
        float ones[down];
        each(x, first, n, [&](size_t p, const std::int16_t* at, size_t image) { pixels[p] = at, ones[p] = x.one[image]; });
        const std::int16_t* values = weights.values + b * c.kernel[0] * pairs * 2 * block;
        for (size_t from = 0; from < size(b); from += span) {
            size_t registers = std::min<size_t>(across, (size(b) - from + HTAF_LANES - 1) / HTAF_LANES);
            reg_i32 totals[down][across];
            multiplies_pairs.of[(n - 1) * across + registers - 1](c.kernel[0], pairs, c.dilation[0] * x.row, pixels,
                                                                  values + 2 * from, totals);
            for (size_t p = 0; p < n; ++p) {
                for (size_t r = 0; r < registers; ++r) {
                    size_t o = from + r * HTAF_LANES;
                    reg y = __builtin_convertvector(totals[p][r], reg) * (read<reg>(weights.unit + b * block + o) * ones[p]);
                    std::memcpy(sums[p] + o, &y, sizeof y);
                }
            }
        }
    }
};

// ---- from tiles to outputs

// A last tile of one pixel would be slow: pixels are spread evenly.
struct Tile {
    size_t first, size;
    Tile(size_t pixels, size_t tiles, size_t i) {
        size_t least = pixels / tiles, larger = pixels % tiles;
        first = i * least + std::min(i, larger), size = least + (i < larger);
    }
};

template <class J>
void all_sums(const J& job, const Epilogue& e, int threads) {
    size_t pixels = job.c.pixels(), tiles = (pixels + down - 1) / down;
    parallel(tiles * job.blocks, threads, [&](size_t begin, size_t end) {
        alignas(64) float sums[down][block];
        for (size_t i = begin; i < end; ++i) {
            size_t b = i / tiles;
            Tile tile(pixels, tiles, i % tiles);
            job.sum(tile.first, tile.size, b, sums);
            for (size_t p = 0; p < tile.size; ++p)
                finish(e, sums[p], tile.first + p, b * block, job.size(b), job.c.outputs);
        }
    });
}

HTAF_INLINE void largest(float* to, const float* from, size_t n) {
    size_t i = 0;
    for (; i + HTAF_LANES <= n; i += HTAF_LANES) {
        reg before = read<reg>(to + i), v = greater(before, read<reg>(from + i));
        v = before == before ? v : before;  // NaN stays
        std::memcpy(to + i, &v, sizeof v);
    }
    for (; i < n; ++i)
        if (!(from[i] <= to[i]) && to[i] == to[i]) to[i] = from[i];
}

// The sums of a row are kept until no window needs them: a ring of as many rows as a window has.
template <class J>
void pooled_sums(const J& job, const MaxWindow& w, const Epilogue& e, int threads) {
    size_t rows = w.extent(job.height, 0), columns = w.extent(job.width, 1), images = job.c.batch;
    size_t tiles = (job.width + down - 1) / down, line = job.width * block;
    parallel(job.blocks * images * rows, threads, [&](size_t begin, size_t end) {
        static thread_local Arena arena;
        auto [ring] = arrays<float>(arena, w.kernel[0] * line);
        size_t next = 0;  // the first row whose sums are not there
        for (size_t i = begin; i < end; ++i) {
            size_t y = i % rows, image = i / rows % images, b = i / rows / images, n = job.size(b);
            size_t from = y * w.stride[0] > w.padding[0] ? y * w.stride[0] - w.padding[0] : 0;
            size_t to = std::min(job.height, y * w.stride[0] + w.kernel[0] - w.padding[0]);
            if (i == begin || y == 0) next = 0;
            for (next = std::max(next, from); next < to; ++next)
                for (size_t t = 0; t < tiles; ++t) {
                    Tile tile(job.width, tiles, t);
                    auto sums = reinterpret_cast<float(*)[block]>(ring + next % w.kernel[0] * line + tile.first * block);
                    job.sum((image * job.height + next) * job.width + tile.first, tile.size, b, sums);
                }
            for (size_t x = 0; x < columns; ++x) {
                size_t left = x * w.stride[1] > w.padding[1] ? x * w.stride[1] - w.padding[1] : 0;
                size_t right = std::min(job.width, x * w.stride[1] + w.kernel[1] - w.padding[1]);
                alignas(64) float most[block];
                std::fill_n(most, block, -INFINITY);
                for (size_t r = from; r < to; ++r)
                    for (size_t k = left; k < right; ++k)
                        largest(most, ring + r % w.kernel[0] * line + k * block, up(n, HTAF_LANES));
                finish(e, most, (image * rows + y) * columns + x, b * block, n, job.c.outputs);
            }
        }
        arena.forget_much();
    });
}

void convolution(const Convolution& c, const FloatImages& x, const float* weights, const MaxWindow& window,
                 const Epilogue& e, int threads) {
    if (!c.pixels()) return;
    size_t inputs = c.channels * c.kernel[0] * c.kernel[1];
    if (c.pixels() * c.outputs * inputs < small) threads = 1;
    static thread_local Arena of_images, of_offsets;
    Bordered images(c, x, of_images, threads);
    bool in_a_row = c.dilation[1] == 1 && images.pixel == c.channels;
    size_t wide = in_a_row ? 1 : c.kernel[1];
    auto [offsets] = arrays<size_t>(of_offsets, c.kernel[0] * wide);
    for (size_t i = 0; i < c.kernel[0]; ++i)
        for (size_t j = 0; j < wide; ++j)
            offsets[i * wide + j] = i * c.dilation[0] * images.row + j * c.dilation[1] * images.pixel;
    Runs runs{offsets, c.kernel[0] * wide, in_a_row ? c.kernel[1] * c.channels : c.channels};
    Job job(c, weights, images, runs);
    if (window.kernel[0]) pooled_sums(job, window, e, threads);
    else all_sums(job, e, threads);
    of_images.forget_much();
}

void rounded(const Convolution& c, const FloatImages& x, const RoundedWeights& weights, const MaxWindow& window,
             const Epilogue& e, int threads) {
    if (!c.pixels()) return;
    if (c.pixels() * c.outputs * c.channels * c.kernel[0] * c.kernel[1] < small) threads = 1;
    static thread_local Arena of_images;
    RoundedJob job(c, weights, RoundedImages(c, x, weights, of_images, threads));
    if (window.kernel[0]) pooled_sums(job, window, e, threads);
    else all_sums(job, e, threads);
    of_images.forget_much();
}

// body(window's first and last pixels, output pixel) of every window, a pixel at a time.
template <class F>
void over_windows(const Convolution& s, int threads, const F& body) {
    size_t rows = s.out_height(), columns = s.out_width();
    if (s.batch * s.height * s.width * s.channels < copied) threads = 1;
    parallel(s.batch * rows, threads, [&](size_t begin, size_t end) {
        for (size_t i = begin; i < end; ++i)
            for (size_t x = 0; x < columns; ++x) body(i / rows, i % rows, x, i * columns + x);
    });
}

void average(const float* x, float* y, const Convolution& s, int threads) {
    float n = static_cast<float>(s.kernel[0] * s.kernel[1]);
    over_windows(s, threads, [&](size_t image, size_t row, size_t column, size_t pixel) {
        const float* from = x + ((image * s.height + row * s.stride[0]) * s.width + column * s.stride[1]) * s.channels;
        float* to = y + pixel * s.channels;
        auto sum = [&](size_t c, auto zero) __attribute__((always_inline)) {
            auto total = zero;
            for (size_t i = 0; i < s.kernel[0]; ++i)
                for (size_t j = 0; j < s.kernel[1]; ++j)
                    total += read<decltype(zero)>(from + (i * s.width + j) * s.channels + c);
            total /= n;
            std::memcpy(to + c, &total, sizeof total);
        };
        size_t c = 0;
        for (; c + HTAF_LANES <= s.channels; c += HTAF_LANES) sum(c, reg{});
        for (; c < s.channels; ++c) sum(c, 0.0f);
    });
}

void maximum(const float* x, const Convolution& s, const Epilogue& e, int threads) {
    over_windows(s, threads, [&](size_t image, size_t row, size_t column, size_t pixel) {
        for (size_t first = 0; first < s.channels; first += block) {
            size_t n = std::min(block, s.channels - first);
            alignas(64) float most[block];
            std::fill_n(most, block, -INFINITY);
            for (size_t i = 0; i < s.kernel[0]; ++i) {
                size_t y = row * s.stride[0] + i * s.dilation[0] - s.padding[0];  // below 0: wraps around
                if (y >= s.height) continue;
                for (size_t j = 0; j < s.kernel[1]; ++j) {
                    size_t k = column * s.stride[1] + j * s.dilation[1] - s.padding[1];
                    if (k < s.width) largest(most, x + ((image * s.height + y) * s.width + k) * s.channels + first, n);
                }
            }
            finish(e, most, pixel, first, n, s.channels);
        }
    });
}

}  // namespace

extern const FloatKernels floats;
const FloatKernels floats = {convolution, rounded, average, maximum};

}  // namespace htaf::HTAF_NAMESPACE
