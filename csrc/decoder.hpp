// A decoder of the Llama family, token by token: attention with grouped heads and rotary positions, gated MLPs whose gates
// are bits or floats. What it computes: src/htaf/language/packed.py.
#pragma once

#include "gated.hpp"

namespace htaf {

struct DecoderLayer {
    const float *before_attention, *before_mlp;  // weights of the norms [size]
    const void* inputs;                          // rows of queries, keys and values [(heads + 2 groups) width, size]
    const float* inputs_bias;                    // of them, or null
    const void* output;                          // [size, heads width]
    const float *query_norm, *key_norm;          // [width], or null
    std::size_t window;                          // positions that are seen, or 0: all
    GatedMLP mlp;
};

struct Decoder {
    Type type;  // of all matrices
    std::size_t size, heads, groups, width, rotated, vocabulary, context;
    float epsilon, scale;            // of norms; of queries times keys
    const void *embedding, *head;    // [vocabulary, size]
    const float* norm;               // [size]
    const float *cosines, *sines;    // [context, rotated / 2]
    std::size_t layers;
    const DecoderLayer* layer;
};

// keys, values [layers, groups, capacity, width] of the positions that were read.
struct DecoderCache {
    float *keys, *values;
    std::size_t capacity;
};

struct DecoderKernels {
    // Reads tokens at positions from `position` on. logits [count, vocabulary], or of the last token alone; opened: how many
    // gates opened in each layer is added to it, or null.
    void (*read)(const Decoder&, DecoderCache, const std::int64_t* tokens, std::size_t count, std::size_t position,
                 float* logits, bool all, std::uint64_t* opened, bool dense, int threads);
};

}  // namespace htaf
