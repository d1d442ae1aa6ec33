// Loops over several threads, in PyTorch's own OpenMP pool where there is one.
#pragma once

#include <cstddef>
#include <functional>

namespace htaf {

// Calls body(begin, end) on `threads` contiguous parts of [0, count); which part a thread gets is fixed, so that a
// backward pass finds in its cache what the forward pass left there.
void parallel(std::size_t count, int threads, const std::function<void(std::size_t, std::size_t)>& body);

}  // namespace htaf
