#include "logic.hpp"

#include <algorithm>

#include "parallel.hpp"

namespace htaf {
namespace {

constexpr std::size_t group = 16;  // tables of one piece of work: their gradients stay in the first cache
constexpr int most = 8;            // inputs

// The address that bits give; -1 where an input is no bit.
inline int address(const float* x, int inputs) {
    int found = 0, others = 0;
    for (int i = 0; i < inputs; ++i) {
        int one = x[i] == 1.0f;
        others |= (x[i] == 0.0f) == one;
        found |= one << i;
    }
    return others ? -1 : found;
}

// What is left of the entries after the last input, then the one before it, and so on: level i has 2^i numbers.
struct Levels {
    float values[2 << most];
    float* of(int i) { return values + (1 << i); }
    void fill(const float* x, const float* entries, int inputs) {
        std::copy_n(entries, 1 << inputs, of(inputs));
        for (int i = inputs - 1; i >= 0; --i) {
            const float* from = of(i + 1);
            float* to = of(i);
            for (int a = 0; a < 1 << i; ++a) to[a] = from[a] * (1 - x[i]) + from[a + (1 << i)] * x[i];
        }
    }
};

}  // namespace

void lookup(const float* x, const float* entries, float* y, std::size_t rows, std::size_t tables, int inputs,
            int threads) {
    parallel(rows, threads, [&](std::size_t begin, std::size_t end) {
        Levels levels;
        for (std::size_t r = begin; r < end; ++r)
            for (std::size_t n = 0; n < tables; ++n) {
                const float *at = x + (r * tables + n) * inputs, *own = entries + (n << inputs);
                int a = address(at, inputs);
                if (a < 0) levels.fill(at, own, inputs);
                y[r * tables + n] = a < 0 ? *levels.of(0) : own[a];
            }
    });
}

void lookup_backward(const float* g, const float* x, const float* entries, float* gx, float* ge, std::size_t rows,
                     std::size_t tables, int inputs, int threads) {
    parallel((tables + group - 1) / group, threads, [&](std::size_t begin, std::size_t end) {
        Levels levels;
        float weights[1 << most];
        for (std::size_t first = begin * group; first < std::min(end * group, tables); first += group)
            for (std::size_t r = 0; r < rows; ++r)
                for (std::size_t n = first; n < std::min(first + group, tables); ++n) {
                    std::size_t place = r * tables + n;
                    const float *at = x + place * inputs, *own = entries + (n << inputs);
                    float *to = gx + place * inputs, *sums = ge + (n << inputs);
                    int a = address(at, inputs);
                    if (a >= 0) {
                        for (int i = 0; i < inputs; ++i) to[i] = g[place] * (own[a | 1 << i] - own[a & ~(1 << i)]);
                        sums[a] += g[place];
                        continue;
                    }
                    levels.fill(at, own, inputs);
                    weights[0] = g[place];
                    for (int i = 0; i < inputs; ++i) {
                        const float* level = levels.of(i + 1);
                        to[i] = 0;
                        for (int b = 0; b < 1 << i; ++b) {
                            to[i] += weights[b] * (level[b + (1 << i)] - level[b]);
                            weights[b + (1 << i)] = weights[b] * at[i];
                            weights[b] *= 1 - at[i];
                        }
                    }
                    for (int b = 0; b < 1 << inputs; ++b) sums[b] += weights[b];
                }
    });
}

}  // namespace htaf
