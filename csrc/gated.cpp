// Compiled once per instruction set.
#include "gated.hpp"

#include <algorithm>
#include <vector>

#include "parallel.hpp"
#include "simd.hpp"

namespace htaf::HTAF_NAMESPACE {
namespace {

using std::size_t;

#if defined(__AVX512F__)
HTAF_INLINE float sum(reg v) { return _mm512_reduce_add_ps((__m512)v); }
HTAF_INLINE reg widen(const std::int8_t* p) {
    return (reg)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(read<__m128i>(p)));
}
#else
HTAF_INLINE float sum(reg v) {
    for (int half = HTAF_LANES / 2; half; half /= 2)
        for (int i = 0; i < half; ++i) v[i] += v[i + half];
    return v[0];
}
HTAF_INLINE reg widen(const std::int8_t* p) {
    typedef std::int8_t reg_i8 __attribute__((vector_size(HTAF_LANES)));
    return __builtin_convertvector(__builtin_convertvector(read<reg_i8>(p), reg_i32), reg);
}
#endif
HTAF_INLINE float single(const float* p) { return *p; }
HTAF_INLINE float single(const bfloat16* p) {
    std::uint32_t bits = std::uint32_t{p->bits} << 16;
    float v;
    std::memcpy(&v, &bits, sizeof v);
    return v;
}
HTAF_INLINE float single(const std::int8_t* p) { return *p; }

// w x, always in the same order
template <class T>
HTAF_INLINE float dot(const T* w, const float* x, size_t n) {
    reg part[4] = {};
    size_t i = 0;
    for (; i + 4 * HTAF_LANES <= n; i += 4 * HTAF_LANES)
        for (int k = 0; k < 4; ++k) part[k] += widen(w + i + k * HTAF_LANES) * read<reg>(x + i + k * HTAF_LANES);
    for (; i + HTAF_LANES <= n; i += HTAF_LANES) part[0] += widen(w + i) * read<reg>(x + i);
    float total = sum((part[0] + part[1]) + (part[2] + part[3]));
    for (; i < n; ++i) total += single(w + i) * x[i];
    return total;
}

// y += a w
template <class T>
HTAF_INLINE void add(float* y, const T* w, float a, size_t n) {
    size_t i = 0;
    for (; i + HTAF_LANES <= n; i += HTAF_LANES) {
        reg v = read<reg>(y + i) + widen(w + i) * a;
        std::memcpy(y + i, &v, sizeof v);
    }
    for (; i < n; ++i) y[i] += single(w + i) * a;
}

template <class T>
void some(const GatedMLP& m, const float* x, const float* size, float* y, std::uint8_t* open, size_t tokens, bool dense,
          size_t begin, size_t end) {
    auto gate = static_cast<const T*>(m.gate), up = static_cast<const T*>(m.up), down = static_cast<const T*>(m.down);
    // what sums of so many products can be wrong by, as a share of |w| |x|
    const float rounding = (m.inputs / HTAF_LANES + 64.0f) * 0x1p-22f;
    // all gates first: one stream through memory
    for (size_t j = begin; j < end; ++j)
        for (size_t t = 0; t < tokens; ++t) {
            const float *in = x + t * m.inputs, threshold = m.threshold[j];
            float g = 0, doubt = INFINITY;
            if (m.rounded) {
                g = m.step[j] * dot(m.rounded + j * m.inputs, in, m.inputs);
                doubt = (m.rest[j] + rounding * m.norm[j]) * size[t];
            }
            if (!(std::fabs(g - threshold) > doubt)) g = dot(gate + j * m.inputs, in, m.inputs);
            open[t * m.neurons + j] = g >= threshold;
        }
    for (size_t j = begin; j < end; ++j)
        for (size_t t = 0; t < tokens; ++t) {
            bool on = open[t * m.neurons + j];
            if (!on && !dense) continue;
            float u = dot(up + j * m.inputs, x + t * m.inputs, m.inputs);
            add(y + t * m.outputs, down + j * m.outputs, on ? u : 0.0f, m.outputs);
        }
}

void run(const GatedMLP& m, const float* x, float* y, std::uint8_t* open, size_t tokens, bool dense, int threads) {
    std::vector<float> size(tokens);
    for (size_t t = 0; t < tokens; ++t) {
        double squares = 0;
        for (size_t i = 0; i < m.inputs; ++i) squares += static_cast<double>(x[t * m.inputs + i]) * x[t * m.inputs + i];
        size[t] = static_cast<float>(std::sqrt(squares) * 1.000001);
    }
    size_t n = tokens * m.outputs, parts = std::clamp<size_t>(threads, 1, std::max<size_t>(m.neurons, 1));
    std::vector<float> sums(parts * n);
    size_t each = (m.neurons + parts - 1) / parts;
    parallel(parts, threads, [&](size_t first, size_t last) {
        for (size_t p = first; p < last; ++p) {
            size_t begin = std::min(m.neurons, p * each), end = std::min(m.neurons, begin + each);
            auto work = m.type == Type::float32 ? some<float> : some<bfloat16>;
            work(m, x, size.data(), sums.data() + p * n, open, tokens, dense, begin, end);
        }
    });
    for (size_t i = 0; i < n; ++i) {
        float total = 0;
        for (size_t p = 0; p < parts; ++p) total += sums[p * n + i];
        y[i] = total;
    }
}

}  // namespace

extern const GatedKernels gated;
const GatedKernels gated = {run};

}  // namespace htaf::HTAF_NAMESPACE
