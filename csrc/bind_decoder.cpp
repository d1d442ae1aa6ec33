// Addresses of dense tensors; see src/htaf/kernels/decoder.py, which checks and keeps them.
#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <tuple>
#include <vector>

#include "bind_packed.hpp"
#include "decoder.hpp"
#include "processor.hpp"

using namespace htaf;

namespace {

struct Held {
    Decoder decoder;
    std::vector<DecoderLayer> layers;
};

// before_attention, before_mlp, inputs, inputs_bias, output, query_norm, key_norm; gate, up, down, threshold, rounded, step,
// rest, norm; window, neurons, activation
using Layer = std::tuple<std::array<std::uintptr_t, 7>, std::array<std::uintptr_t, 8>, std::array<std::size_t, 3>>;

}  // namespace

void bind_decoder(nb::module_& m) {
    nb::class_<Held>(m, "Decoder", nb::is_weak_referenceable())
        // sizes: size, heads, groups, width, rotated, vocabulary, context; whole: embedding, head, norm, cosines, sines
        .def("__init__", [](Held* self, int type, const std::array<std::size_t, 7>& sizes, float epsilon, float scale,
                            const std::array<std::uintptr_t, 5>& whole, const std::vector<Layer>& layers) {
            auto held = new (self) Held{};
            for (const auto& [own, mlp, numbers] : layers)
                held->layers.push_back(
                    {at<const float>(own[0]), at<const float>(own[1]), at<const void>(own[2]), at<const float>(own[3]),
                     at<const void>(own[4]), at<const float>(own[5]), at<const float>(own[6]), numbers[0],
                     {Type(type), at<const void>(mlp[0]), at<const void>(mlp[1]), at<const void>(mlp[2]),
                      at<const float>(mlp[3]), sizes[0], numbers[1], sizes[0], at<const std::int8_t>(mlp[4]),
                      at<const float>(mlp[5]), at<const float>(mlp[6]), at<const float>(mlp[7]),
                      GateActivation(static_cast<int>(numbers[2]))}});
            held->decoder = {Type(type), sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], sizes[5], sizes[6], epsilon, scale,
                             at<const void>(whole[0]), at<const void>(whole[1]), at<const float>(whole[2]),
                             at<const float>(whole[3]), at<const float>(whole[4]), held->layers.size(), held->layers.data()};
        })
        .def("read", [](const Held& self, std::uintptr_t keys, std::uintptr_t values, std::size_t capacity, std::uintptr_t tokens, std::size_t count,
                        std::size_t position, std::uintptr_t logits, bool all, std::uintptr_t opened, bool dense, int threads) {
            nb::gil_scoped_release unlocked;
            chosen().load()->decoder->read(self.decoder, {at<float>(keys), at<float>(values), capacity}, at<const std::int64_t>(tokens),
                                           count, position, at<float>(logits), all, at<std::uint64_t>(opened), dense, threads);
        });
}
