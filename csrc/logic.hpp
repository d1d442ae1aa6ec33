// Truth tables: as multilinear functions, which are trained, and of bits, many rows at once.
#pragma once

#include <cstddef>
#include <cstdint>

namespace htaf {

// y[r, n] from x[r, n, i], i < inputs <= 8, and entries[n, 2^inputs]; src/htaf/core/kernels/lookup/reference.py has the formula.
void lookup(const float* x, const float* entries, float* y, std::size_t rows, std::size_t tables, int inputs,
            int threads);
// gx as x, and what is added to ge as entries, which no two threads write.
void lookup_backward(const float* g, const float* x, const float* entries, float* gx, float* ge, std::size_t rows,
                     std::size_t tables, int inputs, int threads);

// A circuit: thresholds of columns, tables of six inputs, and how many tables of each group give 1.
// The planes that tables read: 64 a chunk of columns, in the order of the chunks, then one a table. A chunk is 64 columns from
// `first`, and what they are compared with; of the last columns fewer than 64, and the thresholds are there all the same.
enum class Column : int { uint8 = 0, int32 = 1 };
struct Circuit {
    Column type;
    std::size_t columns, chunks, tables, groups, size;  // of a group; the last groups x size tables are counted
    const std::int32_t* first;                          // [chunks]
    const void* thresholds;                             // [chunks, 64], of the columns' type; the least one: not read
    const std::int32_t* inputs;                         // [tables, 6]: planes that are there; quick where neighbours share two
    const std::uint64_t* entries;                       // [tables]: bit a is the entry at address a
    const std::int32_t* places;                         // [tables]: of the plane that it makes, behind the thresholds
};

struct LogicKernels {
    // counts [rows, groups] of x [rows, columns]; a plane is 1 where x >= threshold. best [rows]: the first of the greatest
    // counts. One of both may be none.
    void (*run)(const Circuit&, const void* x, std::int64_t* counts, std::int64_t* best, std::size_t rows, int threads);
};

}  // namespace htaf
