// Compiled once per instruction set.
#include "decoder.hpp"

#include <algorithm>
#include <vector>

#include "parallel.hpp"
#include "rows.hpp"

namespace htaf::HTAF_NAMESPACE {

extern const GatedKernels gated;

namespace {

using Floats = std::vector<float>;

// y[t, row] = w[row] x[t] + bias[row]; each sum in the same order whatever the number of tokens
template <class T>
void multiply(const T* w, const float* bias, const float* x, float* y, size_t rows, size_t inputs, size_t tokens, int threads) {
    parallel(rows, threads, [&](size_t begin, size_t end) {
        for (size_t r = begin; r < end; ++r)
            for (size_t t = 0; t < tokens; ++t)
                y[t * rows + r] = dot(w + r * inputs, x + t * inputs, inputs) + (bias ? bias[r] : 0.0f);
    });
}

// y = weight x / rms(x)
void normalise(const float* x, const float* weight, float* y, size_t n, float epsilon) {
    double squares = 0;
    for (size_t i = 0; i < n; ++i) squares += static_cast<double>(x[i]) * x[i];
    float by = static_cast<float>(1.0 / std::sqrt(squares / static_cast<double>(n) + epsilon));
    for (size_t i = 0; i < n; ++i) y[i] = x[i] * by * weight[i];
}

// The first `rotated` values of a head, in two halves, turned by the angles of its position.
void rotate(const Decoder& d, float* head, size_t position) {
    size_t half = d.rotated / 2;
    const float *c = d.cosines + position * half, *s = d.sines + position * half;
    for (size_t i = 0; i < half; ++i) {
        float a = head[i], b = head[half + i];
        head[i] = a * c[i] - b * s[i];
        head[half + i] = b * c[i] + a * s[i];
    }
}

// y = softmax(scale query keys) values over positions first to last
void attend(const Decoder& d, const float* query, const float* keys, const float* values, float* y, size_t first, size_t last,
            Floats& weights) {
    weights.resize(last - first);
    float most = -INFINITY, total = 0;
    for (size_t p = first; p < last; ++p)
        most = std::max(most, weights[p - first] = d.scale * dot(keys + p * d.width, query, d.width));
    for (float& w : weights) total += w = std::exp(w - most);
    std::fill_n(y, d.width, 0.0f);
    for (size_t p = first; p < last; ++p) add(y, values + p * d.width, weights[p - first] / total, d.width);
}

template <class T>
void read_tokens(const Decoder& d, DecoderCache cache, const std::int64_t* ids, size_t tokens, size_t position, float* logits, bool all,
                 std::uint64_t* opened, bool dense, int threads) {
    size_t whole = d.heads * d.width, each = whole + 2 * d.groups * d.width, widest = 0;
    for (size_t l = 0; l < d.layers; ++l) widest = std::max(widest, d.layer[l].mlp.neurons);
    Floats x(tokens * d.size), in(tokens * d.size), made(tokens * each), seen(tokens * whole), out(tokens * d.size);
    std::vector<std::uint8_t> open(tokens * widest);
    for (size_t t = 0; t < tokens; ++t) {
        auto row = static_cast<const T*>(d.embedding) + static_cast<size_t>(ids[t]) * d.size;
        for (size_t i = 0; i < d.size; ++i) x[t * d.size + i] = single(row + i);
    }
    auto norms = [&](const float* weight) {
        for (size_t t = 0; t < tokens; ++t) normalise(&x[t * d.size], weight, &in[t * d.size], d.size, d.epsilon);
    };
    auto join = [&] {
        for (size_t i = 0; i < x.size(); ++i) x[i] += out[i];
    };
    for (size_t l = 0; l < d.layers; ++l) {
        const DecoderLayer& layer = d.layer[l];
        size_t start = l * d.groups * cache.capacity * d.width;
        norms(layer.before_attention);
        multiply(static_cast<const T*>(layer.inputs), layer.inputs_bias, in.data(), made.data(), each, d.size, tokens, threads);
        for (size_t t = 0; t < tokens; ++t)
            for (size_t h = 0; h < d.heads + 2 * d.groups; ++h) {
                float* head = &made[t * each + h * d.width];
                bool query = h < d.heads, key = !query && h < d.heads + d.groups;
                const float* norm = query ? layer.query_norm : key ? layer.key_norm : nullptr;
                if (norm) normalise(head, norm, head, d.width, d.epsilon);
                if (query || key) rotate(d, head, position + t);
                if (query) continue;
                size_t group = (h - d.heads) % d.groups;
                float* kept = (key ? cache.keys : cache.values) + start + (group * cache.capacity + position + t) * d.width;
                std::copy_n(head, d.width, kept);
            }
        parallel(d.heads, threads, [&](size_t begin, size_t end) {
            Floats weights;
            for (size_t h = begin; h < end; ++h) {
                size_t group = start + h / (d.heads / d.groups) * cache.capacity * d.width;
                for (size_t t = 0; t < tokens; ++t) {
                    size_t last = position + t + 1, first = layer.window && last > layer.window ? last - layer.window : 0;
                    attend(d, &made[t * each + h * d.width], cache.keys + group, cache.values + group,
                           &seen[t * whole + h * d.width], first, last, weights);
                }
            }
        });
        multiply(static_cast<const T*>(layer.output), nullptr, seen.data(), out.data(), d.size, whole, tokens, threads);
        join();
        norms(layer.before_mlp);
        gated.run(layer.mlp, in.data(), out.data(), open.data(), tokens, dense, threads);
        join();
        if (opened && layer.mlp.activation == GateActivation::step)
            opened[l] += static_cast<std::uint64_t>(std::count(open.begin(), open.begin() + tokens * layer.mlp.neurons, 1));
    }
    if (!logits) return;
    norms(d.norm);
    size_t first = all ? 0 : tokens - 1;
    multiply(static_cast<const T*>(d.head), nullptr, &in[first * d.size], logits, d.vocabulary, d.size, tokens - first, threads);
}

void read_all(const Decoder& d, DecoderCache cache, const std::int64_t* tokens, size_t count, size_t position, float* logits, bool all,
              std::uint64_t* opened, bool dense, int threads) {
    constexpr size_t together = 16;  // tokens, so that what they need stays in the cache
    for (size_t done = 0; done < count; done += together) {
        size_t n = std::min(together, count - done);
        auto work = d.type == Type::float32 ? read_tokens<float> : read_tokens<bfloat16>;
        float* where = all ? logits + done * d.vocabulary : done + n == count ? logits : nullptr;
        work(d, cache, tokens + done, n, position + done, where, all, opened, dense, threads);
    }
}

}  // namespace

extern const DecoderKernels decoder;
const DecoderKernels decoder = {read_all};

}  // namespace htaf::HTAF_NAMESPACE
