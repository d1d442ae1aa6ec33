// Compiled once per instruction set.
#include "maps.hpp"

#include "arena.hpp"
#include "epilogue.hpp"
#include "parallel.hpp"

namespace htaf::HTAF_NAMESPACE {
namespace {

using std::size_t;

constexpr size_t piece = 4096;  // floats or words of one piece of work, at least one pixel

inline size_t words(size_t channels) { return (channels + 63) / 64; }

// body(first pixel, end) on pieces of `cost` floats or words a pixel
template <class F>
void over_pixels(size_t pixels, size_t cost, int threads, const F& body) {
    size_t together = std::max<size_t>(1, piece / std::max<size_t>(cost, 1));
    parallel((pixels + together - 1) / together, threads, [&](size_t begin, size_t end) {
        body(begin * together, std::min(pixels, end * together));
    });
}

void finish_all(const float* sums, size_t pixels, size_t channels, const Epilogue& e, int threads) {
    over_pixels(pixels, channels, threads, [&](size_t begin, size_t end) {
        for (size_t p = begin; p < end; ++p)
            for (size_t first = 0; first < channels; first += 64)
                finish(e, sums + p * channels + first, p, first, std::min<size_t>(64, channels - first), channels);
    });
}

void unpack(const std::uint64_t* bits, float* values, size_t pixels, size_t channels, float below, int threads) {
    over_pixels(pixels, channels, threads, [&](size_t begin, size_t end) {
        for (size_t p = begin; p < end; ++p)
            for (size_t first = 0; first < channels; first += 64) {
                std::uint64_t word = bits[p * words(channels) + first / 64];
                float* to = values + p * channels + first;
                size_t n = std::min<size_t>(64, channels - first), j = 0;
#if defined(__AVX512F__)
                for (; j + 16 <= n; j += 16)
                    _mm512_storeu_ps(to + j, _mm512_mask_blend_ps(static_cast<__mmask16>(word >> j), _mm512_set1_ps(below),
                                                                  _mm512_set1_ps(1.0f)));
#endif
                for (; j < n; ++j) to[j] = word >> j & 1 ? 1.0f : below;
            }
    });
}

void max_pool(const std::uint64_t* bits, std::uint64_t* found, const Convolution& s, const std::uint64_t* smallest,
              int threads) {
    size_t n = words(s.channels), rows = s.out_height(), columns = s.out_width();
    parallel(s.batch * rows, threads, [&](size_t begin, size_t end) {
        for (size_t i = begin; i < end; ++i) {
            const std::uint64_t* image = bits + i / rows * s.height * s.width * n;
            for (size_t column = 0; column < columns; ++column) {
                std::uint64_t* to = found + (i * columns + column) * n;
                // the and is the or of what is inverted, inverted again
                std::fill_n(to, n, 0);
                for (size_t ky = 0; ky < s.kernel[0]; ++ky) {
                    size_t y = i % rows * s.stride[0] + ky * s.dilation[0] - s.padding[0];  // below 0: wraps around
                    if (y >= s.height) continue;
                    for (size_t kx = 0; kx < s.kernel[1]; ++kx) {
                        size_t x = column * s.stride[1] + kx * s.dilation[1] - s.padding[1];
                        if (x >= s.width) continue;
                        const std::uint64_t* from = image + (y * s.width + x) * n;
                        if (!smallest) for (size_t w = 0; w < n; ++w) to[w] |= from[w];
                        else for (size_t w = 0; w < n; ++w) to[w] |= from[w] ^ smallest[w];
                    }
                }
                if (smallest) for (size_t w = 0; w < n; ++w) to[w] ^= smallest[w];
            }
        }
    });
}

// A whole register of neurons over all steps; bit j of put(step) is lane j.
template <class Load, class Put>
HTAF_INLINE void run(const SpikingNeuron& k, reg scale, reg shift, size_t steps, Load load, Put put) {
    reg v{}, leak = one(k.leak), gain = one(k.gain), threshold = one(k.threshold), never = one(INFINITY);
    for (size_t t = 0; t < steps; ++t) {
        reg h = leak * v + gain * (load(t) * scale + shift), above = h - threshold;
        auto fired = above >= 0.0f;
        put(t, within(above, reg{}, never));
        v = fired ? (k.soft ? above : reg{}) : h;
    }
}

void spikes(const float* x, size_t stride, std::uint64_t* bits, size_t steps, size_t pixels, size_t channels,
            const SpikingNeuron& k, int threads) {
    size_t n = words(channels);
    over_pixels(pixels, channels * steps, threads, [&](size_t begin, size_t end) {
        for (size_t p = begin; p < end; ++p)
            for (size_t first = 0; first < channels; first += 64) {
                std::uint64_t* to = bits + p * n + first / 64;
                for (size_t t = 0; t < steps; ++t) to[t * pixels * n] = 0;
                for (size_t j = 0; j < std::min<size_t>(64, channels - first); j += HTAF_LANES) {
                    size_t c = first + j, many = std::min<size_t>(HTAF_LANES, channels - c);
                    auto some = [many](const float* from, float otherwise) {
                        if (!from) return one(otherwise);
                        if (many == HTAF_LANES) return read<reg>(from);
                        float copy[HTAF_LANES] = {};
                        std::copy_n(from, many, copy);
                        return read<reg>(copy);
                    };
                    std::uint64_t used = many == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << many) - 1;
                    run(k, some(k.scale ? k.scale + c : nullptr, 1), some(k.shift ? k.shift + c : nullptr, 0), steps,
                        [&](size_t t) { return some(x + t * stride + p * channels + c, 0); },
                        [&](size_t t, std::uint64_t fired) { to[t * pixels * n] |= (fired & used) << j; });
                }
            }
    });
}

void means(const std::uint64_t* bits, float* y, size_t steps, size_t images, size_t pixels, const LinearOfMeans& l,
           int threads) {
    size_t n = words(l.channels), wide = (l.outputs + 7) / 8 * 8, seen = steps * pixels;
    if (images * seen * n < piece) threads = 1;
    parallel(images, threads, [&](size_t begin, size_t end) {
        static thread_local Arena arena;
        auto [counts, sums] = arrays<std::int32_t, std::int64_t>(arena, n * 64, wide);
        for (size_t image = begin; image < end; ++image) {
            std::fill_n(counts, n * 64, 0);
            for (size_t t = 0; t < steps; ++t)
                for (size_t p = 0; p < pixels; ++p)
                    for (size_t w = 0; w < n; ++w) {
                        std::uint64_t word = bits[((t * images + image) * pixels + p) * n + w];
                        std::int32_t* to = counts + w * 64;
#if defined(__AVX512F__)
                        for (int j = 0; j < 64; j += 16) {
                            __m512i had = _mm512_load_si512(to + j);
                            __mmask16 some = static_cast<__mmask16>(word >> j);
                            _mm512_store_si512(to + j, _mm512_mask_add_epi32(had, some, had, _mm512_set1_epi32(1)));
                        }
#else
                        for (int j = 0; j < 64; ++j) to[j] += static_cast<std::int32_t>(word >> j & 1);
#endif
                    }
            std::fill_n(sums, wide, 0);
            for (size_t c = 0; c < l.channels; ++c)
                for (size_t o = 0; o < wide; ++o) sums[o] += std::int64_t{counts[c]} * l.weights[c * wide + o];
            for (size_t o = 0; o < l.outputs; ++o) {
                double sum = static_cast<double>(sums[o] + static_cast<std::int64_t>(seen) * l.bias[o]);
                y[image * l.outputs + o] = static_cast<float>(sum * l.unit / static_cast<double>(seen));
            }
        }
    });
}

}  // namespace

extern const MapKernels maps;
const MapKernels maps = {finish_all, unpack, max_pool, spikes, means};

}  // namespace htaf::HTAF_NAMESPACE
