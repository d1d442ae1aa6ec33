// The activations over tensors and their gradients. Compiled once per instruction set: see CMakeLists.txt.
#include <cfloat>
#include <cmath>

#include "activations.hpp"
#include "loops.hpp"

namespace htaf::HTAF_NAMESPACE {
namespace {

constexpr size_t short_row = 128, shortest_row = 16;  // inner lengths that are folded into the channels
constexpr size_t flush = 32;                          // rows summed in float32 before they go into double

inline size_t padded(size_t n) { return blocks(n, lanes) * lanes; }

inline double sum(f32 v) {
    double total = 0;
    for (int i = 0; i < lanes; ++i) total += values(v)[i];
    return total;
}

template <class T>
constexpr bool half = std::is_same_v<T, bfloat16>;

// The constants of every channel, each channel `repeat` times: [constant][place], padded to whole f32.
template <template <class, bool> class F, class T>
class Constants {
   public:
    Constants(size_t channels, size_t repeat, const double* const* parameters, float scale, float shift)
        : stride_(padded(channels * repeat)), values_(count * stride_) {
        for (size_t channel = 0; channel < channels; ++channel) {
            float one[count];
            double p[F<reg, false>::parameters];
            for (int i = 0; i < F<reg, false>::parameters; ++i) {
                float value = static_cast<float>(parameters[i][channel]);
                p[i] = value > 0 && value <= FLT_MAX ? value : NAN;  // the formulas hold for these only
            }
            F<reg, half<T>>::derive(p, scale, shift, one);
            size_t last = channel + 1 == channels ? stride_ : (channel + 1) * repeat;
            for (size_t column = channel * repeat; column < last; ++column)
                for (int k = 0; k < count; ++k) values_[k * stride_ + place<T>(column)] = one[k];
        }
    }
    F<reg, half<T>> of_channel(size_t channel) const {
        reg c[count];
        for (int k = 0; k < count; ++k) c[k] = one(values_[k * stride_ + place<T>(channel)]);
        return F<reg, half<T>>(c);
    }
    F<f32, half<T>> at(size_t column) const {
        f32 c[count];
        for (int k = 0; k < count; ++k) c[k] = load(&values_[k * stride_ + column]);
        return F<f32, half<T>>(c);
    }

   private:
    static constexpr int count = F<reg, false>::constants;
    size_t stride_;
    Buffer<float> values_;
};

// Where the values of one channel lie: in rows of their own, or in the columns of a matrix [outer, columns], whose
// constants, one set a column, must be used often enough to be worth their making.
bool in_columns(Shape s) { return s.channels > 1 && (s.inner < shortest_row || (s.inner < short_row && s.outer >= 8)); }

template <template <class, bool> class F, class T>
void forward_as(const T* x, T* y, Shape s, const double* const* parameters, float scale, float shift, int threads) {
    if (!s.size()) return;
    if (in_columns(s)) {
        size_t columns = s.channels * s.inner, rows = std::max<size_t>(1, block / columns);
        Constants<F, T> constants(s.channels, s.inner, parameters, scale, shift);
        parallel(blocks(s.outer, rows), threads, [&](size_t begin, size_t end) {
            for (size_t r = begin * rows; r < std::min(s.outer, end * rows); ++r) {
                const T* from = x + r * columns;
                T* to = y + r * columns;
                size_t j = 0;
                for (; j + lanes <= columns; j += lanes) store(to + j, constants.at(j)(load(from + j)));
                if (j < columns) store_some(to + j, constants.at(j)(load_some(from + j, columns - j)), columns - j);
            }
        });
        return;
    }
    Constants<F, T> constants(s.channels, 1, parameters, scale, shift);
    size_t pieces = blocks(s.inner, block);
    parallel(s.outer * s.channels * pieces, threads, [&](size_t begin, size_t end) {
        for (size_t i = begin; i < end;) {  // one row, or what of it is ours
            size_t row = i / pieces, last = std::min(end, (row + 1) * pieces);
            size_t from = (i - row * pieces) * block, to = std::min(s.inner, (last - row * pieces) * block);
            map(x + row * s.inner + from, y + row * s.inner + from, to - from, constants.of_channel(row % s.channels));
            i = last;
        }
    });
}

// Rows r in [begin, end) of a matrix; part[i * channels + c] collects the sums of channel c.
template <bool Sums, template <class, bool> class F, class T>
void backward_rows(const T* g, const T* x, T* gx, Shape s, size_t begin, size_t end, const Constants<F, T>& constants,
                   double* part) {
    constexpr int P = F<f32, false>::parameters;
    size_t columns = s.channels * s.inner, stride = padded(columns);
    Buffer<float> some(Sums ? P * stride : 0);
    for (size_t r = begin; r < end; ++r) {
        size_t start = r * columns;
        for (size_t j = 0; j < columns; j += lanes) {
            size_t n = std::min<size_t>(lanes, columns - j);
            bool whole = n == lanes;
            f32 vg = whole ? load(g + start + j) : load_some(g + start + j, n);
            f32 vx = whole ? load(x + start + j) : load_some(x + start + j, n);
            f32 v;
            if constexpr (Sums) {
                f32 terms[P];
                for (int i = 0; i < P; ++i) terms[i] = load(&some[i * stride + j]);
                v = constants.at(j)(vg, vx, terms);
                for (int i = 0; i < P; ++i) store(&some[i * stride + j], terms[i]);
            } else {
                v = constants.at(j)(vg, vx);
            }
            if (whole) store(gx + start + j, v);
            else store_some(gx + start + j, v, n);
        }
        if (Sums && ((r + 1 - begin) % flush == 0 || r + 1 == end)) {
            for (int i = 0; i < P; ++i)
                for (size_t j = 0; j < columns; ++j) part[i * s.channels + j / s.inner] += some[i * stride + place<T>(j)];
            some.clear();
        }
    }
}

// Where sums are asked for: the work is cut the same way whatever the number of threads, and the sums of the cuts
// are added in their order, so the result has the same bits.
template <bool Sums, template <class, bool> class F, class T>
void backward_with(const T* g, const T* x, T* gx, Shape s, const double* const* parameters, float scale,
                   double* const* sums, int threads) {
    constexpr int P = F<reg, false>::parameters;
    bool columns = in_columns(s);
    size_t width = s.channels * s.inner, pieces = blocks(s.inner, block);
    size_t rows = std::max({size_t{1}, block / width, Sums ? std::max<size_t>(8, blocks(s.outer, 64)) : 0});
    size_t groups = columns ? blocks(s.outer, rows) : s.outer * pieces;
    Constants<F, T> constants(s.channels, columns ? s.inner : 1, parameters, scale, 0);
    Buffer<double> parts(Sums ? groups * P * s.channels : 0);
    if (columns) {
        parallel(groups, threads, [&](size_t begin, size_t end) {
            for (size_t i = begin; i < end; ++i)
                backward_rows<Sums>(g, x, gx, s, i * rows, std::min(s.outer, (i + 1) * rows), constants,
                                    Sums ? &parts[i * P * s.channels] : nullptr);
        });
    } else {
        parallel(s.outer * s.channels * pieces, threads, [&](size_t begin, size_t end) {
            for (size_t i = begin; i < end; ++i) {
                size_t row = i / pieces, piece = i % pieces, channel = row % s.channels;
                size_t n = std::min(block, s.inner - piece * block), start = row * s.inner + piece * block;
                F<reg, half<T>> f = constants.of_channel(channel);
                if constexpr (!Sums) {
                    map(g + start, x + start, gx + start, n, f);
                } else {
                    double* part = &parts[(row / s.channels * pieces + piece) * P * s.channels + channel];
                    for (size_t from = start; from < start + n;) {
                        f32 terms[P] = {};
                        size_t to = std::min(start + n, from + flush * lanes);
                        map(g + from, x + from, gx + from, to - from,
                            [&](f32 vg, f32 vx) { return f(vg, vx, terms); });
                        for (int k = 0; k < P; ++k) part[k * s.channels] += sum(terms[k]);
                        from = to;
                    }
                }
            }
        });
    }
    if constexpr (Sums) {
        for (size_t c = 0; c < s.channels; ++c) {
            double p[P];
            for (int i = 0; i < P; ++i) p[i] = static_cast<float>(parameters[i][c]);
            for (int i = 0; i < P; ++i) {
                double total = p[i] > 0 ? 0 : NAN;
                for (size_t group = 0; group < groups; ++group) total += parts[(group * P + i) * s.channels + c];
                sums[i][c] = F<reg, false>::finish(i, p, total);
            }
        }
    }
}

template <template <class, bool> class F, class T>
void backward_as(const T* g, const T* x, T* gx, Shape s, const double* const* parameters, float scale,
                 double* const* sums, int threads) {
    if (!s.size()) {
        for (int i = 0; sums && i < F<reg, false>::parameters; ++i) std::fill_n(sums[i], s.channels, 0.0);
    } else if (sums) {
        backward_with<true, F>(g, x, gx, s, parameters, scale, sums, threads);
    } else {
        backward_with<false, F>(g, x, gx, s, parameters, scale, sums, threads);
    }
}

void forward(Smooth kind, Type type, const void* x, void* y, Shape s, const double* const* parameters, float scale,
             float shift, int threads) {
    with_type(type, [&]<class T>(T*) {
        auto from = static_cast<const T*>(x);
        auto to = static_cast<T*>(y);
        switch (kind) {
            case Smooth::htaf: return forward_as<HtafForward>(from, to, s, parameters, scale, shift, threads);
            case Smooth::scaled_sigmoid: return forward_as<SigmoidForward>(from, to, s, parameters, scale, shift, threads);
        }
    });
}

void backward(Smooth kind, Type type, const void* g, const void* x, void* gx, Shape s, const double* const* parameters,
              float scale, double* const* sums, int threads) {
    with_type(type, [&]<class T>(T*) {
        auto grad = static_cast<const T*>(g), from = static_cast<const T*>(x);
        auto to = static_cast<T*>(gx);
        switch (kind) {
            case Smooth::htaf: return backward_as<HtafBackward>(grad, from, to, s, parameters, scale, sums, threads);
            case Smooth::scaled_sigmoid:
                return backward_as<SigmoidBackward>(grad, from, to, s, parameters, scale, sums, threads);
        }
    });
}

// The sum of f at x - t_k; its scale and shift are a level's share.
template <class F>
struct Levels {
    F f;
    const float* thresholds;
    int levels;

    HTAF_INLINE f32 operator()(f32 x) const {
        f32 total = f(x - thresholds[0]);
        for (int k = 1; k < levels; ++k) total = total + f(x - thresholds[k]);
        return total;
    }
    HTAF_INLINE f32 operator()(f32 g, f32 x) const {
        f32 total = f(g, x - thresholds[0]);
        for (int k = 1; k < levels; ++k) total = total + f(g, x - thresholds[k]);
        return total;
    }
};

// `run` on the formula of a kind, F<reg> of one scalar parameter set, as a sum over levels.
template <template <class, bool> class F, class T, class Run>
void with_levels(const double* const* parameters, const float* thresholds, int levels, float scale, float shift, Run run) {
    Constants<F, T> constants(1, 1, parameters, scale / static_cast<float>(levels), shift / static_cast<float>(levels));
    run(Levels<F<reg, half<T>>>{constants.of_channel(0), thresholds, levels});
}

void forward_levels(Smooth kind, Type type, const void* x, void* y, size_t n, const double* const* parameters,
                    const float* thresholds, int levels, float scale, float shift, int threads) {
    with_type(type, [&]<class T>(T*) {
        auto run = [&](auto f) { map_parallel(static_cast<const T*>(x), static_cast<T*>(y), n, threads, f); };
        if (kind == Smooth::htaf) with_levels<HtafForward, T>(parameters, thresholds, levels, scale, shift, run);
        else with_levels<SigmoidForward, T>(parameters, thresholds, levels, scale, shift, run);
    });
}

void backward_levels(Smooth kind, Type type, const void* g, const void* x, void* gx, size_t n,
                     const double* const* parameters, const float* thresholds, int levels, float scale, int threads) {
    with_type(type, [&]<class T>(T*) {
        auto run = [&](auto f) {
            parallel(blocks(n, block), threads, [&](size_t begin, size_t end) {
                size_t start = begin * block;
                map(static_cast<const T*>(g) + start, static_cast<const T*>(x) + start, static_cast<T*>(gx) + start,
                    std::min(n, end * block) - start, f);
            });
        };
        if (kind == Smooth::htaf) with_levels<HtafBackward, T>(parameters, thresholds, levels, scale, 0, run);
        else with_levels<SigmoidBackward, T>(parameters, thresholds, levels, scale, 0, run);
    });
}

void step_levels(Type type, const void* x, void* y, size_t n, const float* thresholds, int levels, float scale,
                 float shift, int threads) {
    with_type(type, [&]<class T>(T*) {
        map_parallel(static_cast<const T*>(x), static_cast<T*>(y), n, threads, [=](f32 v) {
            f32 count = select(v >= 0.0f, one(0.0f), select(v < 0.0f, one(0.0f), v));  // a NaN stays
            for (int k = 0; k < levels; ++k) count = count + select(v >= thresholds[k], one(1.0f), one(0.0f));
            return (count * scale + shift) / static_cast<float>(levels);
        });
    });
}

void slope(Slope kind, Type type, const void* g, const void* x, void* gx, size_t n, float parameter, float scale,
           int threads) {
    with_type(type, [&]<class T>(T*) {
        auto run = [&](auto f) {
            parallel(blocks(n, block), threads, [&](size_t begin, size_t end) {
                size_t start = begin * block;
                map(static_cast<const T*>(g) + start, static_cast<const T*>(x) + start, static_cast<T*>(gx) + start,
                    std::min(n, end * block) - start, f);
            });
        };
        switch (kind) {
            case Slope::rectangular: return run(RectangularSlope(parameter, scale));
            case Slope::atan: return run(AtanSlope(parameter, scale));
            case Slope::approx_sign: return run(ApproxSignSlope(parameter, scale));
        }
    });
}

}  // namespace

extern const SmoothKernels smooth;
const SmoothKernels smooth = {forward, backward, forward_levels, backward_levels, step_levels, slope};

}  // namespace htaf::HTAF_NAMESPACE
