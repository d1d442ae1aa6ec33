// Gated MLPs, above all those whose gates are 0 or 1, for one token or a few. The formula: src/htaf/kernels/gated_mlp/reference.py.
#pragma once

#include "kernels.hpp"

namespace htaf {

// What the pre-activations of the gate go through; `step` is 1 where they reach the threshold.
enum class GateActivation : int { step = 0, silu = 1, gelu_tanh = 2 };

struct GatedMLP {
    Type type;                // of gate, up and down: float32 or bfloat16
    const void *gate, *up;    // [neurons, inputs]
    const void* down;         // [neurons, outputs]: a row is a column of the layer's weight
    const float* threshold;   // [neurons]
    std::size_t inputs, neurons, outputs;
    // gate in 8 bits, or null: gate = step rounded + e, |e| = rest and |gate| = norm in each row. A row whose sum lies nearer
    // to the threshold than both can be wrong by is summed again from `gate`, so the bits are the same.
    const std::int8_t* rounded;
    const float *step, *rest, *norm;
    GateActivation activation;
};

struct GatedKernels {
    // open [tokens, neurons] = gate x >= threshold; y [tokens, outputs] = down^T (open * (up x)); x [tokens, inputs].
    // dense: also rows of closed gates are read, and count 0. Activations other than the step: y = down^T (f(gate x) * up x),
    // and nothing is written to open.
    void (*run)(const GatedMLP&, const float* x, float* y, std::uint8_t* open, std::size_t tokens, bool dense, int threads);
};

}  // namespace htaf
