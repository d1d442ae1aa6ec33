// Bits become bytes; 16 pixels by 16 words of 4 of them are one tile, the words' weights of 16 outputs another, and one
// instruction adds all their products to a tile of sums. The layout of integers.hpp is already that of tiles of weights.
// Compiled once, with the flags of AVX-512 and AMX.
#include "amx.hpp"

#include <new>
#include <stdexcept>

#include "arena.hpp"
#include "integer_inputs.hpp"
#include "tiles.hpp"

namespace htaf {
namespace for_avx512 {
extern const BinaryKernels binary;
extern const IntegerKernels integers;
}  // namespace for_avx512

namespace for_amx {
namespace {

constexpr size_t side = 16;                // rows of a tile, and words of 4 bytes in one
constexpr size_t few_pixels = 4;           // up to so many, reading the weights takes the time: AVX-512 does as well
constexpr size_t many_words = 1 << 16;     // of a sum: beyond, the inputs of a tile of pixels would be too large
constexpr size_t windows_bytes = 1 << 19;  // of the inputs of some tiles, in the second-level cache beside the weights
constexpr size_t row_bytes = block * 4;    // from one word of the weights, and of sums, to the next

// What LDTILECFG reads: bytes of a row, and rows, of tiles 0 to 7. Tiles 0 to 3 are sums: of the pixels in tiles 4 or 5 and the
// outputs in tiles 6 or 7.
struct alignas(64) Shapes {
    uint8_t palette = 1, start = 0, zeros[14] = {};
    std::uint16_t bytes[16] = {};
    uint8_t rows[16] = {};

    explicit Shapes(size_t words) {  // of a pixel, at most 16
        for (int t = 0; t < 8; ++t) {
            bytes[t] = static_cast<std::uint16_t>(t == 4 || t == 5 ? 4 * words : 64);
            rows[t] = static_cast<uint8_t>(t > 5 ? words : side);
        }
    }
};
static_assert(sizeof(Shapes) == 64);

// The processor's, of the thread that made it, until it goes.
class NativeTiles {
   public:
    explicit NativeTiles(const Shapes& shapes) {
        written(&shapes);
        _tile_loadconfig(&shapes);
    }
    NativeTiles(const NativeTiles&) = delete;
    ~NativeTiles() { _tile_release(); }

    template <int T>
    HTAF_INLINE void zero() {
        if constexpr (T == 0) _tile_zero(0);
        if constexpr (T == 1) _tile_zero(1);
        if constexpr (T == 2) _tile_zero(2);
        if constexpr (T == 3) _tile_zero(3);
    }
    template <int T>
    HTAF_INLINE void load(const void* from, size_t stride) {
        written(from);
        if constexpr (T == 4) _tile_loadd(4, from, stride);
        if constexpr (T == 5) _tile_loadd(5, from, stride);
        if constexpr (T == 6) _tile_loadd(6, from, stride);
        if constexpr (T == 7) _tile_loadd(7, from, stride);
    }
    // tile T += inputs without a sign times weights with one
    template <int T>
    HTAF_INLINE void multiply() {
        if constexpr (T == 0) _tile_dpbusd(0, 4, 6);
        if constexpr (T == 1) _tile_dpbusd(1, 4, 7);
        if constexpr (T == 2) _tile_dpbusd(2, 5, 6);
        if constexpr (T == 3) _tile_dpbusd(3, 5, 7);
    }
    template <int T>
    HTAF_INLINE void store(void* to, size_t stride) {
        if constexpr (T == 0) _tile_stored(0, to, stride);
        if constexpr (T == 1) _tile_stored(1, to, stride);
        if constexpr (T == 2) _tile_stored(2, to, stride);
        if constexpr (T == 3) _tile_stored(3, to, stride);
    }

   private:
    // GCC's intrinsics that read memory do not tell it so: what was written before must be there.
    static HTAF_INLINE void written(const void* at) { asm volatile("" ::"r"(at) : "memory"); }
};

// The same in memory, as volume 2 of Intel's Software Developer's Manual describes LDTILECFG, TILELOADD, TDPBUSD and TILESTORED.
class PlainTiles {
   public:
    explicit PlainTiles(const Shapes& shapes) : s_(shapes) {
        bool right = s_.palette == 1 && s_.start == 0;
        for (uint8_t zero : s_.zeros) right = right && !zero;
        for (size_t t = 0; t < 16; ++t)
            right = right && (t < 8 ? s_.rows[t] <= side && s_.bytes[t] <= 64 && !s_.rows[t] == !s_.bytes[t] : !s_.rows[t] && !s_.bytes[t]);
        must(right);
    }
    template <int T>
    void zero() {
        std::memset(tiles_[T], 0, sizeof tiles_[T]);
    }
    template <int T>
    void load(const void* from, size_t stride) {
        zero<T>();
        for (size_t r = 0; r < s_.rows[T]; ++r)
            std::memcpy(tiles_[T][r], static_cast<const uint8_t*>(from) + r * stride, s_.bytes[T]);
    }
    template <int T>
    void multiply() {
        constexpr int inputs = 4 + T / 2, weights = 6 + T % 2;
        must(s_.rows[T] == s_.rows[inputs] && s_.bytes[T] == s_.bytes[weights] && s_.bytes[inputs] == 4 * s_.rows[weights]);
        for (size_t m = 0; m < s_.rows[T]; ++m)
            for (size_t k = 0; k < s_.rows[weights]; ++k)
                for (size_t n = 0; n < s_.bytes[T] / 4u; ++n) {
                    auto sum = read<int32_t>(tiles_[T][m] + 4 * n);
                    for (size_t i = 0; i < 4; ++i)
                        sum += tiles_[inputs][m][4 * k + i] * static_cast<std::int8_t>(tiles_[weights][k][4 * n + i]);
                    std::memcpy(tiles_[T][m] + 4 * n, &sum, 4);
                }
    }
    template <int T>
    void store(void* to, size_t stride) {
        for (size_t r = 0; r < s_.rows[T]; ++r) std::memcpy(static_cast<uint8_t*>(to) + r * stride, tiles_[T][r], s_.bytes[T]);
    }

   private:
    static void must(bool right) {
        if (!right) throw std::logic_error("tiles of shapes that the processor refuses");
    }
    Shapes s_;
    alignas(64) uint8_t tiles_[8][side][64] = {};
};

// The inputs of the sums of a tile of pixels, a row a pixel. Where the last words of a row fill no tile, they stand again at the
// end of 16 words, the others 0, in rows of 64 bytes: these meet the last 16 words of the weights, so that nothing behind the
// weights is read.
struct Windows {
    size_t words, stride;  // an odd number of cache lines: not all rows in the same set of a cache

    explicit Windows(const Job& job) : words(job.runs.count * job.runs.length), stride((blocks(words, side) | 1) * 64) {}

    size_t bytes() const { return down * (stride + 64); }
    size_t rest() const { return words > side ? words % side : 0; }

    void gather(const Job& job, const Tile& tile, uint8_t* to) const {
        for (size_t p = 0; p < tile.size; ++p) {
            uint8_t* row = to + p * stride;
            for (size_t i = 0; i < job.runs.count; ++i, row += job.runs.length * 4)
                copy_bytes(tile.pixels[p] + job.runs.offsets[i], job.runs.length * 4, row);
            if (!rest()) continue;
            uint8_t* last = to + down * stride + p * 64;
            std::memset(last, 0, 64);
            std::memcpy(last + 64 - 4 * rest(), row - 4 * rest(), 4 * rest());
        }
    }

   private:
    static HTAF_INLINE void copy_bytes(const uint8_t* from, size_t n, uint8_t* to) {
        for (; n >= 64; n -= 64, from += 64, to += 64) _mm512_storeu_si512(to, _mm512_loadu_si512(from));
        auto mask = (uint64_t{1} << n) - 1;
        _mm512_mask_storeu_epi8(to, mask, _mm512_maskz_loadu_epi8(mask, from));
    }
};

// counts[p][o] of 16 pixels, or of 32 (`Two`), and 32 outputs.
template <bool Two, class Tiles>
HTAF_INLINE void add_up(Tiles& tiles, const Windows& w, const uint8_t* inputs, const uint32_t* weights, int32_t (*counts)[block]) {
    tiles.template zero<0>(), tiles.template zero<1>();
    if constexpr (Two) tiles.template zero<2>(), tiles.template zero<3>();
    auto step = [&](const uint8_t* from, size_t stride, size_t word) __attribute__((always_inline)) {
        tiles.template load<4>(from, stride);
        tiles.template load<6>(weights + word * block, row_bytes);
        tiles.template load<7>(weights + word * block + side, row_bytes);
        tiles.template multiply<0>(), tiles.template multiply<1>();
        if constexpr (Two) {
            tiles.template load<5>(from + side * stride, stride);
            tiles.template multiply<2>(), tiles.template multiply<3>();
        }
    };
    size_t word = 0;
    do step(inputs + word * 4, w.stride, word);
    while ((word += side) + side <= w.words);
    if (w.rest()) step(inputs + down * w.stride, 64, w.words - side);
    tiles.template store<0>(counts[0], row_bytes), tiles.template store<1>(counts[0] + side, row_bytes);
    if constexpr (Two) tiles.template store<2>(counts[side], row_bytes), tiles.template store<3>(counts[side] + side, row_bytes);
}

// Every part of the pixels, whose inputs stay near, meets all blocks of outputs.
template <class Tiles>
void tiled(const Job& job, int threads) {
    const Windows windows(job);
    size_t all = job.in_group, parts = blocks(job.tiles, std::max<size_t>(1, windows_bytes / windows.bytes()));
    size_t wanted = static_cast<size_t>(std::max(threads, 1));
    while (parts * all % wanted && parts * all < 8 * wanted && parts < job.tiles) ++parts;
    parallel(parts * all, threads, [&](size_t begin, size_t end) {
        static thread_local Arena arena;
        size_t most = blocks(job.tiles, parts), there = parts;  // the part whose inputs are there
        auto [inputs, of] = arrays<uint8_t, Tile>(arena, most * windows.bytes(), most);
        alignas(64) int32_t counts[down][block];
        Tiles tiles(Shapes(std::min(windows.words, side)));
        for (size_t i = begin; i < end; ++i) {
            size_t part = i / all, first = job.tiles * part / parts, n = job.tiles * (part + 1) / parts - first;
            for (size_t t = 0; part != there && t < n; ++t)
                windows.gather(job, *new (of + t) Tile(job, first + t), inputs + t * windows.bytes());
            there = part;
            Block b(job, i % all);
            for (size_t t = 0; t < n; ++t) {
                for (size_t o = 0; o < b.size; o += 2 * side) {
                    auto to = reinterpret_cast<int32_t(*)[block]>(counts[0] + o);
                    if (of[t].size > side) add_up<true>(tiles, windows, inputs + t * windows.bytes(), b.signs + o, to);
                    else add_up<false>(tiles, windows, inputs + t * windows.bytes(), b.signs + o, to);
                }
                finish_counts(job, of[t], b, counts);
            }
        }
        arena.forget_much();
    });
}

bool fits_tiles(const Convolution& c, size_t words) {
    return c.groups == 1 && c.pixels() > few_pixels && words <= many_words / (c.kernel[0] * c.kernel[1]);
}

constexpr Counts none{};

template <class Tiles>
void integers(const Convolution& c, const IntegerWeights& weights, const uint8_t* bits, const Epilogue& e, int threads) {
    size_t words = blocks(c.channels, 4);
    if (!fits_tiles(c, words)) return for_avx512::integers.forward(c, weights, bits, e, threads);
    Widened widened(c, bits, weights.planes, threads);
    Bases bases(c);
    all_tiles<tiled<Tiles>>(c, none, weights.values, 0, words, widened.images(), bases, e, threads);
}

template <class Tiles>
void binary(const Convolution& c, const BinaryWeights& weights, const uint8_t* bits, const Epilogue& e, int threads) {
    size_t words = blocks(c.channels, 4);
    if (!weights.values || !fits_tiles(c, words)) return for_avx512::binary.forward(c, weights, bits, e, threads);
    Widened widened(c, bits, 1, threads);
    Bases bases(c, weights);
    all_tiles<tiled<Tiles>>(c, none, weights.values, weights.bipolar, words, widened.images(), bases, e, threads);
}

uint64_t spin(size_t steps, bool counts_alone) { return for_avx512::binary.spin(steps, counts_alone); }

template <class Tiles>
constexpr TiledKernels on(const char* by, const char* counting) {
    return {{binary<Tiles>, spin, counting}, {integers<Tiles>, by, true}};
}

}  // namespace

constinit const TiledKernels amx[2] = {on<NativeTiles>("tdpbusd of AMX", "vpopcntd, or as bytes by tdpbusd of AMX"),
                                       on<PlainTiles>("emulated tdpbusd", "vpopcntd, or as bytes by emulated tdpbusd")};
}  // namespace for_amx
}  // namespace htaf
