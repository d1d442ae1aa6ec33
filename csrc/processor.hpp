// Which kernels this processor can run.
#pragma once

#include <algorithm>
#include <atomic>
#include <string>
#include <vector>
#if defined(__x86_64__)
#include <cpuid.h>

#include "amx.hpp"
#endif
#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "kernels.hpp"

namespace htaf {

#if defined(__x86_64__)
// Whether layers over packed bits run by AVX-512: they need instructions that its first processors lack.
inline bool complete_avx512() {
    static const bool complete = [] {
        __builtin_cpu_init();
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
               __builtin_cpu_supports("avx512vpopcntdq") && __builtin_cpu_supports("avx512bitalg") &&
               __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vbmi2") &&
               __builtin_cpu_supports("avx512vnni");
    }();
    return complete;
}

// AVX-512, but for the layers that have tiles: of the processor, or emulated.
inline const Kernels* with_tiles(bool emulated) {
    auto made = [](const char* name, const TiledKernels& tiled) {
        Kernels kernels = avx512;
        kernels.name = name, kernels.binary = &tiled.binary, kernels.integers = &tiled.integers;
        return kernels;
    };
    static const Kernels sets[] = {made("amx", for_amx::amx[0]), made("amx-emulated", for_amx::amx[1])};
    return &sets[emulated];
}

// Whether two kernels give the same sums of a layer that fills some of its tiles and not others.
inline bool agree(const IntegerKernels& a, const IntegerKernels& b) {
    constexpr std::size_t pixels = 40, channels = 150, outputs = 70;
    std::uint64_t random = 1;
    auto next = [&] { return (random = random * 6364136223846793005u + 1442695040888963407u) >> 32; };
    std::vector<std::uint64_t> bits(pixels * 3);
    for (auto& word : bits) word = next() << 32 | next();
    std::vector<std::uint32_t> weights(2 * 38 * 64);
    for (auto& word : weights) word = static_cast<std::uint32_t>(next());
    std::vector<float> sums(2 * pixels * outputs);
    for (int i : {0, 1})
        (i ? b : a).forward({1, 1, pixels, channels, outputs, {1, 1}, {1, 1}, {0, 0}, {1, 1}, 1}, {weights.data(), 1},
                            reinterpret_cast<const std::uint8_t*>(bits.data()),
                            {nullptr, nullptr, nullptr, sums.data() + i * pixels * outputs, nullptr, nullptr, nullptr}, 1);
    return std::equal(sums.begin(), sums.begin() + pixels * outputs, sums.begin() + pixels * outputs);
}
#endif

// Whether this process may use AMX's tiles of bytes, in words. Linux gives a process their registers when it asks once, for
// all its threads and those that it forks.
inline const char* amx() {
    static const char* const answer = [] {
#if defined(__x86_64__) && defined(__linux__)
        unsigned a, b, c, d;
        constexpr unsigned tiles_of_bytes = 3u << 24, system_saves = 1u << 27;
        bool there = __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & tiles_of_bytes) == tiles_of_bytes && complete_avx512();
        // palette 1: 8 tiles of 16 rows of 64 bytes
        there = there && __get_cpuid_count(0x1d, 1, &a, &b, &c, &d) && b == (8u << 16 | 64) && (c & 0xffff) == 16;
        if (!there) return "no";
        constexpr unsigned registers = 3u << 17;  // the tiles and their shapes
        constexpr long request = 0x1023, number = 18;
        bool saved = __get_cpuid(1, &a, &b, &c, &d) && (c & system_saves);
        if (saved) asm volatile("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
        if (!saved || (a & registers) != registers || syscall(SYS_arch_prctl, request, number) != 0)
            return "no: the system does not permit it";
        return agree(for_amx::amx[0].integers, for_amx::amx[1].integers) ? "yes" : "no: it gives other sums than expected";
#else
        return "no";
#endif
    }();
    return answer;
}

// Best first; the last runs everywhere.
inline std::vector<const Kernels*> available() {
    std::vector<const Kernels*> found;
#if defined(__x86_64__)
    if (*amx() == 'y') found.push_back(with_tiles(false));
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

// Whose layers over packed bits run.
inline const Kernels* for_packed(const Kernels* chosen) {
#if defined(__x86_64__)
    if (chosen == &avx512 && !complete_avx512()) return &avx2;
#endif
    return chosen;
}

// The instruction set of that name; null where the processor lacks it. One of them is for tests alone.
inline const Kernels* named(const std::string& name) {
#if defined(__x86_64__)
    if (name == "amx-emulated" && complete_avx512()) return with_tiles(true);
#endif
    for (const Kernels* k : available())
        if (k->name == name) return k;
    return nullptr;
}

// The instruction set in use: the best, unless another was asked for.
inline std::atomic<const Kernels*>& chosen() {
    static std::atomic<const Kernels*> kernels = available().front();
    return kernels;
}

}  // namespace htaf
