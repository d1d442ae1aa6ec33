// Lanes are output pixels. A register holds the sums of all subsets of a few weights of one output, the bits of the inputs
// at a pixel are the index into it: one permutation and one addition are lanes x inputs multiply-adds. Compiled once per
// instruction set.
#include "tables.hpp"

#include "parallel.hpp"
#include "table_fours.hpp"
#include "table_layer.hpp"
#if defined(__AVX512VBMI__)
#include "table_repair.hpp"
#endif

namespace htaf::HTAF_NAMESPACE {
namespace {

constexpr size_t index_bytes = 384 * 1024;  // of one block of pixels: in the second-level cache beside its sums
constexpr size_t few_pixels = 4;            // up to so many a table is not worth building
#if defined(__AVX512VBMI__)
constexpr size_t rough_pixels = 32;  // from so many on int16 and repairs are faster than float32
#endif

// The indices of one row of pixels, from channels [from, from + n): out[field * plane + x].
template <class Kind>
void fields_of_row(const std::uint64_t* bits, size_t words, size_t width, size_t from, size_t n,
                   typename Kind::index* out, size_t plane) {
    constexpr size_t bits_each = Kind::bits_each;
    size_t count = (n + bits_each - 1) / bits_each, x = 0;
#if defined(HTAF_FOURS)
    if constexpr (bits_each == 16) {
        for (; x + 8 <= width; x += 8) {
            alignas(64) std::uint64_t eight[8];
            for (size_t i = 0; i < 8; ++i) eight[i] = word_at(bits + (x + i) * words, from, n);
            Kind::eight(_mm512_load_si512(eight), count, out + x, plane);
        }
    }
#endif
#if defined(__AVX512VBMI__)
    if constexpr (bits_each == 6) {
        // 8 pixels: fields 0 to 7 of each, then 8 to 10, as bytes turned so that those of one field lie together
        const __m512i mine = _mm512_set1_epi64(n < 64 ? (1ll << n) - 1 : -1), six = _mm512_set1_epi8(63);
        const __m512i low = _mm512_set1_epi64(0x2a241e18120c0600), high = _mm512_set1_epi64(0x3c3630);
        alignas(64) std::uint8_t turned[64];
        for (int i = 0; i < 64; ++i) turned[i] = static_cast<std::uint8_t>(i % 8 * 8 + i / 8);
        const __m512i turn = _mm512_load_si512(turned);
        for (; x + 8 <= width; x += 8) {
            alignas(64) std::uint64_t eight[8];
            for (size_t i = 0; i < 8; ++i) eight[i] = word_at(bits + (x + i) * words, from, n);
            __m512i v = _mm512_and_si512(_mm512_load_si512(eight), mine);
            alignas(64) std::uint64_t found[16];
            __m512i a = _mm512_and_si512(_mm512_multishift_epi64_epi8(low, v), six);
            // the field of bits 60 to 63 comes with two bits from the other end
            __m512i b = _mm512_and_si512(_mm512_multishift_epi64_epi8(high, v), _mm512_set1_epi64(0x0f3f3f));
            _mm512_store_si512(found, _mm512_permutexvar_epi8(turn, a));
            _mm512_store_si512(found + 8, _mm512_permutexvar_epi8(turn, b));
            for (size_t f = 0; f < count; ++f) std::memcpy(out + f * plane + x, found + f, 8);
        }
    }
#endif
    for (; x < width; ++x) {
        std::uint64_t v = word_at(bits + x * words, from, n);
        for (size_t f = 0; f < count; ++f, v >>= bits_each)
            out[f * plane + x] = Kind::of(v & ((std::uint64_t{1} << bits_each) - 1));
    }
}

// The indices of rows [begin, end) of all images: planes [groups, fields, rows, row], no inputs beside the pixels. Columns that
// are a stride apart lie together.
template <class Kind>
void make_planes(const Layer<Kind>& l, const std::uint64_t* bits, typename Kind::index* planes, size_t begin, size_t end) {
    using Index = typename Kind::index;
    size_t plane = l.batch * l.height * l.row, step = l.stride[1], pad = l.padding[1];
    constexpr size_t most = 64 / Kind::bits_each + (64 % Kind::bits_each != 0);
    static thread_local Arena arena;
    auto [line] = arrays<Index>(arena, most * l.width);
    for (size_t r = begin; r < end; ++r)
        for (size_t g = 0; g < l.groups; ++g)
            for (size_t c = 0, field = g * l.fields; c < l.in_group; c += 64, field += most) {
                size_t n = std::min<size_t>(64, l.in_group - c), count = (n + Kind::bits_each - 1) / Kind::bits_each;
                Index* out = planes + field * plane + r * l.row;
                const std::uint64_t* row = bits + r * l.width * l.words;
                for (size_t f = 0; f < count; ++f) {
                    if (step > 1) {
                        std::fill_n(out + f * plane, l.row, Kind::none);
                    } else {
                        std::fill_n(out + f * plane, pad, Kind::none);
                        std::fill_n(out + f * plane + pad + l.width, pad, Kind::none);
                    }
                }
                if (step == 1) {
                    fields_of_row<Kind>(row, l.words, l.width, g * l.in_group + c, n, out + pad, plane);
                    continue;
                }
                fields_of_row<Kind>(row, l.words, l.width, g * l.in_group + c, n, line, l.width);
                for (size_t f = 0; f < count; ++f)
                    for (size_t x = 0; x < l.width; ++x)
                        out[f * plane + (x + pad) % step * l.columns + (x + pad) / step] = line[f * l.width + x];
            }
}

template <class From, class To>
HTAF_INLINE void sixteen(const From* from, To* to) {
    if constexpr (sizeof(From) == sizeof(To)) {
        std::memcpy(to, from, 16 * sizeof(To));
    } else {
#if defined(__AVX2__)
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_cvtepu8_epi16(read<__m128i>(from)));
#else
        for (size_t j = 0; j < 16; ++j) to[j] = from[j];
#endif
    }
}

// The indices of output pixels [first, first + n) and all taps: [taps, fields, stride]. Writes up to 15 more.
template <class Kind>
void gather(const Layer<Kind>& l, const typename Kind::index* planes, size_t group, size_t first, size_t n,
            typename Kind::gathered* out, size_t stride) {
    size_t plane = l.batch * l.height * l.row, height = l.out_height(), width = l.out_width();
    planes += group * l.fields * plane;
    for (size_t tap = 0; tap < l.taps; ++tap, out += l.fields * stride) {
        size_t down = tap / l.kernel[1] * l.dilation[0], across = tap % l.kernel[1] * l.dilation[1];
        size_t column = across % l.stride[1] * l.columns + across / l.stride[1];
        for (size_t done = 0; done < n;) {
            size_t p = first + done, x = p % width, y = p / width % height, image = p / width / height;
            size_t run = std::min(n - done, width - x), from = y * l.stride[0] + down - l.padding[0];
            bool inside = from < l.height;  // above the image it has wrapped around
            const auto* source = planes + (inside ? (image * l.height + from) * l.row + column + x : 0);
            for (size_t f = 0; f < l.fields; ++f, source += inside ? plane : 0) {
                auto* to = out + f * stride + done;
                for (size_t i = 0; i < run; i += 16) {
                    if (inside) sixteen(source + i, to + i);
                    else std::fill_n(to + i, 16, Kind::none);
                }
            }
            done += run;
        }
    }
}

// ---- from the sums [outputs, stride] of a block of pixels to y and bits

void finish_bits(const Epilogue& e, const float* sums, size_t stride, size_t pixel, size_t n, size_t first, size_t outputs,
                 size_t words) {
    alignas(64) std::uint64_t rows[64] = {};
    for (size_t o = 0; o < outputs; ++o) {
        size_t c = first + o;
        scaled(e, sums + o * stride, c, [&](reg y, size_t i) __attribute__((always_inline)) {
            rows[o] |= within(y, one(e.lower[c]), one(e.upper[c])) << i;
        });
    }
    turn(rows);
    for (size_t i = 0; i < n; ++i) e.bits[(pixel + i) * words + first / 64] = rows[i];
}

void finish_block(const Epilogue& e, const float* sums, size_t stride, size_t pixel, size_t n, size_t first,
                  size_t outputs, size_t channels) {
    if (!e.y && !e.residual) {
        for (size_t i = 0; e.bits && i < n; i += 64)
            finish_bits(e, sums + i, stride, pixel + i, std::min<size_t>(64, n - i), first, outputs, (channels + 63) / 64);
        return;
    }
    alignas(64) float turned[16 * 64];
    for (size_t i = 0; i < n; i += 16) {
        for (size_t o = 0; o < outputs; o += 16) turn_floats(sums + o * stride + i, stride, turned + o);
        for (size_t j = 0; j < std::min<size_t>(16, n - i); ++j)
            finish(e, turned + j * 64, pixel + i + j, first, outputs, channels);
    }
}

// ---- the whole layer

// finish(sums, stride, pixel, n, first, outputs) of every block.
template <class Kind, class Finish>
void layer(const Tables& t, const std::uint64_t* bits, const Convolution& c, int threads, const Finish& finish) {
    Layer<Kind> l(c);
    size_t pixels = l.pixels(), rows = l.batch * l.height, blocks = (l.outputs + 63) / 64;
    if (!pixels || !l.outputs) return;
    static thread_local Arena of_planes;
    size_t size = l.groups * l.fields * rows * l.row;
    auto [planes] = arrays<typename Kind::index>(of_planes, size + 16);
    std::fill_n(planes + size, 16, Kind::none);
    parallel(rows, threads, [&, planes = planes](size_t begin, size_t end) { make_planes(l, bits, planes, begin, end); });

    // blocks of pixels of about the same size, as many as keep all threads busy
    size_t fitting = index_bytes / (l.flat() * sizeof(typename Kind::gathered)) / Kind::lanes * Kind::lanes;
    fitting = std::clamp<size_t>(fitting, Kind::lanes, most_pixels);
    size_t parts = (pixels + fitting - 1) / fitting, wanted = static_cast<size_t>(std::max(threads, 1));
    while (parts * blocks % wanted && parts * blocks < 8 * wanted && parts * Kind::lanes < pixels) ++parts;
    size_t each = up((pixels + parts - 1) / parts, Kind::lanes), stride = up(each, 64) + 16;
    parts = (pixels + each - 1) / each;

    parallel(parts * blocks, threads, [&, planes = planes](size_t begin, size_t end) {
        static thread_local Arena arena;
        auto [indices, sums, scratch] = arrays<typename Kind::gathered, float, typename Kind::entry>(
            arena, (l.flat() + 1) * stride, (64 + Kind::outputs) * stride, Kind::scratch);
        size_t part = parts, group = l.groups;  // whose indices are there
        for (size_t i = begin; i < end; ++i) {
            size_t pixel = i / blocks * each, n = std::min(each, pixels - pixel);
            size_t first = i % blocks * 64, last = std::min(first + 64, l.outputs);
            for (size_t o = first; o < last;) {
                if (part != i / blocks || group != o / l.out_group) {
                    part = i / blocks, group = o / l.out_group;
                    gather(l, planes, group, pixel, n, indices, stride);
                }
                size_t count = std::min({last - o, (group + 1) * l.out_group - o, Kind::outputs});
                float* to = sums + (o - first) * stride;
                if (pixels <= few_pixels) Kind::add_few(l, t, o, count, indices, stride, n, to);
                else Kind::add(l, t, o, count, indices, stride, n, scratch, to);
                o += count;
            }
            finish(sums, stride, pixel, n, first, last - first);
        }
        arena.forget_much();
    });
    of_planes.forget_much();
}

// R registers of outputs of one row, by two sums: of every other input that is 1.
template <int R>
void add_columns(const std::uint64_t* bits, size_t inputs, const float* weights, float* sums) {
    reg total[2][R] = {};
    auto one_input = [&](size_t i, reg* to) __attribute__((always_inline)) {
        const float* w = weights + i * 64;
        HTAF_UNROLL for (int r = 0; r < R; ++r) to[r] += read<reg>(w + r * HTAF_LANES);
    };
    for (size_t first = 0; first < inputs; first += 64) {
        std::uint64_t left = bits[first / 64];
        while (left & (left - 1)) {
            one_input(first + static_cast<size_t>(__builtin_ctzll(left)), total[0]);
            left &= left - 1;
            one_input(first + static_cast<size_t>(__builtin_ctzll(left)), total[1]);
            left &= left - 1;
        }
        if (left) one_input(first + static_cast<size_t>(__builtin_ctzll(left)), total[0]);
    }
    HTAF_UNROLL for (int r = 0; r < R; ++r) {
        reg sum = total[0][r] + total[1][r];
        std::memcpy(sums + r * HTAF_LANES, &sum, sizeof sum);
    }
}

void few_rows(const Tables& t, const std::uint64_t* bits, const Convolution& c, const Epilogue& e, int threads) {
    size_t words = (c.channels + 63) / 64, blocks = (c.outputs + 63) / 64, rows = c.pixels();
    bool quick = rows * c.channels * c.outputs < size_t{1} << 18;  // before other threads have started
    parallel(blocks, quick ? 1 : threads, [&](size_t begin, size_t end) {
        for (size_t b = begin; b < end; ++b) {
            size_t n = std::min<size_t>(64, c.outputs - b * 64);
            for (size_t row = 0; row < rows; ++row) {
                alignas(64) float sums[64];
                for (size_t o = 0; o < n; o += 4 * HTAF_LANES) {
                    const float* weights = t.columns + b * c.channels * 64 + o;
                    if (n - o > HTAF_LANES) add_columns<4>(bits + row * words, c.channels, weights, sums + o);
                    else add_columns<1>(bits + row * words, c.channels, weights, sums + o);
                }
                finish(e, sums, row, b * 64, n, c.outputs);
            }
        }
    });
}

void forward(Tables t, const std::uint64_t* bits, const Convolution& c, const Epilogue& e, int threads) {
    if (t.columns && c.pixels() && c.pixels() <= few_pixels) return few_rows(t, bits, c, e, threads);
#if defined(__AVX512VBMI__)
    if (t.rough.values && e.bits && !e.y && !e.residual && !e.wide_scale && c.pixels() >= rough_pixels) {
        Tables rough = {TableKind::int16, t.rough.values, t.rough.unit, t.rough.bias, {}};
        return layer<Integers<std::uint16_t>>(rough, bits, c, threads, Repair(t, bits, c, e));
    }
#endif
    auto finish = [&](const float* sums, size_t stride, size_t pixel, size_t n, size_t first, size_t outputs) {
        finish_block(e, sums, stride, pixel, n, first, outputs, c.outputs);
    };
    switch (t.kind) {
        case TableKind::float32: return layer<Floats>(t, bits, c, threads, finish);
        case TableKind::int16: return layer<Integers<std::uint16_t>>(t, bits, c, threads, finish);
        case TableKind::int8: return layer<Integers<std::uint8_t>>(t, bits, c, threads, finish);
        case TableKind::fours: return layer<Fours>(t, bits, c, threads, finish);
    }
}

#if defined(__AVX512VBMI__)
constexpr bool rough = true;
#else
constexpr bool rough = false;
#endif
#if defined(HTAF_FOURS)
constexpr bool fours = true;
#else
constexpr bool fours = false;
#endif

}  // namespace

extern const TableKernels tables;
const TableKernels tables = {forward, peak, rough, fours};
}  // namespace htaf::HTAF_NAMESPACE
