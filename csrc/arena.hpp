// Memory that a thread keeps from one layer to the next. Included once per instruction set.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <tuple>

namespace htaf::HTAF_NAMESPACE {
namespace {

using std::size_t;

constexpr size_t kept_bytes = size_t{16} << 20;  // what an arena may keep

constexpr size_t up(size_t n, size_t to) { return (n + to - 1) / to * to; }

// Memory that starts at a cache line and that its thread keeps for the next layer, or it would be cleared by the system
// each time. malloc rather than std::vector, whose code could be shared between instruction sets.
class Arena {
   public:
    Arena() = default;
    Arena(const Arena&) = delete;
    ~Arena() { std::free(base_); }
    char* at_least(size_t bytes) {
        if (bytes > size_) {
            std::free(base_);
            size_ = 0;
            base_ = std::malloc(bytes + 64);
            if (!base_) throw std::bad_alloc();
            size_ = bytes;
        }
        return reinterpret_cast<char*>(up(reinterpret_cast<std::uintptr_t>(base_), 64));
    }
    void forget_much() {
        if (size_ <= kept_bytes) return;
        std::free(base_);
        base_ = nullptr, size_ = 0;
    }

   private:
    void* base_ = nullptr;
    size_t size_ = 0;
};

// Arrays one after the other in an arena, each at a cache line.
template <class... V, class... N>
std::tuple<V*...> arrays(Arena& arena, N... n) {
    char* next = arena.at_least((up(n * sizeof(V), 64) + ...));
    auto take = [&]<class W>(W*, size_t count) {
        auto first = reinterpret_cast<W*>(next);
        next += up(count * sizeof(W), 64);
        return first;
    };
    return std::tuple<V*...>{take(static_cast<V*>(nullptr), n)...};
}

}  // namespace
}  // namespace htaf::HTAF_NAMESPACE
