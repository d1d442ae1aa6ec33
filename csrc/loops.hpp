// What the loops over tensors share. Included once per instruction set; see CMakeLists.txt.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <new>

#include "kernels.hpp"
#include "parallel.hpp"
#include "simd.hpp"

namespace htaf::HTAF_NAMESPACE {
namespace {

using std::size_t;

constexpr size_t block = 16384;  // values of one piece of work: the order of a sum does not depend on the threads

inline size_t blocks(size_t n, size_t size) { return (n + size - 1) / size; }

// The first n < lanes values at p, the rest 0.
template <class T>
f32 load_some(const T* p, size_t n) {
    T some[lanes] = {};
    std::copy_n(p, n, some);
    return load(some);
}
template <class T>
void store_some(T* p, f32 v, size_t n) {
    T some[lanes];
    store(some, v);
    std::copy_n(some, n, p);
}

template <class T, class F>
void map(const T* x, T* y, size_t n, F f) {  // f by value: what is stored cannot change it, so it stays in registers
    size_t i = 0;
    for (; i + lanes <= n; i += lanes) store(y + i, f(load(x + i)));
    if (i < n) store_some(y + i, f(load_some(x + i, n - i)), n - i);
}
template <class T, class F>
void map(const T* g, const T* x, T* y, size_t n, F f) {
    size_t i = 0;
    for (; i + lanes <= n; i += lanes) store(y + i, f(load(g + i), load(x + i)));
    if (i < n) store_some(y + i, f(load_some(g + i, n - i), load_some(x + i, n - i)), n - i);
}
template <class T, class F>
void map_parallel(const T* x, T* y, size_t n, int threads, const F& f) {
    parallel(blocks(n, block), threads, [&](size_t begin, size_t end) {
        map(x + begin * block, y + begin * block, std::min(n, end * block) - begin * block, f);
    });
}

// malloc rather than std::vector, whose code could be shared with a processor that lacks this file's instructions.
template <class V>
class Buffer {
   public:
    explicit Buffer(size_t n) : size_(n), first_(static_cast<V*>(std::calloc(n + !n, sizeof(V)))) {
        if (!first_) throw std::bad_alloc();
    }
    Buffer(const Buffer&) = delete;
    ~Buffer() { std::free(first_); }
    V& operator[](size_t i) { return first_[i]; }
    const V& operator[](size_t i) const { return first_[i]; }
    void clear() { std::fill_n(first_, size_, V{}); }

   private:
    size_t size_;
    V* first_;
};

// A column's place in an array that is read as whole f32, each in the order in which values of type T are loaded.
template <class T>
size_t place(size_t column) {
    return column / lanes * lanes + slot<T>(column % lanes);
}

template <class F>
void with_type(Type type, F f) {
    switch (type) {
        case Type::float32: return f(static_cast<float*>(nullptr));
        case Type::bfloat16: return f(static_cast<bfloat16*>(nullptr));
        case Type::float16: return f(static_cast<float16*>(nullptr));
    }
}

}  // namespace
}  // namespace htaf::HTAF_NAMESPACE
