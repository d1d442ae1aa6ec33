// What every instruction set offers; bindings.cpp chooses one at run time.
#pragma once

#include <cstddef>
#include <cstdint>

namespace htaf {

enum class Type : int { float32 = 0, bfloat16 = 1, float16 = 2 };
enum class Smooth : int { htaf = 0, scaled_sigmoid = 1 };
enum class Slope : int { rectangular = 0, atan = 1, approx_sign = 2 };

// A tensor in memory order as [outer, channels, inner]; parameter i of channel c is parameters[i][c].
// One scalar parameter is channels = 1, outer = 1.
struct Shape {
    std::size_t outer, channels, inner;
    std::size_t size() const { return outer * channels * inner; }
};

struct Kernels {
    const char* name;
    // y = scale f(x) + shift
    void (*forward)(Smooth, Type, const void* x, void* y, Shape, const double* const* parameters, float scale,
                    float shift, int threads);
    // gx = scale g f'(x); where sums is not null, sums[i][c] = the sum over channel c of scale g df/dp_i
    void (*backward)(Smooth, Type, const void* g, const void* x, void* gx, Shape, const double* const* parameters,
                     float scale, double* const* sums, int threads);
    // gx = scale g slope(x), slopes that are not the derivative of a smooth function above
    void (*slope)(Slope, Type, const void* g, const void* x, void* gx, std::size_t n, float parameter, float scale,
                  int threads);
    // 1 where x >= 0, `below` elsewhere, NaN where x is NaN
    void (*heaviside)(Type, const void* x, void* y, std::size_t n, float below, int threads);
    // Bit j of byte i of a row is 1 where value 8 i + j of the row is >= 0; unused bits are 0. False when x holds a NaN.
    bool (*pack)(Type, const void* x, std::uint8_t* bits, std::size_t rows, std::size_t columns, int threads);
    void (*unpack)(Type, const std::uint8_t* bits, void* y, std::size_t rows, std::size_t columns, float below,
                   int threads);
};

extern const Kernels portable;
#if defined(__x86_64__)
extern const Kernels avx2, avx512;
#elif defined(__aarch64__)
extern const Kernels neon;
#endif

}  // namespace htaf
