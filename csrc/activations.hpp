// The activations on one f32. The plain formulas: src/htaf/core/kernels/*/reference.py; why these forms: docs/kernels.md.
// Included once per instruction set; see CMakeLists.txt.
#pragma once

#include <algorithm>

#include "simd.hpp"

namespace htaf::HTAF_NAMESPACE {
namespace {

// C holds a constant: a reg where all lanes share it, an f32 where each lane has its own channel. Half says that the
// result becomes a bfloat16: a relative error of 3e-6 is then a thousandth of the rounding that follows.
// Constants are derived once per channel in double from the parameters rounded to float32, the dtype of the arithmetic.

constexpr double log2e = 1.4426950408889634074;

inline float finite(double value) { return static_cast<float>(std::clamp(value, -3e38, 3e38)); }
inline void split(double value, float& high, float& low) {
    value = std::clamp(value, -3e38, 3e38);
    high = static_cast<float>(value);
    low = static_cast<float>(value - high);
}

// Beyond 2^20 a larger alpha1 is a larger product alone: u^3 / (3 alpha1^2), what u = a1 tanh(a0 x) lacks of the linear
// a1 a0 x, is below 3e-7 for every u at which the sigmoid is a normal number. So alpha1 stays there and alpha0 takes the
// rest, which a tiny alpha0 needs: a0 x of its own could be below the normal numbers.
struct Pair {
    double alpha0, alpha1, excess;  // excess: alpha1 as given over this one
    explicit Pair(const double* p) : alpha1(std::min(p[1], 0x1p20)), excess(p[1] / alpha1) {
        alpha0 = std::min(p[0] * excess, 1e38);  // times 2 log2(e) within float32, as the limits derived from it
    }
};

// scale / (1 + 2^(x rate)) + shift. In units of 2^32, so that a quotient down to 2^-158 is a normal number until the last
// multiplication rounds it, to 0 where x is cut.
template <bool Half, class C>
HTAF_INLINE f32 sigmoid_of(f32 x, C rate, C low, C high, C scale, C shift) {
    Exp2<127 - 32> f(at_least(at_most(x, high), low), rate);
    return reciprocal((Half ? f.rough() : f.value()) + 0x1p-32f) * scale + shift;
}

// y = scale / (1 + f) + shift with f = exp(-a1 t), t = tanh(a0 x) = E / (E + 2), E = exp(2 a0 x) - 1 without
// cancellation. t is 1 to the last bit from 2^25 on.
template <class C, bool Half>
struct HtafForward {
    static constexpr int parameters = 2, constants = 7;
    C rate0, limit0, rate1, low1, high1, scale, shift;

    static void derive(const double* p, double scale, double shift, float* c) {
        const Pair a(p);
        double c0 = 2 * a.alpha0 * log2e, c1 = a.alpha1 * log2e;
        c[0] = finite(c0);
        c[1] = finite(30 / c0);
        c[2] = finite(-c1);
        c[3] = finite(-158 / c1);
        c[4] = finite(95 / c1);
        c[5] = scale * 0x1p-32;
        c[6] = shift;
    }
    explicit HtafForward(const C* c)
        : rate0(c[0]), limit0(c[1]), rate1(c[2]), low1(c[3]), high1(c[4]), scale(c[5]), shift(c[6]) {}

    HTAF_INLINE f32 operator()(f32 x) const {
        Exp2<127> e(at_least(at_most(x, limit0), -limit0), rate0);
        f32 expm1 = (Half ? e.rough_minus_one() : e.minus_one()) * e.s + (e.s - 1.0f);
        f32 t = Half ? expm1 * reciprocal(expm1 + 2.0f) : quotient(expm1, expm1 + 2.0f);
        return sigmoid_of<Half>(t, rate1, low1, high1, scale, shift);
    }
};

// slope = a0 a1 e f ((1 + t) / (1 + f))^2 with e = exp(-2 a0 |x|), t = tanh(a0 |x|) = (1 - e) / (1 + e),
// f = exp(-a1 t). As 1 / (1 + e) = (1 + t) / 2, this is a0 a1 (4 e / (1 + e)^2) (f / (1 + f)^2).
// e and f are kept times 2^32: each may be below the smallest normal number when the slope is not.
template <class C, bool Half>
struct HtafBackward {
    static constexpr int parameters = 2, constants = 8;
    C rate0, rest0, limit0, rate1, rest1, limit1, factor, unit;

    static void derive(const double* p, double scale, double, float* c) {
        const Pair a(p);
        double c0 = 2 * a.alpha0 * log2e, c1 = a.alpha1 * log2e;
        double root = std::sqrt(scale * p[0] * p[1]);  // carried by q, which costs no multiplication
        root = std::clamp(root, 0x1p-68, 0x1p94);      // beyond, the slope is below or above every number of float32
        split(-c0, c[0], c[1]);
        c[2] = finite(158.9 / c0);  // e is 0 from there on
        split(-c1, c[3], c[4]);
        c[5] = finite(158.9 / c1);
        c[6] = 1 / root;
        c[7] = 0x1p32 / root;
    }
    explicit HtafBackward(const C* c)
        : rate0(c[0]), rest0(c[1]), limit0(c[2]), rate1(c[3]), rest1(c[4]), limit1(c[5]), factor(c[6]), unit(c[7]) {}

    HTAF_INLINE f32 operator()(f32 g, f32 x) const {
        f32 ignored[2];
        return gradient<false>(g, x, ignored);
    }
    HTAF_INLINE f32 operator()(f32 g, f32 x, f32* terms) const { return gradient<true>(g, x, terms); }

    // What the sum of terms i still lacks.
    static double finish(int i, const double* p, double sum) {
        return i == 0 ? sum / p[0] : sum / (p[0] * p[1]) / Pair(p).excess;
    }

   private:
    template <bool Terms>
    HTAF_INLINE f32 gradient(f32 g, f32 x, f32* terms) const {
        f32 z = at_most(abs(x), limit0), t, f;
        Exp2<159> power = Half ? Exp2<159>(z, rate0) : Exp2<159>(z, rate0, rest0);
        f32 h = (Half ? power.rough_minus_one() : power.minus_one()) * power.s;
        f32 e = power.s + h;
        f32 above = (1.0f - power.s * 0x1p-32f) - h * 0x1p-32f;  // 1 - e without cancellation
        if constexpr (Half) {
            t = above * reciprocal(2.0f - above);
            f = Exp2<159>(at_most(t, limit1), rate1).rough();
        } else {
            t = quotient(above, 2.0f - above);
            f = Exp2<159>(at_most(t, limit1), rate1, rest1).value();
        }
        f32 w = t + 1.0f;
        f32 q = reciprocal(f * factor + unit);  // 2^-32 sqrt(scale a0 a1) / (1 + f)
        f32 wq = w * q;
        f32 gx = g * (e * f * (wq * wq));
        if constexpr (Terms) {
            terms[0] = terms[0] + gx * at_least(at_most(x, all(0x1p63f)), all(-0x1p63f));
            terms[1] = terms[1] + copysign(t, x) * (f * q * (q * 0x1p32f)) * g;
        }
        return gx;
    }
};

// y = scale / (1 + exp(-beta x)) + shift
template <class C, bool Half>
struct SigmoidForward {
    static constexpr int parameters = 1, constants = 5;
    C rate, low, high, scale, shift;

    static void derive(const double* p, double scale, double shift, float* c) {
        double c0 = p[0] * log2e;
        c[0] = finite(-c0);
        c[1] = finite(-158 / c0);
        c[2] = finite(95 / c0);
        c[3] = scale * 0x1p-32;
        c[4] = shift;
    }
    explicit SigmoidForward(const C* c) : rate(c[0]), low(c[1]), high(c[2]), scale(c[3]), shift(c[4]) {}

    HTAF_INLINE f32 operator()(f32 x) const { return sigmoid_of<Half>(x, rate, low, high, scale, shift); }
};

// slope = beta e / (1 + e)^2 with e = exp(-beta |x|)
template <class C, bool Half>
struct SigmoidBackward {
    static constexpr int parameters = 1, constants = 5;
    C rate, rest, limit, factor, unit;

    static void derive(const double* p, double scale, double, float* c) {
        double c0 = p[0] * log2e, root = std::sqrt(scale * p[0]);
        split(-c0, c[0], c[1]);
        c[2] = finite(158.9 / c0);
        c[3] = 0x1p-16 / root;
        c[4] = 0x1p16 / root;
    }
    explicit SigmoidBackward(const C* c) : rate(c[0]), rest(c[1]), limit(c[2]), factor(c[3]), unit(c[4]) {}

    HTAF_INLINE f32 operator()(f32 g, f32 x) const {
        f32 z = at_most(abs(x), limit), e;
        if constexpr (Half) e = Exp2<159>(z * rate).rough();
        else e = Exp2<159>(z, rate, rest).value();
        f32 q = reciprocal(e * factor + unit);  // 2^-16 sqrt(scale beta) / (1 + e)
        return g * (e * (q * q));
    }
    HTAF_INLINE f32 operator()(f32 g, f32 x, f32* terms) const {
        f32 gx = (*this)(g, x);
        terms[0] = terms[0] + gx * at_least(at_most(x, all(0x1p63f)), all(-0x1p63f));
        return gx;
    }
    static double finish(int, const double* p, double sum) { return sum / p[0]; }
};

struct RectangularSlope {
    reg scale;
    RectangularSlope(float, float scale) : scale(one(scale)) {}
    HTAF_INLINE f32 operator()(f32 g, f32 x) const { return g * select(abs(x) < 1.0f, scale, reg{}); }
};

struct AtanSlope {
    reg rate, height;
    AtanSlope(float alpha, float scale)
        : rate(one(finite(1.57079632679489662 * alpha))), height(one(scale * alpha / 2)) {}
    HTAF_INLINE f32 operator()(f32 g, f32 x) const {
        f32 z = x * rate;
        return g * (height / (z * z + 1.0f));
    }
};

struct ApproxSignSlope {
    reg scale;
    ApproxSignSlope(float, float scale) : scale(one(scale)) {}
    HTAF_INLINE f32 operator()(f32 g, f32 x) const { return g * (at_least(1.0f - abs(x), reg{}) * scale); }
};

}  // namespace
}  // namespace htaf::HTAF_NAMESPACE
