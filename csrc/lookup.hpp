// Truth tables of k inputs as multilinear functions of these; src/htaf/core/kernels/lookup/reference.py has the formula.
#pragma once

#include <cstddef>

namespace htaf {

// y[r, n] from x[r, n, i], i < inputs <= 8, and entries[n, 2^inputs].
void lookup(const float* x, const float* entries, float* y, std::size_t rows, std::size_t tables, int inputs,
            int threads);
// gx as x, and what is added to ge as entries, which no two threads write.
void lookup_backward(const float* g, const float* x, const float* entries, float* gx, float* ge, std::size_t rows,
                     std::size_t tables, int inputs, int threads);

}  // namespace htaf
