// Steps and bits over tensors, and the table of an instruction set. Compiled once for each: see CMakeLists.txt.
#include <atomic>

#include "bit_counts.hpp"
#include "loops.hpp"

namespace htaf::HTAF_NAMESPACE {
namespace {

void heaviside(Type type, const void* x, void* y, size_t n, float below, int threads) {
    with_type(type, [&]<class T>(T*) {
        map_parallel(static_cast<const T*>(x), static_cast<T*>(y), n, threads, [below](f32 v) {
            f32 negative = select(v < 0.0f, one(below), v);  // a NaN stays
            return select(v >= 0.0f, one(1.0f), negative);
        });
    });
}

// Bit j of the result is set where value j is >= 0; 32 values (8 where registers hold 4).
constexpr int group = HTAF_LANES == 4 ? 8 : 32;
template <class T>
std::uint32_t signs(const T* p, reg_i32& bad) {
    std::uint32_t word = 0;
    for (int j = 0; j < group; j += HTAF_LANES) {
        reg v = widen(p + j);
        bad |= v != v;
#if defined(__AVX512F__)
        std::uint32_t some = _mm512_cmp_ps_mask((__m512)v, _mm512_setzero_ps(), _CMP_GE_OQ);
#elif defined(__AVX__)
        std::uint32_t some = _mm256_movemask_ps(_mm256_cmp_ps((__m256)v, _mm256_setzero_ps(), _CMP_GE_OQ));
#else
        static_assert(HTAF_LANES == 4);
        reg_i32 m = (v >= 0.0f) & reg_i32{1, 2, 4, 8};
        std::uint32_t some = m[0] | m[1] | m[2] | m[3];
#endif
        word |= some << j;
    }
    return word;
}

// n values, n a multiple of 8 or the end of a row; returns whether none is NaN.
template <class T>
bool pack_row(const T* x, std::uint8_t* bits, size_t n) {
    reg_i32 bad{};
    size_t i = 0;
    for (; i + group <= n; i += group) {
        std::uint32_t word = signs(x + i, bad);
        std::memcpy(bits + i / 8, &word, group / 8);  // little-endian, as every machine this runs on
    }
    if (i < n) {
        T some[std::max(group, lanes)];
        for (int j = 0; j < group; j += lanes) store(some + j, all(-1.0f));
        std::copy_n(x + i, n - i, some);
        std::uint32_t word = signs(some, bad);
        std::memcpy(bits + i / 8, &word, blocks(n - i, 8));
    }
    bool good = true;
    for (int j = 0; j < HTAF_LANES; ++j) good = good && !bad[j];
    return good;
}

bool pack(Type type, const void* x, std::uint8_t* bits, size_t rows, size_t columns, int threads) {
    std::atomic<bool> good = true;
    if (columns % 8 == 0) {  // rows without padding are one long row
        columns *= rows;
        rows = columns ? 1 : 0;
    }
    size_t pieces = blocks(columns, block), bytes = blocks(columns, 8);
    with_type(type, [&]<class T>(T*) {
        parallel(rows * pieces, threads, [&](size_t begin, size_t end) {
            for (size_t i = begin; i < end; ++i) {
                size_t row = i / pieces, from = i % pieces * block;
                if (!pack_row(static_cast<const T*>(x) + row * columns + from, bits + row * bytes + from / 8,
                              std::min(block, columns - from)))
                    good = false;
            }
        });
    });
    return good;
}

}  // namespace

extern const SmoothKernels smooth;
extern const NeuronKernels neurons;
extern const BinaryKernels binary;
extern const TableKernels tables;
extern const IntegerKernels integers;
extern const MapKernels maps;
extern const FloatKernels floats;
extern const LogicKernels logic;

}  // namespace htaf::HTAF_NAMESPACE

namespace htaf {
using namespace HTAF_NAMESPACE;
const Kernels HTAF_KERNELS = {HTAF_NAME, &smooth, &neurons,  &binary, &tables,   &integers, &maps,
                              &floats,   &logic,  heaviside, pack,    transpose, count_common};
}  // namespace htaf
