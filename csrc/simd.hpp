// HTAF_LANES floats in one register as a compiler vector type, and `f32`: HTAF_PARTS such registers that go through the
// same operations. The steps of an exponential wait for one another; several independent ones keep the units busy.
// Included once per instruction set; see CMakeLists.txt.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace htaf::HTAF_NAMESPACE {
namespace {

// Every operation on vectors is inlined, or the compiler passes them through memory.
#define HTAF_INLINE inline __attribute__((always_inline))

typedef float reg __attribute__((vector_size(4 * HTAF_LANES)));
typedef std::int32_t reg_i32 __attribute__((vector_size(4 * HTAF_LANES)));
typedef std::uint32_t reg_u32 __attribute__((vector_size(4 * HTAF_LANES)));
typedef std::uint16_t reg_u16 __attribute__((vector_size(2 * HTAF_LANES)));

constexpr int parts = HTAF_PARTS;
static_assert(parts % 2 == 0);
template <class R>
struct wide {
    R part[parts];
};
using f32 = wide<reg>;
constexpr int lanes = parts * HTAF_LANES;  // of an f32

template <class>
constexpr bool is_wide = false;
template <class R>
constexpr bool is_wide<wide<R>> = true;
template <class... X>
concept one_is_wide = (is_wide<X> || ...);

template <int I, class X>
HTAF_INLINE auto part(X x) {
    if constexpr (is_wide<X>) return x.part[I];
    else return x;
}
// f of every part of the arguments; those that are not wide are the same for all.
template <class F, class... X>
HTAF_INLINE auto each(F f, X... x) {
    using R = decltype(f(part<0>(x)...));
    return [&]<int... I>(std::integer_sequence<int, I...>) __attribute__((always_inline)) {
        auto one = [&]<int K>(std::integral_constant<int, K>) __attribute__((always_inline)) { return f(part<K>(x)...); };
        return wide<R>{{one(std::integral_constant<int, I>{})...}};
    }(std::make_integer_sequence<int, parts>{});
}

#define HTAF_BINARY(op)                                         \
    template <class X, class Y>                                 \
        requires one_is_wide<X, Y>                              \
    HTAF_INLINE auto operator op(X x, Y y) {                    \
        return each([](auto a, auto b) __attribute__((always_inline)) { return a op b; }, x, y); \
    }
HTAF_BINARY(+)
HTAF_BINARY(-)
HTAF_BINARY(*)
HTAF_BINARY(/)
HTAF_BINARY(&)
HTAF_BINARY(|)
HTAF_BINARY(<<)
HTAF_BINARY(>>)
HTAF_BINARY(<)
HTAF_BINARY(>)
HTAF_BINARY(>=)
HTAF_BINARY(!=)
#undef HTAF_BINARY
template <class R>
HTAF_INLINE wide<R> operator-(wide<R> v) {
    return each([](auto a) __attribute__((always_inline)) { return -a; }, v);
}
template <class M, class X, class Y>
HTAF_INLINE f32 select(wide<M> mask, X yes, Y no) {
    return each([](auto m, auto a, auto b) __attribute__((always_inline)) { return m ? a : b; }, mask, yes, no);
}

template <class To, class R>
HTAF_INLINE wide<To> as(wide<R> v) {
    return each([](auto a) __attribute__((always_inline)) { return reinterpret_cast<To>(a); }, v);
}
HTAF_INLINE reg one(float v) { return v - reg{}; }
HTAF_INLINE f32 all(float v) {
    return each([v](int) __attribute__((always_inline)) { return one(v); }, 0);
}

HTAF_INLINE f32 abs(f32 v) { return as<reg>(as<reg_i32>(v) & 0x7fffffff); }
HTAF_INLINE f32 copysign(f32 size, f32 sign) {
    return as<reg>((as<reg_i32>(size) & 0x7fffffff) | (as<reg_i32>(sign) & static_cast<std::int32_t>(0x80000000)));
}
// Where v is NaN the NaN stays: x86 returns the second operand then, as a compiler will not do by itself.
#if defined(__AVX512F__)
HTAF_INLINE reg lesser(reg bound, reg v) { return (reg)_mm512_min_ps((__m512)bound, (__m512)v); }
HTAF_INLINE reg greater(reg bound, reg v) { return (reg)_mm512_max_ps((__m512)bound, (__m512)v); }
#elif defined(__AVX__)
HTAF_INLINE reg lesser(reg bound, reg v) { return (reg)_mm256_min_ps((__m256)bound, (__m256)v); }
HTAF_INLINE reg greater(reg bound, reg v) { return (reg)_mm256_max_ps((__m256)bound, (__m256)v); }
#elif defined(__SSE2__)
HTAF_INLINE reg lesser(reg bound, reg v) { return (reg)_mm_min_ps((__m128)bound, (__m128)v); }
HTAF_INLINE reg greater(reg bound, reg v) { return (reg)_mm_max_ps((__m128)bound, (__m128)v); }
#else
HTAF_INLINE reg lesser(reg bound, reg v) { return bound < v ? bound : v; }
HTAF_INLINE reg greater(reg bound, reg v) { return bound > v ? bound : v; }
#endif
template <class B>
HTAF_INLINE f32 at_most(f32 v, B bound) {
    return each([](reg a, reg b) __attribute__((always_inline)) { return lesser(b, a); }, v, bound);
}
template <class B>
HTAF_INLINE f32 at_least(f32 v, B bound) {
    return each([](reg a, reg b) __attribute__((always_inline)) { return greater(b, a); }, v, bound);
}

struct bfloat16 {
    std::uint16_t bits;
};
struct float16 {
    std::uint16_t bits;
};

template <class V>
HTAF_INLINE V read(const void* p) {
    V v;
    std::memcpy(&v, p, sizeof v);
    return v;
}

// load and store take `lanes` values. Where the value at a place of memory lies in an f32 depends on the type: float32
// and float16 in order; bfloat16, two registers at a time, the even places first, as these need a shift, the others a mask.
template <class T>
constexpr int slot(int place) {
    if constexpr (!std::is_same_v<T, bfloat16>) return place;
    int in_two = place % (2 * HTAF_LANES);
    return place - in_two + in_two / 2 + in_two % 2 * HTAF_LANES;
}
HTAF_INLINE float* values(f32& v) { return reinterpret_cast<float*>(&v); }

HTAF_INLINE f32 load(const float* p) {
    f32 v;
    for (int i = 0; i < parts; ++i) v.part[i] = read<reg>(p + i * HTAF_LANES);
    return v;
}
HTAF_INLINE void store(float* p, f32 v) {
    for (int i = 0; i < parts; ++i) std::memcpy(p + i * HTAF_LANES, &v.part[i], sizeof(reg));
}

HTAF_INLINE f32 load(const bfloat16* p) {
    f32 v;
    for (int i = 0; i < parts; i += 2) {
        auto two = read<reg_u32>(p + i * HTAF_LANES);
        v.part[i] = reinterpret_cast<reg>(two << 16);
        v.part[i + 1] = reinterpret_cast<reg>(two & 0xffff0000);
    }
    return v;
}
// Rounded to nearest even. A NaN here comes from a bfloat16, so its lower half is 0 and adding cannot carry it away.
HTAF_INLINE void store(bfloat16* p, f32 v) {
    wide<reg_u32> b = as<reg_u32>(v);
    b = b + 0x7fff + ((b >> 16) & 1);
    for (int i = 0; i < parts; i += 2) {
        reg_u32 two = (b.part[i] >> 16) | (b.part[i + 1] & 0xffff0000);
        std::memcpy(p + i * HTAF_LANES, &two, sizeof two);
    }
}

// HTAF_LANES values in the order of memory, for every type.
HTAF_INLINE reg widen(const float* p) { return read<reg>(p); }
HTAF_INLINE reg widen(const bfloat16* p) {
    return reinterpret_cast<reg>(__builtin_convertvector(read<reg_u16>(p), reg_u32) << 16);
}
#if defined(__AVX512F__)
HTAF_INLINE reg widen(const float16* p) { return (reg)_mm512_cvtph_ps(read<__m256i>(p)); }
HTAF_INLINE void narrow(float16* p, reg v) {
    auto h = _mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT);
    std::memcpy(p, &h, sizeof h);
}
#elif defined(__F16C__)
HTAF_INLINE reg widen(const float16* p) { return (reg)_mm256_cvtph_ps(read<__m128i>(p)); }
HTAF_INLINE void narrow(float16* p, reg v) {
    auto h = _mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT);
    std::memcpy(p, &h, sizeof h);
}
#else
// A half's exponent and mantissa with another bias; below 2^-14 as the last bits of 0.5, which is then taken away. No float
// on the way is a denormal, which the processor may have been told to flush.
HTAF_INLINE reg widen(const float16* p) {
    reg_u32 v = __builtin_convertvector(read<reg_u16>(p), reg_u32);
    reg_u32 size = (v & 0x7fff) << 13, exponent = v & 0x7c00;
    reg_u32 normal = size + 0x38000000 + (exponent == 0x7c00 ? (v & 0) + 0x38000000 : v & 0);
    reg_u32 denormal = reinterpret_cast<reg_u32>(reinterpret_cast<reg>((v & 0x3ff) | 0x3f000000) - 0.5f);
    return reinterpret_cast<reg>((exponent == 0 ? denormal : normal) | ((v & 0x8000) << 16));
}
// Rounded to nearest even: below 2^-14 by adding 0.5, whose last bit is the smallest half; above by a carry into bit 13.
HTAF_INLINE void narrow(float16* p, reg v) {
    reg_u32 b = reinterpret_cast<reg_u32>(v), sign = (b >> 16) & 0x8000, size = b & 0x7fffffff;
    reg_u32 denormal = reinterpret_cast<reg_u32>(reinterpret_cast<reg>(size) + 0.5f) - 0x3f000000;
    reg_u32 normal = (size + 0xc8000fff + ((size >> 13) & 1)) >> 13;
    reg_u32 r = size < 0x38800000 ? denormal : normal;
    r = size >= 0x477ff000 ? (r & 0) + 0x7c00 : r;  // 65520 and above round to infinity
    r = size > 0x7f800000 ? ((size >> 13) & 0x3ff) | 0x7e00 : r;
    auto h = __builtin_convertvector(r | sign, reg_u16);
    std::memcpy(p, &h, sizeof h);
}
#endif
HTAF_INLINE f32 load(const float16* p) {
    f32 v;
    for (int i = 0; i < parts; ++i) v.part[i] = widen(p + i * HTAF_LANES);
    return v;
}
HTAF_INLINE void store(float16* p, f32 v) {
    for (int i = 0; i < parts; ++i) narrow(p + i * HTAF_LANES, v.part[i]);
}

// 1 / d and n / d. On AVX-512 an estimate of 14 bits and one Newton step, which is quicker than the division and errs by at
// most 1 unit in the last place more; d in [2^-126, 2^126].
#if defined(__AVX512F__)
HTAF_INLINE f32 estimate(f32 d) {
    return each([](reg v) __attribute__((always_inline)) { return (reg)_mm512_rcp14_ps((__m512)v); }, d);
}
HTAF_INLINE f32 reciprocal(f32 d) {
    f32 q = estimate(d);
    return (1.0f - d * q) * q + q;
}
HTAF_INLINE f32 quotient(f32 n, f32 d) {
    f32 q = estimate(d), t = n * q;
    return (n - d * t) * q + t;
}
#else
HTAF_INLINE f32 reciprocal(f32 d) { return 1.0f / d; }
HTAF_INLINE f32 quotient(f32 n, f32 d) { return n / d; }
#endif

// 2^y = s 2^r with s a power of two and |r| <= 1/2.
// The exponent field of s is round(y) + Bias: 127 gives 2^y itself, 159 gives 2^32 2^y, so that 2^-158 is still a
// normal number. Needs round(y) + Bias in [0, 255]; at 0 s is 0, at 255 infinity.
template <int Bias>
struct Exp2 {
    static constexpr float magic = 0x1.8p23f + Bias;  // its last bit is 1, so adding it rounds to an integer
    f32 r, s;

    // y rounded to float32: relative error 3e-8 |y|
    HTAF_INLINE explicit Exp2(f32 y) {
        f32 shifted = y + magic;
        r = y - (shifted - magic);
        s = power(shifted);
    }
    // y = x high, where there is a fused multiply-add without that error
    template <class C>
    HTAF_INLINE Exp2(f32 x, C high) {
        f32 shifted = x * high + magic;
        r = x * high - (shifted - magic);
        s = power(shifted);
    }
    // y = x (high + low): `low` is what the constant loses when rounded to float32
    template <class C>
    HTAF_INLINE Exp2(f32 x, C high, C low) : Exp2(x, high) {
        r = x * low + r;
    }
    // 2^r - 1, relative error 1.1e-8 before rounding
    HTAF_INLINE f32 minus_one() const {
        f32 q = r * 0x1.4308fap-13f + 0x1.5f07b4p-10f;
        q = q * r + 0x1.3b2bap-7f;
        q = q * r + 0x1.c6af6ep-5f;
        q = q * r + 0x1.ebfbdep-3f;
        q = q * r + 0x1.62e43p-1f;
        return q * r;
    }
    // s 2^r, relative error 9e-8 before rounding
    HTAF_INLINE f32 value() const {
        f32 q = r * 0x1.5bba14p-10f + 0x1.3cea88p-7f;
        q = q * r + 0x1.c6b752p-5f;
        q = q * r + 0x1.ebf9bcp-3f;
        q = q * r + 0x1.62e42ap-1f;
        q = q * r + 1.0f;
        return q * s;
    }
    // 2^r - 1, relative error 5e-7, for 16-bit results
    HTAF_INLINE f32 rough_minus_one() const {
        f32 q = r * 0x1.5bba14p-10f + 0x1.3cea88p-7f;
        q = q * r + 0x1.c6b752p-5f;
        q = q * r + 0x1.ebf9bcp-3f;
        q = q * r + 0x1.62e42ap-1f;
        return q * r;
    }
    // s 2^r, relative error 3e-6, for 16-bit results
    HTAF_INLINE f32 rough() const {
        f32 q = r * 0x1.3a02ccp-7f + 0x1.c9fc46p-5f;
        q = q * r + 0x1.ec0378p-3f;
        q = q * r + 0x1.62e12cp-1f;
        q = q * r + 1.0f;
        return q * s;
    }

   private:
    static HTAF_INLINE f32 power(f32 shifted) { return as<reg>(as<reg_i32>(shifted) << 23); }
};

}  // namespace
}  // namespace htaf::HTAF_NAMESPACE
