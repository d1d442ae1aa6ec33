// What every instruction set offers; bindings.cpp chooses one at run time.
#pragma once

#include <cstddef>
#include <cstdint>

namespace htaf {

enum class Type : int { float32 = 0, bfloat16 = 1, float16 = 2 };
enum class Smooth : int { htaf = 0, scaled_sigmoid = 1 };
enum class Slope : int { rectangular = 0, atan = 1, approx_sign = 2 };

// A spike and its slope: a smooth one with its own, or the exact step, with the slope of a surrogate or with none.
enum class Fire : int {
    htaf = 0, scaled_sigmoid = 1, step = 2,
    step_htaf = 3, step_sigmoid = 4, step_rectangular = 5, step_atan = 6, step_approx_sign = 7,
};

// h = leak v + gain x; spike = fire(h - threshold); v = h - r h, or h - r threshold (soft), r being the spike or its exact
// step (exact_reset), through which gradients pass when attached.
struct Neuron {
    Fire fire;
    double parameters[2];
    float scale;  // of a surrogate's slope
    float leak, gain, threshold;
    bool soft, exact_reset, attached;
};

// A tensor in memory order as [outer, channels, inner]; parameter i of channel c is parameters[i][c].
// One scalar parameter is channels = 1, outer = 1.
struct Shape {
    std::size_t outer, channels, inner;
    std::size_t size() const { return outer * channels * inner; }
};

struct SmoothKernels {
    // y = scale f(x) + shift
    void (*forward)(Smooth, Type, const void* x, void* y, Shape, const double* const* parameters, float scale,
                    float shift, int threads);
    // gx = scale g f'(x); where sums is not null, sums[i][c] = the sum over channel c of scale g df/dp_i
    void (*backward)(Smooth, Type, const void* g, const void* x, void* gx, Shape, const double* const* parameters,
                     float scale, double* const* sums, int threads);
    // y = the mean of scale f(x - t_k) + shift over thresholds t, and its gradient, of two scalar parameters at most
    void (*forward_levels)(Smooth, Type, const void* x, void* y, std::size_t n, const double* const* parameters,
                           const float* thresholds, int levels, float scale, float shift, int threads);
    void (*backward_levels)(Smooth, Type, const void* g, const void* x, void* gx, std::size_t n,
                            const double* const* parameters, const float* thresholds, int levels, float scale,
                            int threads);
    // y = (scale c + shift) / levels, c being how many of the thresholds x reaches; a NaN stays
    void (*step_levels)(Type, const void* x, void* y, std::size_t n, const float* thresholds, int levels, float scale,
                        float shift, int threads);
    // gx = scale g slope(x), slopes that are not the derivative of a smooth function above
    void (*slope)(Slope, Type, const void* g, const void* x, void* gx, std::size_t n, float parameter, float scale,
                  int threads);
};

struct NeuronKernels {
    // n neurons over `steps` time steps; step t of x starts at x + t stride, of s, gs and gx at t n. v0 null: from rest;
    // v, gv and gv0 null: not wanted, or zero. Potentials and their gradients are float32.
    void (*forward)(const Neuron&, Type, const void* x, std::size_t stride, const float* v0, void* s, float* v,
                    std::size_t steps, std::size_t n, int threads);
    void (*backward)(const Neuron&, Type, const void* gs, const float* gv, const void* x, std::size_t stride,
                     const float* v0, void* gx, float* gv0, std::size_t steps, std::size_t n, int threads);
};

struct BinaryKernels;
struct TableKernels;
struct IntegerKernels;
struct MapKernels;
struct FloatKernels;
struct LogicKernels;

struct Kernels {
    const char* name;
    const SmoothKernels* smooth;
    const NeuronKernels* neurons;
    // the layers over packed bits: binary.hpp, tables.hpp, integers.hpp, maps.hpp
    const BinaryKernels* binary;
    const TableKernels* tables;
    const IntegerKernels* integers;
    const MapKernels* maps;
    const FloatKernels* floats;  // floats.hpp
    const LogicKernels* logic;   // logic.hpp
    // 1 where x >= 0, `below` elsewhere, NaN where x is NaN
    void (*heaviside)(Type, const void* x, void* y, std::size_t n, float below, int threads);
    // Bit j of byte i of a row is 1 where value 8 i + j of the row is >= 0; unused bits are 0. False when x holds a NaN.
    bool (*pack)(Type, const void* x, std::uint8_t* bits, std::size_t rows, std::size_t columns, int threads);
    // turned [columns, ceil(rows / 8)] from bits [rows, ceil(columns / 8)]: bit c of row n becomes bit n of row c
    void (*transpose)(const std::uint8_t* bits, std::uint8_t* turned, std::size_t rows, std::size_t columns,
                      int threads);
    // counts [m, n] of a [m, bytes] and b [n, bytes]: how many bits are set in both of two rows
    void (*count_common)(const std::uint8_t* a, const std::uint8_t* b, std::int64_t* counts, std::size_t m,
                         std::size_t n, std::size_t bytes, int threads);
};

extern const Kernels portable;
#if defined(__x86_64__)
extern const Kernels avx2, avx512;
#elif defined(__aarch64__)
extern const Kernels neon;
#endif

}  // namespace htaf
