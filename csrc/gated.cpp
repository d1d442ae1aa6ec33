// Compiled once per instruction set.
#include "gated.hpp"

#include <algorithm>
#include <vector>

#include "parallel.hpp"
#include "rows.hpp"

namespace htaf::HTAF_NAMESPACE {
namespace {

using std::size_t;

constexpr size_t ahead = 2;  // rows between one that is asked for and the one that is worked on

// The gates of rows begin to end, as bits in `open`; rows are listed that are open for a token.
template <class T>
void gates(const GatedMLP& m, const float* x, const float* size, std::uint8_t* open, size_t tokens, bool dense, size_t begin,
           size_t end, std::vector<std::uint32_t>& rows) {
    auto gate = static_cast<const T*>(m.gate);
    if (m.rounded) {
        // what sums of so many products can be wrong by, as a share of |w| |x|
        const float rounding = (m.inputs / HTAF_LANES + 64.0f) * 0x1p-22f;
        std::vector<std::uint32_t> doubtful;
        for (size_t j = begin; j < end; ++j) {
            bool any = false;
            for (size_t t = 0; t < tokens; ++t) {
                float over = m.step[j] * dot(m.rounded + j * m.inputs, x + t * m.inputs, m.inputs) - m.threshold[j];
                open[t * m.neurons + j] = over >= 0;
                any |= !(std::fabs(over) > (m.rest[j] + rounding * m.norm[j]) * size[t]);
            }
            if (any) doubtful.push_back(static_cast<std::uint32_t>(j));
        }
        for (size_t i = 0; i < doubtful.size(); ++i) {
            size_t j = doubtful[i];
            const T* next = i + ahead < doubtful.size() ? gate + doubtful[i + ahead] * m.inputs : nullptr;
            for (size_t t = 0; t < tokens; ++t)
                open[t * m.neurons + j] = dot(gate + j * m.inputs, x + t * m.inputs, m.inputs, t ? nullptr : next) >= m.threshold[j];
        }
    } else {
        for (size_t j = begin; j < end; ++j)
            for (size_t t = 0; t < tokens; ++t)
                open[t * m.neurons + j] = dot(gate + j * m.inputs, x + t * m.inputs, m.inputs) >= m.threshold[j];
    }
    for (size_t j = begin; j < end; ++j) {
        bool any = dense;
        for (size_t t = 0; t < tokens; ++t) any |= open[t * m.neurons + j];
        if (any) rows.push_back(static_cast<std::uint32_t>(j));
    }
}

float activated(GateActivation f, float g) {
    if (f == GateActivation::silu) return g / (1.0f + std::exp(-g));
    return 0.5f * g * (1.0f + std::tanh(0.7978845608f * (g + 0.044715f * g * g * g)));
}

template <class T>
void smooth(const GatedMLP& m, const float* x, float* y, size_t tokens, size_t begin, size_t end) {
    auto gate = static_cast<const T*>(m.gate), up = static_cast<const T*>(m.up), down = static_cast<const T*>(m.down);
    for (size_t j = begin; j < end; ++j)
        for (size_t t = 0; t < tokens; ++t) {
            const float* in = x + t * m.inputs;
            float g = activated(m.activation, dot(gate + j * m.inputs, in, m.inputs));
            add(y + t * m.outputs, down + j * m.outputs, g * dot(up + j * m.inputs, in, m.inputs), m.outputs);
        }
}

template <class T>
void some(const GatedMLP& m, const float* x, const float* size, float* y, std::uint8_t* open, size_t tokens, bool dense,
          size_t begin, size_t end) {
    if (m.activation != GateActivation::step) return smooth<T>(m, x, y, tokens, begin, end);
    auto up = static_cast<const T*>(m.up), down = static_cast<const T*>(m.down);
    std::vector<std::uint32_t> rows;
    rows.reserve(end - begin);
    gates<T>(m, x, size, open, tokens, dense, begin, end, rows);
    for (size_t i = 0; i < rows.size(); ++i) {
        size_t j = rows[i];
        bool more = !dense && i + ahead < rows.size();  // a dense network's rows come in order
        const T* next_up = more ? up + rows[i + ahead] * m.inputs : nullptr;
        const T* next_down = more ? down + rows[i + ahead] * m.outputs : nullptr;
        for (size_t t = 0; t < tokens; ++t) {
            bool on = open[t * m.neurons + j];
            if (!on && !dense) continue;
            float u = dot(up + j * m.inputs, x + t * m.inputs, m.inputs, next_up);
            add(y + t * m.outputs, down + j * m.outputs, on ? u : 0.0f, m.outputs, next_down);
            next_up = next_down = nullptr;
        }
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
