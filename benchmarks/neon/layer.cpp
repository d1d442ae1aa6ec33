// Runs one layer of the NEON kernels so many times: layer KIND CHANNELS OUTPUTS KERNEL SIZE TIMES. See count.py.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "binary.hpp"
#include "floats.hpp"
#include "integers.hpp"
#include "tables.hpp"

namespace htaf::for_neon {
extern const BinaryKernels binary;
extern const TableKernels tables;
extern const FloatKernels floats;
extern const IntegerKernels integers;
}  // namespace htaf::for_neon
using namespace htaf;

int main(int count, char** arguments) {
    if (count != 7) return 2;
    const char* kind = arguments[1];
    auto number = [&](int i) { return static_cast<std::size_t>(std::atoll(arguments[i])); };
    std::size_t channels = number(2), outputs = number(3), kernel = number(4), size = number(5), times = number(6);
    Convolution c = {1, size, size, channels, outputs, {kernel, kernel}, {1, 1}, {kernel / 2, kernel / 2}, {1, 1}, 1};
    std::size_t taps = kernel * kernel, words = (channels + 63) / 64, blocks = (outputs + 63) / 64;
    std::uint64_t state = 1;
    auto random = [&] { return state = state * 6364136223846793005u + 1442695040888963407u; };
    std::vector<std::uint64_t> bits(size * size * words), found(c.pixels() * blocks);
    for (auto& word : bits) word = random() ^ random() >> 32;
    std::vector<float> lower(outputs, 0), upper(outputs, 1e30f), unit(blocks * 64, 1.0f / 1024);
    Epilogue e = {nullptr, nullptr, nullptr, nullptr, lower.data(), upper.data(), found.data()};
    std::vector<std::uint32_t> signs(blocks * taps * 2 * words * 64);
    for (auto& word : signs) word = static_cast<std::uint32_t>(random() >> 32);
    std::vector<std::int32_t> ones(taps * blocks * 64, static_cast<std::int32_t>(channels / 2)), bias(outputs, 0);
    // what any kind of tables takes; and float and integer weights
    std::vector<float> values(blocks * 64 * taps * ((channels + 31) / 32) * 32 * 2, 0.25f), x(size * size * channels, 0.5f);
    for (std::size_t i = 0; i < times; ++i) {
        if (!std::strcmp(kind, "binary")) {
            for_neon::binary.forward(c, {signs.data(), ones.data(), true}, reinterpret_cast<std::uint8_t*>(bits.data()), e, 1);
        } else if (!std::strcmp(kind, "integers")) {
            IntegerWeights weights = {reinterpret_cast<std::uint32_t*>(values.data()), 1};
            for_neon::integers.forward(c, weights, reinterpret_cast<std::uint8_t*>(bits.data()), e, 1);
        } else if (!std::strcmp(kind, "floats")) {
            FloatImages images = {x.data(), size * size * channels, size * channels, channels, 1};
            for_neon::floats.convolution(c, images, values.data(), {}, e, 1);
        } else {
            TableKind of = !std::strcmp(kind, "float32") ? TableKind::float32 : !std::strcmp(kind, "int16") ? TableKind::int16 : TableKind::int8;
            for_neon::tables.forward({of, values.data(), unit.data(), bias.data()}, bits.data(), c, e, 1);
        }
    }
    std::printf("%llu\n", static_cast<unsigned long long>(found[0] & 1));
}
