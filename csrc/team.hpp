// One team of threads for many loops.
#pragma once

#include <functional>

namespace htaf {

// Calls work() while up to threads - 1 others wait for its loops: within it, `parallel` (parallel.hpp) hands them the
// parts of a loop in place of starting threads anew. The parts are the same, and so is what they make.
void together(int threads, const std::function<void()>& work);

}  // namespace htaf
