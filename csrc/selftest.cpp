// Runs every instruction set that this processor has against formulas in double precision, without Python:
// natively, and under an emulator for the processors that are not at hand. tests/test_packaging.py builds and runs it.
// Arguments: the instruction sets that must have run, best first. Prints the worst error of each check and its limit.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "binary.hpp"
#include "kernels.hpp"
#include "floats.hpp"
#include "integers.hpp"
#include "logic.hpp"
#include "maps.hpp"
#include "parallel.hpp"
#include "processor.hpp"
#include "tables.hpp"
#include "team.hpp"

using namespace htaf;

namespace {

const double inf = std::numeric_limits<double>::infinity();
const double nan = std::numeric_limits<double>::quiet_NaN();

// ---- the formulas, on doubles

struct Value {
    double y, dx, dp[2];
};

Value htaf_of(double x, const double* p) {
    double t = std::tanh(p[0] * x), u = p[1] * t;
    double e = std::exp(-2 * std::fabs(p[0] * x)), sech2 = 4 * e / ((1 + e) * (1 + e));
    double f = std::exp(-std::fabs(u)), bell = f / ((1 + f) * (1 + f));
    return {1 / (1 + std::exp(-u)), p[0] * p[1] * sech2 * bell, {p[1] * sech2 * bell * (sech2 ? x : 0), t * bell}};
}

Value sigmoid_of(double x, const double* p) {
    double f = std::exp(-std::fabs(p[0] * x)), bell = f / ((1 + f) * (1 + f));
    return {1 / (1 + std::exp(-p[0] * x)), p[0] * bell, {bell ? x * bell : 0, 0}};
}

Value value_of(Smooth kind, double x, const double* p) {
    return kind == Smooth::htaf ? htaf_of(x, p) : sigmoid_of(x, p);
}

double slope_of(Slope kind, double x, double a) {
    switch (kind) {
        case Slope::rectangular: return std::fabs(x) < 1 ? 1 : 0;
        case Slope::atan: return a / 2 / (1 + std::pow(std::acos(-1.0) / 2 * a * x, 2));
        case Slope::approx_sign: return std::fmax(0, 1 - std::fabs(x));
    }
    return nan;
}

// ---- the types, as bits

struct Format {
    Type type;
    const char* name;
    int bytes, mantissa, exponent;  // bits of the last two
    int least() const { return 2 - (1 << (exponent - 1)); }  // exponent of the smallest normal number
};
const Format formats[] = {{Type::float32, "float32", 4, 23, 8},
                          {Type::bfloat16, "bfloat16", 2, 7, 8},
                          {Type::float16, "float16", 2, 10, 5}};

double decode(const Format& f, std::uint32_t bits) {
    int top = (1 << f.exponent) - 1, e = bits >> f.mantissa & top;
    double m = bits & ((1u << f.mantissa) - 1);
    double size = std::ldexp(e ? m + (1u << f.mantissa) : m, f.least() + std::max(e, 1) - 1 - f.mantissa);
    if (e == top) size = m ? nan : inf;
    return bits >> (f.mantissa + f.exponent) & 1 ? -size : size;
}

// Cut, not rounded.
std::uint32_t encode(const Format& f, double v) {
    std::uint32_t sign = std::signbit(v) ? 1u << (f.mantissa + f.exponent) : 0, top = (1u << f.exponent) - 1;
    double size = std::fabs(v);
    if (v != v) return sign | top << f.mantissa | 1u << (f.mantissa - 1);
    if (size == inf) return sign | top << f.mantissa;
    int e = size < std::ldexp(1, f.least()) ? f.least() - 1 : std::ilogb(size);
    auto m = static_cast<std::uint32_t>(std::ldexp(size, f.mantissa - std::max(e, f.least())));
    return sign | (m + (static_cast<std::uint32_t>(std::max(e, f.least()) - f.least()) << f.mantissa));
}

// Distance of two neighbours around v.
double unit(const Format& f, double v) {
    return std::ldexp(1, (v == 0 ? f.least() : std::max(f.least(), std::ilogb(v))) - f.mantissa);
}

// A tensor that ends where its allocation ends but for a guard, so that what is written too far is seen. The sanitizer
// sees it by itself, and what is read too far as well.
#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define HTAF_SANITIZED 1
#endif
#elif defined(__SANITIZE_ADDRESS__)
#define HTAF_SANITIZED 1
#endif
#ifdef HTAF_SANITIZED
constexpr std::size_t guard = 0;
#else
constexpr std::size_t guard = 64;
#endif
class Tensor {
   public:
    Tensor(const Format& f, std::size_t n) : f_(f), n_(n), bytes_(n * f.bytes + guard, 0xA5) {}
    Tensor(const Format& f, const std::vector<double>& values) : Tensor(f, values.size()) {
        for (std::size_t i = 0; i < n_; ++i) set(i, encode(f, values[i]));
    }
    void* data() { return bytes_.data(); }
    void set(std::size_t i, std::uint32_t bits) { std::memcpy(&bytes_[i * f_.bytes], &bits, f_.bytes); }
    double operator[](std::size_t i) const {
        std::uint32_t bits = 0;
        std::memcpy(&bits, &bytes_[i * f_.bytes], f_.bytes);
        return decode(f_, bits);
    }
    bool whole() const {
        return std::all_of(bytes_.end() - guard, bytes_.end(), [](unsigned char b) { return b == 0xA5; });
    }
    bool operator==(const Tensor& other) const { return bytes_ == other.bytes_; }
    std::size_t size() const { return n_; }

   private:
    const Format& f_;
    std::size_t n_;
    std::vector<unsigned char> bytes_;  // little-endian
};

// ---- the checks

struct Checks {
    const Kernels& k;
    int failures = 0;

    void report(const std::string& what, double worst, double limit, double at) {
        bool good = worst <= limit;  // false for NaN
        failures += !good;
        std::printf("%s %-8s %-50s worst %9.3g limit %9.3g at %.9g\n", good ? "ok  " : "FAIL", k.name, what.c_str(),
                    worst, limit, at);
    }
    void must(bool good, const std::string& what) {
        if (good) return;
        ++failures;
        std::printf("FAIL %-8s %s\n", k.name, what.c_str());
    }
    void everything();
    void accuracy(Smooth, const Format&, double p0, double p1, double scale, double shift);
    void layout(Smooth, const Format&, Shape);
    void special(Smooth, const Format&);
    void slopes(const Format&);
    void levels(Smooth, const Format&);
    void rounding(const Format&);
    void steps(const Format&);
    void bits(const Format&, std::size_t rows, std::size_t columns);
    void counts(std::size_t m, std::size_t n, std::size_t bytes);
    void turned(std::size_t rows, std::size_t columns);
    void binary(const Convolution&, bool bipolar);
    void integers(const Convolution&, std::size_t planes);
    template <class Entry>
    void tables(TableKind, Convolution);
    void maps(std::size_t pixels, std::size_t channels);
    void pools(const Convolution&);
    void floats(const Convolution&, const MaxWindow&);
    void columns(std::size_t rows, std::size_t inputs, std::size_t outputs);
    void packed_spikes(std::size_t pixels, std::size_t channels, bool soft, bool scaled);
    void means(std::size_t channels, std::size_t outputs);
    template <class T>
    void circuit(Column, std::size_t rows, std::size_t columns);
    void neurons(const Format&, Fire, std::size_t n, bool soft, bool carried);
};

struct Worst {
    double error = 0, at = 0;
    void see(double e, double x) {
        if (error == error && !(e <= error)) error = e, at = x;  // a NaN stays
    }
};

// [-20, 20] in float32; every number of a 16-bit type.
std::vector<double> points(const Format& f) {
    std::vector<double> x;
    if (f.bytes == 4) {
        for (int i = 0; i <= 20000; ++i) x.push_back(static_cast<float>((i - 10000) / 500.0 + (i % 2 ? 1e-4 : 0)));
        for (int e = -149; e < 4; ++e) x.insert(x.end(), {std::ldexp(1, e), -std::ldexp(1.25, std::max(e, -147))});
    } else {
        for (std::uint32_t b = 0; b < 65536; ++b)
            if (std::isfinite(decode(f, b))) x.push_back(decode(f, b));
    }
    return x;
}

// Below the normal numbers of float32 the kernels may round to 0.
constexpr double normal = 0x1p-126;

// y = scale f + shift. float32: |error| / scale. 16 bits: in units of the last place, apart from the error that float32
// has where a shifted output is near 0.
constexpr double forward_float32 = 2.5e-7;
double forward_error(const Format& f, double got, double want, double scale, double shift) {
    double error = std::fabs(got - want);
    if (f.bytes == 4) return error / std::fabs(scale);
    if (std::fabs(want) < normal) return std::fabs(got) <= normal ? 0 : inf;
    return (shift ? std::fdim(error, forward_float32 * std::fabs(scale)) : error) / unit(f, want);
}
double gradient_error(const Format& f, double got, double want) {
    if (std::fabs(want) < normal) return std::fabs(got) <= normal ? 0 : inf;
    return std::fabs(got - want) / (f.bytes == 4 ? std::fabs(want) : unit(f, want));
}
double forward_limit(const Format& f) { return f.bytes == 4 ? forward_float32 : 0.51; }
double gradient_limit(const Format& f) { return f.bytes == 4 ? 3e-5 : 0.51; }

const char* name_of(Smooth kind) { return kind == Smooth::htaf ? "htaf" : "sigmoid"; }

void Checks::accuracy(Smooth kind, const Format& f, double p0, double p1, double scale, double shift) {
    std::vector<double> values = points(f);
    Tensor x(f, values), y(f, values.size()), g(f, std::vector<double>(values.size(), 1)), gx(f, values.size());
    Shape s{1, 1, values.size()};
    const double *p[] = {&p0, &p1}, rounded[] = {static_cast<float>(p0), static_cast<float>(p1)};
    k.smooth->forward(kind, f.type, x.data(), y.data(), s, p, scale, shift, 1);
    k.smooth->backward(kind, f.type, g.data(), x.data(), gx.data(), s, p, scale, nullptr, 1);
    Worst forward, backward;
    for (std::size_t i = 0; i < values.size(); ++i) {
        Value v = value_of(kind, values[i], rounded);
        forward.see(forward_error(f, y[i], scale * v.y + shift, scale, shift), values[i]);
        backward.see(gradient_error(f, gx[i], scale * v.dx), values[i]);
    }
    char what[99];
    std::snprintf(what, sizeof what, "%s %s (%g, %g) x %g + %g", name_of(kind), f.name, p0, p1, scale, shift);
    report(what + std::string(" forward"), forward.error, forward_limit(f), forward.at);
    report(what + std::string(" gradient"), backward.error, gradient_limit(f), backward.at);
}

void Checks::layout(Smooth kind, const Format& f, Shape s) {
    std::mt19937 random(1);
    std::uniform_real_distribution<double> about(-3, 3), size(0.5, 8);
    std::size_t n = s.size();
    std::vector<double> vx(n), vg(n), p0(s.channels), p1(s.channels);
    for (std::size_t i = 0; i < n; ++i) vx[i] = about(random), vg[i] = about(random);
    for (std::size_t c = 0; c < s.channels; ++c) p0[c] = size(random), p1[c] = size(random);
    const double *p[] = {p0.data(), p1.data()}, scale = 2, shift = -1;
    Tensor x(f, vx), g(f, vg), y(f, n), gx(f, n), alone(f, n);  // alone: the gradient without sums, another loop
    std::vector<double> sums[2] = {std::vector<double>(s.channels, nan), std::vector<double>(s.channels, nan)};
    double* to[] = {sums[0].data(), sums[1].data()};
    k.smooth->forward(kind, f.type, x.data(), y.data(), s, p, scale, shift, 1);
    k.smooth->backward(kind, f.type, g.data(), x.data(), gx.data(), s, p, scale, to, 1);
    k.smooth->backward(kind, f.type, g.data(), x.data(), alone.data(), s, p, scale, nullptr, 1);

    Worst forward, backward, total;
    int parameters = kind == Smooth::htaf ? 2 : 1;
    const std::vector<double> zeros(s.channels);
    std::vector<double> want[2] = {zeros, zeros}, mass[2] = {zeros, zeros};
    for (std::size_t i = 0; i < n; ++i) {
        std::size_t c = i / s.inner % s.channels;
        double rounded[] = {static_cast<float>(p0[c]), static_cast<float>(p1[c])};
        Value v = value_of(kind, x[i], rounded);
        forward.see(forward_error(f, y[i], scale * v.y + shift, scale, shift), i);
        backward.see(gradient_error(f, gx[i], scale * g[i] * v.dx), i);
        backward.see(gradient_error(f, alone[i], scale * g[i] * v.dx), i);
        for (int j = 0; j < parameters; ++j) {
            want[j][c] += scale * g[i] * v.dp[j];
            mass[j][c] += std::fabs(scale * g[i] * v.dp[j]);
        }
    }
    for (int j = 0; j < parameters; ++j)
        for (std::size_t c = 0; c < s.channels; ++c)
            total.see(mass[j][c] ? std::fabs(sums[j][c] - want[j][c]) / mass[j][c] : std::fabs(sums[j][c]), c);
    char what[99];
    std::snprintf(what, sizeof what, "%s %s [%zu, %zu, %zu]", name_of(kind), f.name, s.outer, s.channels, s.inner);
    report(what + std::string(" forward"), forward.error, forward_limit(f), forward.at);
    report(what + std::string(" gradient"), backward.error, gradient_limit(f), backward.at);
    // the terms are those of the gradient before it is rounded: in 16 bits 1e-3 is a quarter of that rounding or less
    report(what + std::string(" sums"), total.error, f.bytes == 4 ? 3e-5 : 1e-3, total.at);

    Tensor y3(f, n), gx3(f, n), alone3(f, n);
    std::vector<double> sums3[2] = {sums[0], sums[1]};
    for (auto& row : sums3) std::fill(row.begin(), row.end(), nan);
    double* to3[] = {sums3[0].data(), sums3[1].data()};
    k.smooth->forward(kind, f.type, x.data(), y3.data(), s, p, scale, shift, 3);
    k.smooth->backward(kind, f.type, g.data(), x.data(), gx3.data(), s, p, scale, to3, 3);
    k.smooth->backward(kind, f.type, g.data(), x.data(), alone3.data(), s, p, scale, nullptr, 3);
    must(y.whole() && gx.whole() && alone.whole(), what + std::string(" writes past the end"));
    must(y == y3 && gx == gx3 && alone == alone3, what + std::string(" depends on the number of threads"));
    for (int j = 0; j < parameters; ++j)
        must(sums[j] == sums3[j], what + std::string(" sums depend on the number of threads"));
}

void Checks::special(Smooth kind, const Format& f) {
    double tiny = decode(f, 1), p0 = 2, p1 = 11;
    const double* p[] = {&p0, &p1};
    std::vector<double> values = {nan, inf, -inf, 0.0, -0.0, tiny, -tiny, decode(f, encode(f, inf) - 1), -1.0};
    Tensor x(f, values), g(f, std::vector<double>(values.size(), 1)), y(f, values.size()), gx(f, values.size());
    Shape s{1, 1, values.size()};
    k.smooth->forward(kind, f.type, x.data(), y.data(), s, p, 1, 0, 1);
    k.smooth->backward(kind, f.type, g.data(), x.data(), gx.data(), s, p, 1, nullptr, 1);
    std::string what = std::string(name_of(kind)) + " " + f.name;
    for (std::size_t i = 0; i < values.size(); ++i) {
        const double rounded[] = {p0, p1};
        Value v = value_of(kind, values[i], rounded);
        std::string where = what + " at " + std::to_string(values[i]);
        if (values[i] != values[i]) {
            must(y[i] != y[i] && gx[i] != gx[i], where);
        } else {
            must(forward_error(f, y[i], v.y, 1, 0) <= forward_limit(f), where + " forward");
            must(gradient_error(f, gx[i], v.dx) <= gradient_limit(f), where + " gradient");
        }
    }
    Tensor bad(f, std::vector<double>{nan, 1, nan}), at(f, std::vector<double>{0, 1, inf}), out(f, 3);
    k.smooth->backward(kind, f.type, bad.data(), at.data(), out.data(), {1, 1, 3}, p, 1, nullptr, 1);
    must(out[0] != out[0] && out[1] == out[1] && out[2] != out[2], what + " loses a NaN of the incoming gradient");

    double sum[] = {nan, nan}, *sums[] = {&sum[0], &sum[1]};
    for (Shape none : {Shape{0, 1, 5}, Shape{1, 1, 0}}) {
        k.smooth->forward(kind, f.type, x.data(), y.data(), none, p, 1, 0, 1);
        k.smooth->backward(kind, f.type, g.data(), x.data(), gx.data(), none, p, 1, sums, 1);
        must(sum[0] == 0 && (kind == Smooth::scaled_sigmoid || sum[1] == 0), what + " sums over nothing");
    }
}

void Checks::slopes(const Format& f) {
    std::vector<double> values = points(f);
    for (double edge : {1.0, -1.0, 1 - std::ldexp(1, -f.mantissa - 1), inf, -inf, nan}) values.push_back(edge);
    Tensor x(f, values), g(f, std::vector<double>(values.size(), 1.5)), gx(f, values.size());
    const std::pair<Slope, double> all[] = {
        {Slope::rectangular, 1}, {Slope::atan, 2}, {Slope::atan, 0.25}, {Slope::approx_sign, 1}};
    for (auto [kind, a] : all) {
        k.smooth->slope(kind, f.type, g.data(), x.data(), gx.data(), values.size(), a, 2, 2);
        Worst worst;
        for (std::size_t i = 0; i < values.size(); ++i) {
            double want = 3 * slope_of(kind, values[i], a);
            if (values[i] == values[i]) worst.see(gradient_error(f, gx[i], want), values[i]);
        }
        char what[99];
        std::snprintf(what, sizeof what, "slope %d (%g) %s", static_cast<int>(kind), a, f.name);
        report(what, worst.error, f.bytes == 4 ? 1e-6 : 0.51, worst.at);
        must(gx.whole(), what + std::string(" writes past the end"));
    }
}

// The mean over several thresholds: its error is absolute, as a sum's is.
void Checks::levels(Smooth kind, const Format& f) {
    std::vector<double> values;
    for (double x : points(f)) {
        if (std::fabs(x) < 100) values.push_back(x);
    }
    double p0 = 0.5, p1 = 5;
    const double* p[] = {&p0, &p1};
    const double rounded[] = {p0, p1};
    const float thresholds[] = {-1.5f, -0.25f, 1.0f};
    std::size_t n = values.size();
    Tensor x(f, values), g(f, std::vector<double>(n, 1.5)), y(f, n), gx(f, n);
    k.smooth->forward_levels(kind, f.type, x.data(), y.data(), n, p, thresholds, 3, 2, -1, 2);
    k.smooth->backward_levels(kind, f.type, g.data(), x.data(), gx.data(), n, p, thresholds, 3, 2, 2);
    Worst forward, backward;
    for (std::size_t i = 0; i < n; ++i) {
        Value mean{-1, 0, {0, 0}};
        for (float t : thresholds) {
            Value one = value_of(kind, values[i] - t, rounded);
            mean.y += 2 * one.y / 3;
            mean.dx += 1.5 * 2 * one.dx / 3;
        }
        forward.see(std::fabs(y[i] - mean.y), values[i]);
        backward.see(std::fabs(gx[i] - mean.dx), values[i]);
    }
    Tensor edges(f, std::vector<double>{-1.5, -1.75, -0.25, 1, 0.875, inf, -inf, nan}), share(f, 8);
    k.smooth->step_levels(f.type, edges.data(), share.data(), 8, thresholds, 3, 2, -3, 2);
    const double counts[] = {1, 0, 2, 3, 2, 3, 0};
    for (std::size_t i = 0; i < 7; ++i)
        must(std::fabs(share[i] - (2 * counts[i] - 3) / 3) <= std::ldexp(1, -f.mantissa - 2), "step of levels");
    must(share[7] != share[7] && share.whole(), "step of levels at NaN");
    double limit = f.bytes == 4 ? 2e-6 : std::ldexp(1.01, -f.mantissa - 1);
    std::string what = "levels of " + std::string(name_of(kind)) + " " + f.name;
    report(what + " forward", forward.error, limit, forward.at);
    report(what + " gradient", backward.error, 2 * limit, backward.at);
    must(y.whole() && gx.whole(), what + " writes past the end");
}

// Results are rounded to the nearest number of 16 bits, to the even one of two: seen where the result is a product.
void Checks::rounding(const Format& f) {
    std::vector<double> values = points(f);
    Tensor g(f, values), x(f, std::vector<double>(values.size(), 0)), gx(f, values.size());
    for (float scale : {0.5f, 1.5f}) {
        k.smooth->slope(Slope::rectangular, f.type, g.data(), x.data(), gx.data(), values.size(), 1, scale, 1);
        Worst worst;
        for (std::size_t i = 0; i < values.size(); ++i) {
            double product = scale * values[i], want = std::nearbyint(product / unit(f, product)) * unit(f, product);
            if (std::fabs(want) >= std::ldexp(1, 2 - f.least())) want = std::copysign(inf, want);
            if (std::fabs(product) >= normal) worst.see(gx[i] == want ? 0 : 1, values[i]);
        }
        report("rounding to " + std::string(f.name) + " of x " + std::to_string(scale), worst.error, 0, worst.at);
    }
}

void Checks::steps(const Format& f) {
    std::vector<double> values = points(f);
    for (double edge : {0.0, -0.0, decode(f, 1), -decode(f, 1), inf, -inf, nan, -nan}) values.push_back(edge);
    const std::size_t all = values.size();
    for (float below : {0.0f, -1.0f})
        for (std::size_t n : {std::size_t{0}, std::size_t{1}, std::size_t{7}, std::size_t{63}, std::size_t{65}, all}) {
            std::vector<double> last(values.end() - n, values.end());
            Tensor x(f, last), y(f, n);
            k.heaviside(f.type, x.data(), y.data(), n, below, 2);
            bool good = y.whole();
            for (std::size_t i = 0; i < n; ++i)
                good = good && (last[i] != last[i] ? y[i] != y[i] : y[i] == (last[i] >= 0 ? 1 : below));
            must(good, std::string("heaviside ") + f.name);
        }
}

void Checks::bits(const Format& f, std::size_t rows, std::size_t columns) {
    std::mt19937 random(2);
    std::vector<double> values(rows * columns);
    for (auto& v : values) {
        const double choice[] = {0.0, -0.0, 1.5, -1.5, decode(f, 1), -decode(f, 1), inf, -inf};
        v = choice[random() % 8];
    }
    char what[99];
    std::snprintf(what, sizeof what, "pack %s [%zu, %zu]", f.name, rows, columns);
    std::size_t bytes = (columns + 7) / 8;
    std::vector<std::uint8_t> want(rows * bytes), packed(rows * bytes + 8, 0xA5);
    for (std::size_t i = 0; i < values.size(); ++i)
        if (values[i] >= 0) want[i / columns * bytes + i % columns / 8] |= 1 << i % columns % 8;
    Tensor x(f, values);
    must(k.pack(f.type, x.data(), packed.data(), rows, columns, 2), what + std::string(" finds a NaN where none is"));
    must(std::equal(want.begin(), want.end(), packed.begin()), what);
    must(std::count(packed.end() - 8, packed.end(), 0xA5) == 8, what + std::string(" writes past the end"));
    for (std::size_t i : {std::size_t{0}, values.size() / 2, values.size() - 1}) {
        if (values.empty()) break;
        Tensor bad(f, values);
        bad.set(i, encode(f, nan));
        must(!k.pack(f.type, bad.data(), packed.data(), rows, columns, 2), what + std::string(" does not see a NaN"));
    }
}

void Checks::counts(std::size_t m, std::size_t n, std::size_t bytes) {
    std::mt19937 random(3);
    std::vector<std::uint8_t> a(m * bytes), b(n * bytes);
    for (auto* x : {&a, &b})
        for (auto& v : *x) v = static_cast<std::uint8_t>(random());
    char what[99];
    std::snprintf(what, sizeof what, "common bits [%zu, %zu, %zu]", m, n, bytes);
    std::vector<std::int64_t> found(m * n + 1, -7);
    for (bool same : {false, true}) {
        const auto& other = same ? a : b;
        std::size_t others = same ? m : n;
        found.assign(m * others + 1, -7);
        k.count_common(a.data(), other.data(), found.data(), m, others, bytes, 2);
        bool good = found.back() == -7;
        for (std::size_t i = 0; i < m; ++i)
            for (std::size_t j = 0; j < others; ++j) {
                std::int64_t want = 0;
                for (std::size_t l = 0; l < bytes; ++l)
                    for (int bits = a[i * bytes + l] & other[j * bytes + l]; bits; bits &= bits - 1) ++want;
                good = good && found[i * others + j] == want;
            }
        must(good, what + std::string(same ? " with itself" : ""));
    }
}

void Checks::turned(std::size_t rows, std::size_t columns) {
    std::mt19937 random(4);
    std::size_t bytes = (columns + 7) / 8, turned_bytes = (rows + 7) / 8;
    std::vector<std::uint8_t> bits(rows * bytes), want(columns * turned_bytes), found(columns * turned_bytes + 8, 0xA5);
    for (auto& v : bits) v = static_cast<std::uint8_t>(random());  // unused bits too
    for (std::size_t i = 0; i < rows; ++i)
        for (std::size_t j = 0; j < columns; ++j)
            want[j * turned_bytes + i / 8] |= (bits[i * bytes + j / 8] >> j % 8 & 1) << i % 8;
    k.transpose(bits.data(), found.data(), rows, columns, 2);
    char what[99];
    std::snprintf(what, sizeof what, "bits turned [%zu, %zu]", rows, columns);
    must(std::equal(want.begin(), want.end(), found.begin()), what);
    must(std::count(found.end() - 8, found.end(), 0xA5) == 8, what + std::string(" writes past the end"));
}

// body(tap, i, pixel, channel) of every input i of its group that output o has at pixel p inside the image.
template <class F>
void for_inputs(const Convolution& c, std::size_t p, std::size_t o, const F& body) {
    std::size_t inner = c.channels / c.groups, outer = c.outputs / c.groups;
    for (std::size_t tap = 0; tap < c.kernel[0] * c.kernel[1]; ++tap) {
        std::size_t y = p / c.out_width() % c.out_height() * c.stride[0] + tap / c.kernel[1] * c.dilation[0];
        std::size_t x = p % c.out_width() * c.stride[1] + tap % c.kernel[1] * c.dilation[1];
        std::size_t image = p / c.out_width() / c.out_height();
        y -= c.padding[0], x -= c.padding[1];
        if (y >= c.height || x >= c.width) continue;
        for (std::size_t i = 0; i < inner; ++i)
            body(tap, i, (image * c.height + y) * c.width + x, o / outer * inner + i);
    }
}

// Sums, bits of an interval of them, and these bits alone, which take another way, against a loop over single bits.
void Checks::binary(const Convolution& c, bool bipolar) {
    const std::size_t inner = c.channels / c.groups, outer = c.outputs / c.groups, taps = c.kernel[0] * c.kernel[1];
    const std::size_t words = (inner + 31) / 32, in_group = (outer + 63) / 64, row = (c.channels + 63) / 64;
    const std::size_t wide = (c.outputs + 63) / 64, block = taps * words * 64;
    std::mt19937_64 random(5);
    std::vector<std::uint64_t> images(c.batch * c.height * c.width * row);
    for (std::size_t i = 0; i < images.size(); ++i) {
        images[i] = random();
        if (i % row == row - 1 && c.channels % 64) images[i] &= (std::uint64_t{1} << c.channels % 64) - 1;
    }
    std::vector<std::uint32_t> signs(c.groups * in_group * block);
    std::vector<std::int32_t> ones(taps * c.groups * in_group * 64);
    auto place = [&](std::size_t o, std::size_t tap, std::size_t i) {  // of the word of a sign
        return (o / outer * in_group + o % outer / 64) * block + (tap * words + i / 32) * 64 + o % outer % 64;
    };
    for (std::size_t o = 0; o < c.outputs; ++o)
        for (std::size_t tap = 0; tap < taps; ++tap)
            for (std::size_t i = 0; i < inner; ++i)
                if (random() % 2) {
                    signs[place(o, tap, i)] |= 1u << i % 32;
                    ++ones[((tap * c.groups + o / outer) * in_group + o % outer / 64) * 64 + o % outer % 64];
                }
    std::vector<float> want(c.pixels() * c.outputs);
    for (std::size_t p = 0; p < c.pixels(); ++p)
        for (std::size_t o = 0; o < c.outputs; ++o)
            for_inputs(c, p, o, [&](std::size_t tap, std::size_t i, std::size_t pixel, std::size_t channel) {
                int a = images[pixel * row + channel / 64] >> channel % 64 & 1;
                float w = signs[place(o, tap, i)] >> i % 32 & 1 ? 1 : -1;
                want[p * c.outputs + o] += w * static_cast<float>(bipolar ? 2 * a - 1 : a);
            });
    const BinaryKernels* kernels = for_packed(&k)->binary;
    const BinaryWeights weights{signs.data(), ones.data(), bipolar};
    const std::vector<float> lower(c.outputs, -3), upper(c.outputs, 5);
    std::vector<std::uint64_t> want_bits(c.pixels() * wide);
    for (std::size_t i = 0; i < want.size(); ++i)
        if (-3 <= want[i] && want[i] <= 5)
            want_bits[i / c.outputs * wide + i % c.outputs / 64] |= std::uint64_t{1} << i % c.outputs % 64;
    char what[99];
    std::snprintf(what, sizeof what, "binary convolution of %zu to %zu, %zu groups", c.channels, c.outputs, c.groups);
    for (int threads : {1, 3}) {
        std::vector<float> y(want.size() + 16, -7);
        std::vector<std::uint64_t> found(want_bits.size() + 1, 7), alone = found;
        const auto* bytes = reinterpret_cast<const std::uint8_t*>(images.data());
        kernels->forward(c, weights, bytes, {nullptr, nullptr, nullptr, y.data(), lower.data(), upper.data(), found.data()},
                         threads);
        kernels->forward(c, weights, bytes, {nullptr, nullptr, nullptr, nullptr, lower.data(), upper.data(), alone.data()},
                         threads);
        must(std::equal(want.begin(), want.end(), y.begin()), what + std::string(": sums"));
        must(std::equal(want_bits.begin(), want_bits.end(), found.begin()), what + std::string(": bits"));
        must(found == alone, what + std::string(": bits alone"));
        must(std::count(y.end() - 16, y.end(), -7) == 16 && found.back() == 7, what + std::string(" writes past the end"));
    }
}

// The same of integer weights, the largest ones among them, over sums of planes of bits.
void Checks::integers(const Convolution& c, std::size_t planes) {
    const std::size_t inner = c.channels / c.groups, outer = c.outputs / c.groups, taps = c.kernel[0] * c.kernel[1];
    const std::size_t words = (inner + 3) / 4, in_group = (outer + 63) / 64, row = (c.channels + 63) / 64;
    const std::size_t wide = (c.outputs + 63) / 64;
    std::mt19937_64 random(6);
    std::vector<std::uint64_t> images(c.batch * c.height * c.width * planes * row);
    for (std::size_t i = 0; i < images.size(); ++i) {
        images[i] = random() | random();
        if (i % row == row - 1 && c.channels % 64) images[i] &= (std::uint64_t{1} << c.channels % 64) - 1;
    }
    std::vector<std::uint32_t> values(c.groups * in_group * taps * words * 64);
    auto* weights = reinterpret_cast<std::int8_t*>(values.data());
    auto place = [&](std::size_t o, std::size_t tap, std::size_t i) {
        std::size_t block = o / outer * in_group + o % outer / 64;
        return (((block * taps + tap) * words + i / 4) * 64 + o % outer % 64) * 4 + i % 4;
    };
    for (std::size_t o = 0; o < c.outputs; ++o)
        for (std::size_t tap = 0; tap < taps; ++tap)
            for (std::size_t i = 0; i < inner; ++i)
                weights[place(o, tap, i)] = static_cast<std::int8_t>(
                    o % 3 ? static_cast<int>(random() % 255) - 127 : o % 2 ? 127 : -127);
    std::vector<float> want(c.pixels() * c.outputs);
    for (std::size_t p = 0; p < c.pixels(); ++p)
        for (std::size_t o = 0; o < c.outputs; ++o)
            for_inputs(c, p, o, [&](std::size_t tap, std::size_t i, std::size_t pixel, std::size_t channel) {
                int a = 0;
                for (std::size_t j = 0; j < planes; ++j)
                    a += static_cast<int>(images[(pixel * planes + j) * row + channel / 64] >> channel % 64 & 1) << j;
                want[p * c.outputs + o] += static_cast<float>(a * weights[place(o, tap, i)]);
            });
    const std::vector<float> lower(c.outputs, -900), upper(c.outputs, 700);
    std::vector<std::uint64_t> want_bits(c.pixels() * wide);
    for (std::size_t i = 0; i < want.size(); ++i)
        if (-900 <= want[i] && want[i] <= 700)
            want_bits[i / c.outputs * wide + i % c.outputs / 64] |= std::uint64_t{1} << i % c.outputs % 64;
    char what[99];
    std::snprintf(what, sizeof what, "integers of %zu to %zu, %zu groups, %zu planes", c.channels, c.outputs, c.groups, planes);
    for (int threads : {1, 3}) {
        std::vector<float> y(want.size() + 16, -7);
        std::vector<std::uint64_t> found(want_bits.size() + 1, 7), alone = found;
        const auto* bytes = reinterpret_cast<const std::uint8_t*>(images.data());
        const IntegerKernels* kernels = for_packed(&k)->integers;
        kernels->forward(c, {values.data(), planes}, bytes,
                         {nullptr, nullptr, nullptr, y.data(), lower.data(), upper.data(), found.data()}, threads);
        kernels->forward(c, {values.data(), planes}, bytes,
                         {nullptr, nullptr, nullptr, nullptr, lower.data(), upper.data(), alone.data()}, threads);
        must(std::equal(want.begin(), want.end(), y.begin()), what + std::string(": sums"));
        must(std::equal(want_bits.begin(), want_bits.end(), found.begin()), what + std::string(": bits"));
        must(found == alone, what + std::string(": bits alone"));
        must(std::count(y.end() - 16, y.end(), -7) == 16 && found.back() == 7, what + std::string(" writes past the end"));
    }
}

// Real weights on bits: the sum of one entry a part of each tap: of 3 inputs, of 4, or float32's of one, a weight or 0.
template <class Entry>
void Checks::tables(TableKind kind, Convolution c) {
    std::mt19937 random(5);
    bool floats = kind == TableKind::float32, fours = kind == TableKind::fours;
    std::size_t words = (c.channels + 63) / 64, taps = c.kernel[0] * c.kernel[1], each = c.channels / c.groups;
    std::size_t fields = floats ? (each + 31) / 32 : fours ? (each + 15) / 16 : each / 64 * 11 + (each % 64 + 5) / 6;
    std::size_t width = floats ? 32 : fours ? 64 : 16, parts = fours ? 4 : 2, in_part = fours ? 4 : 3, in_word = fours ? 4 : 11;
    std::vector<std::uint64_t> bits(c.batch * c.height * c.width * words);
    auto bit = [&](std::size_t pixel, std::size_t i) { return bits[pixel * words + i / 64] >> i % 64 & 1; };
    for (std::size_t i = 0; i < bits.size(); ++i)
        for (std::size_t j = i % words * 64; j < std::min(c.channels, (i % words + 1) * 64); ++j)
            bits[i] |= static_cast<std::uint64_t>(random() & 1) << j % 64;
    std::vector<Entry> values(c.outputs * taps * fields * width);
    for (std::size_t i = 0; i < values.size(); ++i) {
        int v = static_cast<int>(random() % (kind == TableKind::int16 ? 2048 : 64));  // of 16 or 2 sixes the sums fit
        values[i] = static_cast<Entry>(floats ? (i / 32 % fields * 32 + i % 32 < each ? v - 32 : 0) : v);
    }
    std::vector<float> unit(c.outputs), lower(c.outputs, 0), upper(c.outputs, static_cast<float>(inf));
    std::vector<std::int32_t> bias(c.outputs);
    for (std::size_t o = 0; o < c.outputs; ++o) unit[o] = 0.25f, bias[o] = floats ? 0 : 900 + static_cast<int>(o);

    std::size_t pixels = c.pixels(), row = (c.outputs + 63) / 64;
    std::vector<float> want(pixels * c.outputs), y(want.size() + 1, -7.0f);
    std::vector<std::uint64_t> packed(pixels * row + 1, 7);
    for (std::size_t i = 0; i < want.size(); ++i) {
        std::size_t o = i % c.outputs, p = i / c.outputs, x = p % c.out_width(), h = p / c.out_width() % c.out_height();
        std::size_t image = p / c.out_width() / c.out_height(), first = o / (c.outputs / c.groups) * each;
        double sum = 0;
        for (std::size_t tap = 0; tap < taps; ++tap) {
            std::size_t from_y = h * c.stride[0] + tap / c.kernel[1] * c.dilation[0] - c.padding[0];
            std::size_t from_x = x * c.stride[1] + tap % c.kernel[1] * c.dilation[1] - c.padding[1];
            bool inside = from_y < c.height && from_x < c.width;
            std::size_t pixel = (image * c.height + from_y) * c.width + from_x;
            const Entry* v = &values[(o * taps + tap) * fields * width];
            for (std::size_t k = 0; floats && inside && k < each; ++k) sum += bit(pixel, first + k) ? v[k] : 0;
            for (std::size_t f = 0; !floats && f < fields; ++f)
                for (std::size_t part = 0; part < parts; ++part) {
                    std::size_t pattern = 0;
                    for (std::size_t b = 0; b < in_part; ++b) {
                        std::size_t k = f / in_word * 64 + (f % in_word * parts + part) * in_part + b;
                        bool there = inside && k < std::min(each, f / in_word * 64 + 64);
                        pattern |= static_cast<std::size_t>(there && bit(pixel, first + k)) << b;
                    }
                    sum += v[f * width + part * (width / parts) + pattern];
                }
        }
        want[i] = static_cast<float>(floats ? sum : (sum - bias[o]) * (fours ? 1 : unit[o]));
    }
    Epilogue both = {nullptr, nullptr, nullptr, y.data(), lower.data(), upper.data(), packed.data()}, step = both;
    step.y = nullptr;
    const auto& kernels = *for_packed(&k)->tables;
    char what[99];
    std::snprintf(what, sizeof what, "tables, kind %d, %zu channels, %zu outputs, %zu pixels", static_cast<int>(kind),
                  c.channels, c.outputs, pixels);
    // The same weights as int16, whose sums are exact here: what is near 0 counts as undecided and is summed again.
    const std::size_t sixes = each / 64 * 11 + (each % 64 + 5) / 6;
    std::vector<std::uint16_t> rough(floats ? c.outputs * taps * sixes * 16 : 0);
    for (std::size_t i = 0; i < rough.size(); ++i) {
        const Entry* weights = &values[i / (sixes * 16) * fields * width];  // of an output and a tap
        rough[i] = 96;
        for (std::size_t b = 0; b < 3; ++b) {
            std::size_t field = i / 16 % sixes, within = field % 11 * 6 + i / 8 % 2 * 3 + b, k = field / 11 * 64 + within;
            if (within < 64 && k < each && i >> b & 1) rough[i] = static_cast<std::uint16_t>(rough[i] + weights[k]);
        }
    }
    std::vector<float> one(c.outputs, 1), ends(4 * c.outputs, static_cast<float>(inf));
    std::fill_n(ends.begin(), c.outputs, 4.0f);
    std::fill_n(ends.begin() + 2 * c.outputs, c.outputs, -4.0f);
    std::vector<std::int32_t> shift(c.outputs, static_cast<std::int32_t>(taps * sixes * 2 * 96));
    for (bool roughly : {false, true}) for (const Epilogue& e : {both, step}) {
        if (roughly && !(floats && kernels.rough && !e.y)) continue;
        std::fill(packed.begin(), packed.end(), 7);
        Tables tables = {kind, values.data(), unit.data(), bias.data()};
        if (roughly) tables.rough = {rough.data(), one.data(), shift.data(), ends.data()};
        kernels.forward(tables, bits.data(), c, e, 2);
        bool good = packed.back() == 7 && y.back() == -7.0f;
        for (std::size_t i = 0; i < want.size(); ++i) {
            std::size_t o = i % c.outputs;
            good = good && y[i] == want[i];
            good = good && (packed[i / c.outputs * row + o / 64] >> o % 64 & 1) == (want[i] >= 0);
        }
        must(good, what);
    }
}

// Small multiples of 1/8, exact in every type.
std::vector<float> eighths(std::size_t n, unsigned seed) {
    std::mt19937 random(seed);
    std::vector<float> values(n);
    for (float& v : values) v = (static_cast<int>(random() % 33) - 16) / 8.0f;
    return values;
}

std::vector<std::uint64_t> random_bits(std::size_t pixels, std::size_t channels, unsigned seed) {
    std::mt19937 random(seed);
    std::size_t words = (channels + 63) / 64;
    std::vector<std::uint64_t> bits(pixels * words);
    for (std::size_t i = 0; i < pixels * channels; ++i)
        bits[i / channels * words + i % channels / 64] |= static_cast<std::uint64_t>(random() & 1) << i % channels % 64;
    return bits;
}

void Checks::maps(std::size_t pixels, std::size_t channels) {
    const MapKernels& kernels = *for_packed(&k)->maps;
    std::size_t words = (channels + 63) / 64, n = pixels * channels;
    auto bit_of = [&](const std::vector<std::uint64_t>& bits, std::size_t i) {
        return bits[i / channels * words + i % channels / 64] >> i % channels % 64 & 1;
    };
    std::vector<float> sums = eighths(n, 6), scale = eighths(channels, 7), shift = eighths(channels, 8), add = eighths(n, 9);
    std::vector<float> lower(channels, -1), upper(channels, 1.5f);
    char what[99];
    std::snprintf(what, sizeof what, "epilogue of [%zu, %zu]", pixels, channels);
    for (bool affine : {false, true}) {
        std::vector<float> y(n);
        std::vector<std::uint64_t> bits(pixels * words), alone(pixels * words);
        Epilogue e = {affine ? scale.data() : nullptr, affine ? shift.data() : nullptr, affine ? add.data() : nullptr,
                      y.data(), lower.data(), upper.data(), bits.data()};
        kernels.finish(sums.data(), pixels, channels, e, 2);
        e.y = nullptr, e.bits = alone.data();
        kernels.finish(sums.data(), pixels, channels, e, 2);
        bool good = bits == alone;
        for (std::size_t i = 0; i < n; ++i) {
            float want = affine ? scale[i % channels] * sums[i] + shift[i % channels] + add[i] : sums[i];
            good = good && y[i] == want && bit_of(bits, i) == (-1 <= want && want <= 1.5f);
        }
        must(good, what);
    }
    std::vector<std::uint64_t> bits = random_bits(pixels, channels, 10);
    std::vector<float> values(n);
    for (float below : {0.0f, -1.0f}) {
        kernels.unpack(bits.data(), values.data(), pixels, channels, below, 2);
        bool good = true;
        for (std::size_t i = 0; i < n; ++i) good = good && values[i] == (bit_of(bits, i) ? 1 : below);
        must(good, std::string("floats of bits, ") + what);
    }
}

void Checks::pools(const Convolution& c) {
    std::size_t words = (c.channels + 63) / 64;
    std::vector<std::uint64_t> bits = random_bits(c.batch * c.height * c.width, c.channels, 11);
    std::vector<std::uint64_t> want(c.pixels() * words), found(want.size(), 7);
    for (std::size_t p = 0; p < c.pixels(); ++p)
        for (std::size_t tap = 0; tap < c.kernel[0] * c.kernel[1]; ++tap) {
            std::size_t image = p / c.out_width() / c.out_height();
            std::size_t y = p / c.out_width() % c.out_height() * c.stride[0] + tap / c.kernel[1] * c.dilation[0] - c.padding[0];
            std::size_t x = p % c.out_width() * c.stride[1] + tap % c.kernel[1] * c.dilation[1] - c.padding[1];
            if (y < c.height && x < c.width)
                for (std::size_t w = 0; w < words; ++w)
                    want[p * words + w] |= bits[((image * c.height + y) * c.width + x) * words + w];
        }
    for_packed(&k)->maps->max_pool(bits.data(), found.data(), c, nullptr, 2);
    must(found == want, "max pooling of " + std::to_string(c.channels) + " channels");
    std::vector<std::uint64_t> some = random_bits(1, c.channels, 12), turned = bits;  // inverted there: the least of these
    for (std::size_t i = 0; i < bits.size(); ++i) turned[i] ^= some[i % words];
    for (std::size_t i = 0; i < want.size(); ++i) want[i] ^= some[i % words];
    for_packed(&k)->maps->max_pool(turned.data(), found.data(), c, some.data(), 2);
    must(found == want, "min pooling of some of " + std::to_string(c.channels) + " channels");
}

void Checks::means(std::size_t channels, std::size_t outputs) {
    const std::size_t steps = 2, images = 3, pixels = 5, words = (channels + 63) / 64, wide = (outputs + 7) / 8 * 8;
    std::vector<std::uint64_t> bits = random_bits(steps * images * pixels, channels, 13);
    std::vector<std::int32_t> weights(channels * wide);
    std::vector<std::int64_t> bias(outputs);
    std::vector<float> y(images * outputs);
    for (std::size_t i = 0; i < weights.size(); ++i) weights[i] = static_cast<std::int32_t>(i * 7919 % 65535) - 32767;
    for (std::size_t o = 0; o < outputs; ++o) bias[o] = static_cast<std::int64_t>(o) * 1000 - 2500;
    for_packed(&k)->maps->means(bits.data(), y.data(), steps, images, pixels, {weights.data(), bias.data(), 0.25, channels, outputs}, 2);
    bool good = true;
    for (std::size_t n = 0; n < images; ++n)
        for (std::size_t o = 0; o < outputs; ++o) {
            std::int64_t sum = 10 * bias[o];
            for (std::size_t t = 0; t < steps; ++t)
                for (std::size_t p = 0; p < pixels; ++p)
                    for (std::size_t c = 0; c < channels; ++c)
                        if (bits[((t * images + n) * pixels + p) * words + c / 64] >> c % 64 & 1) sum += weights[c * wide + o];
            good = good && y[n * outputs + o] == static_cast<float>(static_cast<double>(sum) / 4 / 10);
        }
    must(good, "linear layer over means of " + std::to_string(channels) + " channels");
}

template <class T>
void Checks::circuit(Column type, std::size_t rows, std::size_t columns) {
    const std::size_t chunks = (columns + 63) / 64, tables = 70, groups = 3, size = 19;
    std::mt19937_64 random(6);
    std::vector<T> x(rows * columns), thresholds(64 * chunks);
    std::vector<std::int32_t> first(chunks), inputs(6 * tables);
    std::vector<std::uint64_t> entries(tables);
    for (std::vector<T>* some : {&x, &thresholds})
        for (T& v : *some) v = static_cast<T>(1 + random() % 250);
    for (std::size_t chunk = 0; chunk < chunks; ++chunk) first[chunk] = static_cast<std::int32_t>(64 * chunk);
    for (std::size_t i = 0; i < inputs.size(); ++i) {
        std::size_t read = random() % (columns + i / 6);
        inputs[i] = static_cast<std::int32_t>(read < columns ? read : 64 * chunks + read - columns);
    }
    for (auto& e : entries) e = random();
    for (std::size_t t = 1; t < tables; t += 2) std::copy_n(&inputs[6 * t - 6], 2, &inputs[6 * t]);  // as those before
    std::vector<std::int32_t> places(tables);
    std::iota(places.begin(), places.end(), 0);
    std::vector<std::int64_t> counts(rows * groups), best(rows);
    Circuit c{type, columns, chunks, tables, groups, size, first.data(), thresholds.data(), inputs.data(), entries.data(),
              places.data()};
    for_packed(&k)->logic->run(c, x.data(), counts.data(), nullptr, rows, 2);
    for_packed(&k)->logic->run(c, x.data(), nullptr, best.data(), rows, 2);
    bool good = true;
    for (std::size_t r = 0; r < rows; ++r) {
        std::vector<std::int64_t> on(64 * chunks), found(groups);
        for (std::size_t i = 0; i < columns; ++i) on[i] = x[r * columns + i] >= thresholds[i];
        for (std::size_t t = 0; t < tables; ++t) {
            std::int64_t address = 0;
            for (int i = 0; i < 6; ++i) address |= on[inputs[6 * t + i]] << i;
            on.push_back(entries[t] >> address & 1);
        }
        for (std::size_t i = 0; i < groups * size; ++i) found[i / size] += on[on.size() - groups * size + i];
        for (std::size_t g = 0; g < groups; ++g) good = good && counts[r * groups + g] == found[g];
        good = good && best[r] == std::max_element(found.begin(), found.end()) - found.begin();
    }
    must(good, "circuit of " + std::to_string(columns) + " columns, " + std::to_string(rows) + " rows");
}

void Checks::packed_spikes(std::size_t pixels, std::size_t channels, bool soft, bool scaled) {
    const std::size_t steps = 3, n = pixels * channels, words = (channels + 63) / 64, stride = n + 5;
    std::vector<float> x = eighths((steps - 1) * stride + n, 12), scale(channels, 2), shift(channels, 0.25f);
    std::vector<std::uint64_t> found(steps * pixels * words, 7), want(found.size());
    for (std::size_t i = 0; i < n; ++i) {
        double v = 0;
        for (std::size_t t = 0; t < steps; ++t) {
            double h = 0.5 * v + (scaled ? 2 * x[t * stride + i] + 0.25 : x[t * stride + i]);
            if (h >= 1) want[(t * pixels + i / channels) * words + i % channels / 64] |= std::uint64_t{1} << i % channels % 64;
            v = h < 1 ? h : soft ? h - 1 : 0;
        }
    }
    const SpikingNeuron neuron = {scaled ? scale.data() : nullptr, scaled ? shift.data() : nullptr, 0.5f, 1, 1, soft};
    for_packed(&k)->maps->spikes(x.data(), stride, found.data(), steps, pixels, channels, neuron, 2);
    must(found == want, "packed spikes of " + std::to_string(channels) + " channels");
}

// Sums of eighths are exact in any order.
void Checks::floats(const Convolution& c, const MaxWindow& w) {
    std::size_t inputs = c.kernel[0] * c.kernel[1] * c.channels, blocks = (c.outputs + 63) / 64;
    std::vector<float> x = eighths(c.batch * c.height * c.width * c.channels, 21), all = eighths(inputs * c.outputs, 22);
    std::vector<float> weights(blocks * inputs * 64), shift = eighths(c.outputs, 23), lower(c.outputs, -1), upper(c.outputs, 2);
    for (std::size_t o = 0; o < c.outputs; ++o)
        for (std::size_t i = 0; i < inputs; ++i) weights[(o / 64 * inputs + i) * 64 + o % 64] = all[o * inputs + i];
    std::size_t rows = c.out_height(), columns = c.out_width();
    std::vector<float> sums(c.batch * rows * columns * c.outputs);
    for (std::size_t p = 0; p < c.batch * rows * columns; ++p)
        for (std::size_t o = 0; o < c.outputs; ++o)
            for (std::size_t i = 0; i < inputs; ++i) {
                std::size_t tap = i / c.channels, image = p / columns / rows;
                std::size_t y = p / columns % rows * c.stride[0] + tap / c.kernel[1] * c.dilation[0] - c.padding[0];
                std::size_t k = p % columns * c.stride[1] + tap % c.kernel[1] * c.dilation[1] - c.padding[1];
                if (y < c.height && k < c.width)
                    sums[p * c.outputs + o] += x[((image * c.height + y) * c.width + k) * c.channels + i % c.channels] * all[o * inputs + i];
            }
    bool pooled = w.kernel[0];
    std::size_t high = pooled ? w.extent(rows, 0) : rows, wide = pooled ? w.extent(columns, 1) : columns;
    std::size_t words = (c.outputs + 63) / 64;
    std::vector<float> want(c.batch * high * wide * c.outputs, -INFINITY), y(want.size()), alone(want.size());
    std::vector<std::uint64_t> bits(c.batch * high * wide * words);
    bool good = true;
    for (std::size_t p = 0; p < c.batch * high * wide; ++p)
        for (std::size_t o = 0; o < c.outputs; ++o) {
            float& most = want[p * c.outputs + o];
            for (std::size_t i = 0; i < (pooled ? w.kernel[0] * w.kernel[1] : 1); ++i) {
                std::size_t r = pooled ? p / wide % high * w.stride[0] + i / w.kernel[1] - w.padding[0] : p / wide % high;
                std::size_t k = pooled ? p % wide * w.stride[1] + i % w.kernel[1] - w.padding[1] : p % wide;
                if (r < rows && k < columns)
                    most = std::fmax(most, sums[((p / wide / high * rows + r) * columns + k) * c.outputs + o] + shift[o]);
            }
        }
    const FloatKernels& kernels = *for_packed(&k)->floats;
    if (c.dilation[1] == 1) {  // in integers of eighths, those of inputs beyond 4 clipped
        std::size_t across = c.kernel[1] * c.channels, pairs = (across + 1) / 2;
        std::vector<std::int16_t> values(blocks * c.kernel[0] * pairs * 128);
        std::vector<float> unit(blocks * 64, 1.0f / 64), rounded(sums.size()), scaled = x;
        for (std::size_t o = 0; o < c.outputs; ++o)
            for (std::size_t i = 0; i < inputs; ++i)
                values[((o / 64 * c.kernel[0] + i / across) * pairs + i % across / 2) * 128 + o % 64 * 2 + i % across % 2] =
                    static_cast<std::int16_t>(std::lround(all[o * inputs + i] * 8));
        for (std::size_t i = 0; i < scaled.size(); i += 7) scaled[i] = i % 2 ? 4.0f : -4.0f;
        std::vector<float> given = scaled;
        for (std::size_t i = 0; i < scaled.size(); i += 7) given[i] *= 3;
        Epilogue plain = {nullptr, nullptr, nullptr, rounded.data(), nullptr, nullptr, nullptr};
        FloatImages images = {given.data(), c.height * c.width * c.channels, c.width * c.channels, c.channels, 1};
        kernels.rounded(c, images, {values.data(), unit.data(), 8, 32}, {}, plain, 2);
        bool close = true;
        for (std::size_t p = 0; p < c.batch * rows * columns; ++p)
            for (std::size_t o = 0; o < c.outputs; ++o) {
                double exact = 0;
                for (std::size_t i = 0; i < inputs; ++i) {
                    std::size_t tap = i / c.channels, image = p / columns / rows;
                    std::size_t y = p / columns % rows * c.stride[0] + tap / c.kernel[1] * c.dilation[0] - c.padding[0];
                    std::size_t k = p % columns * c.stride[1] + tap % c.kernel[1] - c.padding[1];
                    if (y < c.height && k < c.width)
                        exact += double{scaled[((image * c.height + y) * c.width + k) * c.channels + i % c.channels]} * all[o * inputs + i];
                }
                close = close && rounded[p * c.outputs + o] == exact;
            }
        must(close, "convolution in integers of " + std::to_string(c.channels) + " to " + std::to_string(c.outputs));
    }
    Epilogue e = {nullptr, shift.data(), nullptr, y.data(), lower.data(), upper.data(), bits.data()};
    kernels.convolution(c, {x.data(), c.height * c.width * c.channels, c.width * c.channels, c.channels, 1}, weights.data(), w, e, 2);
    for (std::size_t i = 0; i < want.size(); ++i)
        good = good && y[i] == want[i] && (bits[i / c.outputs * words + i % c.outputs / 64] >> i % c.outputs % 64 & 1) == (-1 <= want[i] && want[i] <= 2);
    // channels in planes, and only bits
    std::vector<float> planes(x.size());
    std::size_t area = c.height * c.width;
    for (std::size_t i = 0; i < x.size(); ++i) planes[i / c.channels / area * area * c.channels + i % c.channels * area + i / c.channels % area] = x[i];
    std::vector<std::uint64_t> again(bits.size());
    e.y = nullptr, e.bits = again.data();
    kernels.convolution(c, {planes.data(), area * c.channels, c.width, 1, area}, weights.data(), w, e, 2);
    must(good && again == bits, "float convolution of " + std::to_string(c.channels) + " to " + std::to_string(c.outputs));

    const Convolution windows = {c.batch, rows, columns, c.outputs, c.outputs, {std::min<std::size_t>(2, rows), 1}, {1, 2}, {0, 0}, {1, 1}, 1};
    std::vector<float> means(windows.pixels() * c.outputs);
    kernels.average(sums.data(), means.data(), windows, 2);
    good = true;
    for (std::size_t p = 0; p < windows.pixels(); ++p)
        for (std::size_t o = 0; o < c.outputs; ++o) {
            std::size_t wide_out = windows.out_width(), image = p / wide_out / windows.out_height();
            std::size_t at = (image * rows + p / wide_out % windows.out_height()) * columns + p % wide_out * 2;
            float total = sums[at * c.outputs + o] + (windows.kernel[0] > 1 ? sums[(at + columns) * c.outputs + o] : 0);
            good = good && means[p * c.outputs + o] == total / static_cast<float>(windows.kernel[0]);
        }
    must(good, "means of " + std::to_string(c.outputs) + " channels");
    if (!pooled) return;
    const Convolution maxima = {c.batch, rows, columns, c.outputs, c.outputs, {w.kernel[0], w.kernel[1]}, {w.stride[0], w.stride[1]}, {w.padding[0], w.padding[1]}, {1, 1}, 1};
    e = {nullptr, shift.data(), nullptr, alone.data(), nullptr, nullptr, nullptr};
    kernels.maximum(sums.data(), maxima, e, 2);
    must(alone == want, "maxima of " + std::to_string(c.outputs) + " channels");
}

// Few rows of a linear layer, by the columns of its weights.
void Checks::columns(std::size_t rows, std::size_t inputs, std::size_t outputs) {
    const Convolution c = {1, 1, rows, inputs, outputs, {1, 1}, {1, 1}, {0, 0}, {1, 1}, 1};
    std::vector<float> all = eighths(inputs * outputs, 24), columns((outputs + 63) / 64 * inputs * 64), y(rows * outputs);
    for (std::size_t o = 0; o < outputs; ++o)
        for (std::size_t i = 0; i < inputs; ++i) columns[(o / 64 * inputs + i) * 64 + o % 64] = all[o * inputs + i];
    std::vector<std::uint64_t> bits = random_bits(rows, inputs, 25);
    Tables t = {TableKind::float32, nullptr, nullptr, nullptr, {}, columns.data()};
    for_packed(&k)->tables->forward(t, bits.data(), c, {nullptr, nullptr, nullptr, y.data(), nullptr, nullptr, nullptr}, 2);
    bool good = true;
    for (std::size_t r = 0; r < rows; ++r)
        for (std::size_t o = 0; o < outputs; ++o) {
            float want = 0;
            for (std::size_t i = 0; i < inputs; ++i)
                want += bits[r * ((inputs + 63) / 64) + i / 64] >> i % 64 & 1 ? all[o * inputs + i] : 0;
            good = good && y[r * outputs + o] == want;
        }
    must(good, "columns of " + std::to_string(inputs) + " inputs, " + std::to_string(outputs) + " outputs");
}

// The formulas of src/htaf/core/kernels/neuron/reference.py.
void Checks::neurons(const Format& f, Fire fire, std::size_t n, bool soft, bool carried) {
    const std::size_t steps = 4, stride = n + 3;
    const bool smooth = fire == Fire::htaf || fire == Fire::scaled_sigmoid;
    const Neuron neuron = {fire, {2, 5}, 1, 0.5f, 1, 0.75f, soft, !smooth && carried, smooth && carried};
    auto wide = [](const std::vector<float>& v) { return std::vector<double>(v.begin(), v.end()); };
    std::vector<float> v0 = eighths(n, 13), gv = eighths(n, 14), v(n, -7), gv0(n, -7);
    Tensor x(f, wide(eighths((steps - 1) * stride + n, 15))), gs(f, wide(eighths(steps * n, 16)));
    Tensor s(f, steps * n), gx(f, steps * n);
    k.neurons->forward(neuron, f.type, x.data(), stride, carried ? v0.data() : nullptr, s.data(), carried ? v.data() : nullptr,
                     steps, n, 2);
    k.neurons->backward(neuron, f.type, gs.data(), carried ? gv.data() : nullptr, x.data(), stride,
                      carried ? v0.data() : nullptr, gx.data(), carried ? gv0.data() : nullptr, steps, n, 2);
    Worst worst;
    auto see = [&](double found, double want, std::size_t i) { worst.see(std::fabs(found - want) / (1 + std::fabs(want)), i); };
    for (std::size_t i = 0; i < n; ++i) {
        double h[steps], r[steps], now = carried ? v0[i] : 0;
        auto at = [&](double u) {
            if (smooth) return value_of(fire == Fire::htaf ? Smooth::htaf : Smooth::scaled_sigmoid, u, neuron.parameters);
            Value step = {u >= 0 ? 1.0 : 0.0, 0, {}};
            switch (fire) {
                case Fire::step_htaf: step.dx = htaf_of(u, neuron.parameters).dx; break;
                case Fire::step_sigmoid: step.dx = sigmoid_of(u, neuron.parameters).dx; break;
                case Fire::step_rectangular: step.dx = slope_of(Slope::rectangular, u, 2); break;
                case Fire::step_atan: step.dx = slope_of(Slope::atan, u, 2); break;
                case Fire::step_approx_sign: step.dx = slope_of(Slope::approx_sign, u, 2); break;
                default: break;
            }
            return step;
        };
        for (std::size_t t = 0; t < steps; ++t) {
            h[t] = 0.5 * now + x[t * stride + i];
            r[t] = at(h[t] - 0.75).y;
            see(s[t * n + i], r[t], i);
            now = soft ? h[t] - 0.75 * r[t] : h[t] - r[t] * h[t];
        }
        if (carried) see(v[i], now, i);
        double back = carried ? gv[i] : 0;
        for (std::size_t t = steps; t-- > 0;) {
            double g = gs[t * n + i] - (neuron.attached ? back * (soft ? 0.75 : h[t]) : 0);
            double gh = g * at(h[t] - 0.75).dx + (soft ? back : back * (1 - r[t]));
            see(gx[t * n + i], gh, i);
            back = 0.5 * gh;
        }
        if (carried) see(gv0[i], back, i);
    }
    char what[99];
    std::snprintf(what, sizeof what, "neurons %d %s [%zu, %zu]%s", static_cast<int>(fire), f.name, steps, n, soft ? " soft" : "");
    report(what, worst.error, f.bytes == 4 ? 1e-5 : unit(f, 1), worst.at);
    must(s.whole() && gx.whole(), what + std::string(" writes past the end"));
}

void Checks::everything() {
    for (std::size_t rows : {1, 9, 511, 513, 1100})
        for (std::size_t columns : {3, 64, 70}) {
            circuit<std::uint8_t>(Column::uint8, rows, columns);
            circuit<std::int32_t>(Column::int32, rows, columns);
        }
    for (std::size_t channels : {1, 7, 63, 64, 70, 200}) {
        for (std::size_t pixels : {1, 5, 90}) maps(pixels, channels);
        pools({2, 7, 9, channels, channels, {3, 2}, {2, 1}, {1, 1}, {1, 2}, 1});
        for (bool soft : {false, true})
            for (bool scaled : {false, true}) packed_spikes(9, channels, soft, scaled);
        for (std::size_t outputs : {1, 10, 17}) means(channels, outputs);
    }
    for (MaxWindow w : {MaxWindow{}, {{3, 2}, {2, 1}, {1, 1}}}) {
        floats({2, 9, 11, 3, 70, {3, 5}, {2, 1}, {1, 2}, {1, 1}, 1}, w);
        floats({1, 5, 7, 4, 64, {2, 2}, {1, 1}, {0, 0}, {2, 3}, 1}, w);
        floats({1, 4, 20, 130, 9, {1, 1}, {1, 1}, {0, 0}, {1, 1}, 1}, w);
    }
    for (std::size_t rows : {1, 3}) {
        columns(rows, 9, 1);
        columns(rows, 130, 150);
        columns(rows, 300, 1000);
    }
    for (bool bipolar : {false, true}) {
        binary({2, 5, 7, 64, 64, {3, 3}, {1, 1}, {1, 1}, {1, 1}, 1}, bipolar);
        binary({1, 8, 9, 70, 130, {3, 2}, {2, 1}, {2, 3}, {1, 2}, 1}, bipolar);
        binary({1, 6, 5, 99, 30, {3, 3}, {1, 1}, {1, 1}, {1, 1}, 3}, bipolar);
        binary({1, 1, 5, 2500, 9, {1, 1}, {1, 1}, {0, 0}, {1, 1}, 1}, bipolar);
    }
    for (std::size_t planes : {1, 2, 7}) {
        integers({2, 5, 7, 64, 64, {3, 3}, {1, 1}, {1, 1}, {1, 1}, 1}, planes);
        integers({1, 8, 9, 70, 130, {3, 2}, {2, 1}, {2, 3}, {1, 2}, 1}, planes);
        integers({1, 1, 5, 1037, 9, {1, 1}, {1, 1}, {0, 0}, {1, 1}, 1}, planes);
    }
    integers({1, 6, 5, 99, 30, {3, 3}, {1, 1}, {1, 1}, {1, 1}, 3}, 1);
    for (Convolution c : {Convolution{1, 9, 7, 70, 67, {3, 2}, {1, 2}, {1, 1}, {1, 2}, 1}, {1, 1, 3, 90, 5, {1, 1}, {1, 1}, {0, 0}, {1, 1}, 1},
                          {2, 6, 20, 195, 9, {2, 3}, {2, 1}, {0, 3}, {1, 1}, 3}}) {
        tables<float>(TableKind::float32, c);
        tables<std::uint16_t>(TableKind::int16, c);
        tables<std::uint8_t>(TableKind::int8, c);
        tables<std::uint8_t>(TableKind::fours, c);
    }
    for (std::size_t bytes : {0, 1, 15, 16, 63, 64, 65, 200, 5000})
        for (auto [m, n] : {std::pair<std::size_t, std::size_t>{1, 1}, {4, 3}, {5, 2}, {33, 10}, {70, 65}, {0, 3}})
            counts(m, n, bytes);
    for (std::size_t rows : {0, 1, 7, 8, 63, 65, 511, 513, 1100})
        for (std::size_t columns : {0, 1, 7, 8, 9, 64, 100}) turned(rows, columns);

    const std::pair<double, double> pairs[] = {{0.1, 220}, {0.5, 44}, {1, 22}, {2, 11}, {3, 7.3}, {5, 4.4}};
    for (const Format& f : formats) {
        for (auto [p0, p1] : pairs) accuracy(Smooth::htaf, f, p0, p1, 1, 0);
        accuracy(Smooth::htaf, f, 2, 11, 2, -1);
        for (double beta : {0.5, 4.0, 22.0}) accuracy(Smooth::scaled_sigmoid, f, beta, 0, 1, 0);
        accuracy(Smooth::scaled_sigmoid, f, 4, 0, 2, -1);
        for (Smooth kind : {Smooth::htaf, Smooth::scaled_sigmoid}) {
            for (std::size_t n : {1, 7, 63, 65, 1000, 40001}) layout(kind, f, {1, 1, n});
            // long rows, then columns, then one channel in pieces
            for (Shape s : {Shape{3, 2, 1000}, {2, 3, 129}, {1, 2, 20001}, {1, 5, 1}, {33, 7, 1}, {70, 65, 1},
                            {600, 63, 1}, {5, 3, 9}, {2, 4, 127}, {7, 1, 200}, {40, 1, 1}})
                layout(kind, f, s);
            special(kind, f);
        }
        slopes(f);
        for (Smooth kind : {Smooth::htaf, Smooth::scaled_sigmoid}) levels(kind, f);
        if (f.bytes == 2) rounding(f);
        steps(f);
        for (int fire = 0; fire < 8; ++fire)
            for (std::size_t n : {1, 7, 65, 1000})
                for (bool soft : {false, true}) neurons(f, Fire(fire), n, soft, n % 2);
        for (std::size_t rows : {1, 3})
            for (std::size_t columns : {1, 7, 8, 31, 32, 33, 63, 64, 65, 1000, 20001}) bits(f, rows, columns);
        bits(f, 700, 24);
        bits(f, 5, 0);
    }
}

}  // namespace

// Loops of a team of threads: every part once, also within a loop; what one throws comes out, and the next ones run.
static int check_teams() {
    int failures = 0;
    for (int threads : {1, 2, 3, 7}) {
        constexpr std::size_t most = 1000, times = 20;
        std::vector<std::size_t> seen(most), expected(most);
        std::atomic<std::size_t> within{0};
        std::size_t caught = 0;
        together(threads, [&] {
            for (std::size_t n : {std::size_t{0}, std::size_t{1}, std::size_t{2}, std::size_t{5}, most})
                for (std::size_t k = 0; k < times; ++k) {
                    parallel(n, threads, [&](std::size_t begin, std::size_t end) {
                        for (std::size_t i = begin; i < end; ++i) ++seen[i];
                    });
                    for (std::size_t i = 0; i < n; ++i) ++expected[i];
                    try {
                        parallel(9, threads, [](std::size_t, std::size_t end) {
                            if (end == 9) throw std::runtime_error("the last part");
                        });
                    } catch (const std::runtime_error&) {
                        ++caught;
                    }
                }
            parallel(3, threads, [&](std::size_t begin, std::size_t end) {
                for (std::size_t i = begin; i < end; ++i)
                    parallel(4, threads, [&](std::size_t first, std::size_t last) { within += last - first; });
            });
        });
        bool thrown = false;
        try {
            together(threads, [] { throw std::runtime_error("between loops"); });
        } catch (const std::runtime_error&) {
            thrown = true;
        }
        bool right = seen == expected && caught == 5 * times && within == 12 && thrown;
        std::printf("%s loops of %d threads\n", right ? "ok  " : "FAIL", threads);
        failures += !right;
    }
    return failures;
}

int main(int count, char** arguments) {
    std::vector<std::string> wanted(arguments + 1, arguments + count), ran;
    int failures = check_teams();
    for (const Kernels* k : available()) {
        Checks checks{*k};
        checks.everything();
        failures += checks.failures;
        ran.push_back(k->name);
    }
    std::printf("%d failures; ran:", failures);
    for (const std::string& name : ran) std::printf(" %s", name.c_str());
    std::printf("\n");
    if (!wanted.empty() && wanted != ran) {
        std::printf("FAIL: expected other instruction sets to run\n");
        return 1;
    }
    return failures ? 1 : 0;
}
