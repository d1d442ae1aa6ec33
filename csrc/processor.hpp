// Which kernels this processor can run.
#pragma once

#include <atomic>
#include <vector>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "kernels.hpp"

namespace htaf {

// Best first; the last runs everywhere.
inline std::vector<const Kernels*> available() {
    std::vector<const Kernels*> found;
#if defined(__x86_64__)
    __builtin_cpu_init();
    unsigned a, b, c, d;
    bool f16c = __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);  // Clang 14's __builtin_cpu_supports does not know it
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl"))
        found.push_back(&avx512);
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && f16c) found.push_back(&avx2);
#elif defined(__aarch64__)
    found.push_back(&neon);
#endif
    found.push_back(&portable);
    return found;
}

// Whose layers over packed bits run: those for AVX-512 need instructions that its first processors lack.
inline const Kernels* for_packed(const Kernels* chosen) {
#if defined(__x86_64__)
    static const bool complete = __builtin_cpu_supports("avx512vpopcntdq") && __builtin_cpu_supports("avx512bitalg") &&
                                 __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vbmi2") &&
                                 __builtin_cpu_supports("avx512vnni");
    if (chosen == &avx512 && !complete) return &avx2;
#endif
    return chosen;
}

// The instruction set in use: the best, unless another was asked for.
inline std::atomic<const Kernels*>& chosen() {
    static std::atomic<const Kernels*> kernels = available().front();
    return kernels;
}

}  // namespace htaf
