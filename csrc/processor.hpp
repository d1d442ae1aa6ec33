// Which kernels this processor can run.
#pragma once

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

}  // namespace htaf
