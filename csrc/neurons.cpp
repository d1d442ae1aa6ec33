// Spiking neurons over a whole sequence: the membrane potential stays in registers, and one pass over x makes the spikes.
// The formulas: src/htaf/core/kernels/neuron/reference.py. Compiled once per instruction set: see CMakeLists.txt.
#include "activations.hpp"
#include "loops.hpp"

namespace htaf::HTAF_NAMESPACE {
namespace {

struct ExactStep {
    HTAF_INLINE f32 operator()(f32 u) const { return select(u >= 0.0f, one(1.0f), select(u < 0.0f, reg{}, u)); }
};
struct NoSlope {  // a NaN stays one, as in the gradient of the step
    HTAF_INLINE f32 operator()(f32 g, f32 u) const { return select(u != u, g, reg{}); }
};

// A function of activations.hpp with the parameters of a neuron.
template <template <class, bool> class F>
F<reg, false> with_parameters(const double* given, float scale) {
    constexpr int count = F<reg, false>::constants;
    double p[F<reg, false>::parameters];
    for (int i = 0; i < F<reg, false>::parameters; ++i) p[i] = static_cast<float>(given[i]);
    float values[count];
    F<reg, false>::derive(p, scale, 0, values);
    reg c[count];
    for (int k = 0; k < count; ++k) c[k] = one(values[k]);
    return F<reg, false>(c);
}

// float32 values beside values of type T, in the order in which those are loaded.
template <class T>
f32 load_beside(const float* p, size_t n) {
    if (std::is_same_v<T, float> && n == lanes) return load(p);
    float some[lanes] = {};
    for (size_t i = 0; i < n; ++i) some[place<T>(i)] = p[i];
    return load(some);
}
template <class T>
void store_beside(float* p, f32 v, size_t n) {
    float some[lanes];
    store(some, v);
    for (size_t i = 0; i < n; ++i) p[i] = some[place<T>(i)];
}
template <class T>
HTAF_INLINE f32 load_up_to(const T* p, size_t n) {
    return n == lanes ? load(p) : load_some(p, n);
}
template <class T>
HTAF_INLINE void store_up_to(T* p, f32 v, size_t n) {
    if (n == lanes) store(p, v);
    else store_some(p, v, n);
}

// One step: the potential v and the input x become the charged potential h and what resets it, r. Copies, not a reference
// to the neuron: what is stored cannot change them, so they stay in registers.
template <class Fire>
struct Dynamics {
    bool soft, exact_reset;
    reg leak, gain, threshold;
    Fire fire;

    Dynamics(const Neuron& k, Fire fire)
        : soft(k.soft), exact_reset(k.exact_reset), leak(one(k.leak)), gain(one(k.gain)), threshold(one(k.threshold)),
          fire(fire) {}
    HTAF_INLINE f32 charge(f32 v, f32 x) const { return v * leak + x * gain; }
    HTAF_INLINE f32 above(f32 h) const { return h - threshold; }
    HTAF_INLINE f32 resetting(f32 u, f32 spike) const { return exact_reset ? ExactStep()(u) : spike; }
    HTAF_INLINE f32 reset(f32 h, f32 r) const { return soft ? h - r * threshold : h - r * h; }
};

template <class T, class Fire>
void run_neurons(const Neuron& k, Fire fire, const T* x, size_t stride, const float* v0, T* s, float* v, size_t steps,
                 size_t n, size_t begin, size_t end) {
    const Dynamics<Fire> step(k, fire);
    for (size_t i = begin; i < end; i += lanes) {
        size_t m = std::min<size_t>(lanes, end - i);
        f32 now = v0 ? load_beside<T>(v0 + i, m) : all(0);
        for (size_t t = 0; t < steps; ++t) {
            f32 h = step.charge(now, load_up_to(x + t * stride + i, m));
            f32 u = step.above(h), spike = fire(u);
            store_up_to(s + t * n + i, spike, m);
            now = step.reset(h, step.resetting(u, spike));
        }
        if (v) store_beside<T>(v + i, now, m);
    }
}

// The potentials are computed again, which is quicker than to read them. With g_s and g_v the gradients of spike and
// potential after step t: of h, g_h = slope(u) (g_s - attached g_v dv/dr) + g_v dv/dh; then g_x = gain g_h, g_v = leak g_h.
template <class T, class Fire, class Slope>
void run_neurons_back(const Neuron& k, Fire fire, Slope slope, const T* gs, const float* gv, const T* x, size_t stride,
                      const float* v0, T* gx, float* gv0, size_t steps, size_t n, size_t begin, size_t end) {
    const Dynamics<Fire> step(k, fire);
    const bool soft = k.soft, attached = k.attached;
    Buffer<float> kept(2 * steps * lanes);  // h and r of every step
    for (size_t i = begin; i < end; i += lanes) {
        size_t m = std::min<size_t>(lanes, end - i);
        f32 now = v0 ? load_beside<T>(v0 + i, m) : all(0);
        for (size_t t = 0; t < steps; ++t) {
            f32 h = step.charge(now, load_up_to(x + t * stride + i, m));
            store(&kept[2 * t * lanes], h);
            if (t + 1 == steps && !gv) break;
            f32 u = step.above(h), r = step.exact_reset ? ExactStep()(u) : fire(u);
            store(&kept[(2 * t + 1) * lanes], r);
            now = step.reset(h, r);
        }
        f32 back = gv ? load_beside<T>(gv + i, m) : all(0);
        for (size_t t = steps; t-- > 0;) {
            f32 h = load(&kept[2 * t * lanes]), g = load_up_to(gs + t * n + i, m);
            f32 through = back;
            if (!soft && (t + 1 < steps || gv)) through = back - back * load(&kept[(2 * t + 1) * lanes]);
            if (attached) g = soft ? g - back * step.threshold : g - back * h;
            f32 gh = slope(g, step.above(h)) + through;
            store_up_to(gx + t * n + i, gh * step.gain, m);
            back = gh * step.leak;
        }
        if (gv0) store_beside<T>(gv0 + i, back, m);
    }
}

void neuron_forward(const Neuron& k, Type type, const void* x, size_t stride, const float* v0, void* s, float* v,
                    size_t steps, size_t n, int threads) {
    with_type(type, [&]<class T>(T*) {
        auto run = [&](auto fire) {
            parallel(blocks(n, block), threads, [&](size_t begin, size_t end) {
                run_neurons(k, fire, static_cast<const T*>(x), stride, v0, static_cast<T*>(s), v, steps, n,
                            begin * block, std::min(n, end * block));
            });
        };
        switch (k.fire) {
            case Fire::htaf: return run(with_parameters<HtafForward>(k.parameters, 1));
            case Fire::scaled_sigmoid: return run(with_parameters<SigmoidForward>(k.parameters, 1));
            default: return run(ExactStep());
        }
    });
}

void neuron_backward(const Neuron& k, Type type, const void* gs, const float* gv, const void* x, size_t stride,
                     const float* v0, void* gx, float* gv0, size_t steps, size_t n, int threads) {
    with_type(type, [&]<class T>(T*) {
        auto run = [&](auto fire, auto slope) {
            parallel(blocks(n, block), threads, [&](size_t begin, size_t end) {
                run_neurons_back(k, fire, slope, static_cast<const T*>(gs), gv, static_cast<const T*>(x), stride, v0,
                                 static_cast<T*>(gx), gv0, steps, n, begin * block, std::min(n, end * block));
            });
        };
        const double* p = k.parameters;
        float first = static_cast<float>(p[0]);
        switch (k.fire) {
            case Fire::htaf: return run(with_parameters<HtafForward>(p, 1), with_parameters<HtafBackward>(p, 1));
            case Fire::scaled_sigmoid:
                return run(with_parameters<SigmoidForward>(p, 1), with_parameters<SigmoidBackward>(p, 1));
            case Fire::step: return run(ExactStep(), NoSlope());
            case Fire::step_htaf: return run(ExactStep(), with_parameters<HtafBackward>(p, k.scale));
            case Fire::step_sigmoid: return run(ExactStep(), with_parameters<SigmoidBackward>(p, k.scale));
            case Fire::step_rectangular: return run(ExactStep(), RectangularSlope(first, k.scale));
            case Fire::step_atan: return run(ExactStep(), AtanSlope(first, k.scale));
            case Fire::step_approx_sign: return run(ExactStep(), ApproxSignSlope(first, k.scale));
        }
    });
}

}  // namespace

extern const NeuronKernels neurons;
const NeuronKernels neurons = {neuron_forward, neuron_backward};

}  // namespace htaf::HTAF_NAMESPACE
