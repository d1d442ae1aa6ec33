#include "parallel.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace htaf {
namespace {

// PyTorch loads its OpenMP runtime with global symbols. Linking to another copy would give a second pool of threads whose
// spinning slows both, so the one that is there is looked up; without one, plain threads are started for each call.
struct OpenMP {
    void (*parallel)(void (*)(void*), void*, unsigned, unsigned);
    int (*thread)();
    int (*threads)();
};

template <class F>
bool find(const char* name, F& function) {
    function = reinterpret_cast<F>(dlsym(RTLD_DEFAULT, name));
    return function != nullptr;
}

const OpenMP* openmp() {
    static OpenMP found{};
    static const bool complete = find("GOMP_parallel", found.parallel) && find("omp_get_thread_num", found.thread) &&
                                 find("omp_get_num_threads", found.threads);
    return complete ? &found : nullptr;
}

struct Job {
    std::size_t count;
    const std::function<void(std::size_t, std::size_t)>& body;
    const OpenMP* omp;
    std::exception_ptr failure;  // the first; an exception must not leave a thread
    std::mutex lock;

    void part(std::size_t i, std::size_t n) {
        std::size_t begin = count * i / n, end = count * (i + 1) / n;
        try {
            if (begin < end) body(begin, end);
        } catch (...) {
            std::lock_guard guard(lock);
            if (!failure) failure = std::current_exception();
        }
    }
};

void in_region(void* data) {
    Job& job = *static_cast<Job*>(data);
    job.part(job.omp->thread(), job.omp->threads());
}

}  // namespace

void parallel(std::size_t count, int threads, const std::function<void(std::size_t, std::size_t)>& body) {
    std::size_t n = std::min<std::size_t>(std::max(threads, 1), count);
    if (n <= 1) {
        if (count) body(0, count);
        return;
    }
    Job job{count, body, openmp(), nullptr, {}};
    if (job.omp) {
        job.omp->parallel(in_region, &job, static_cast<unsigned>(n), 0);
    } else {
        std::vector<std::jthread> others;  // joined however this block is left
        others.reserve(n - 1);
        for (std::size_t i = 1; i < n; ++i) others.emplace_back([&job, i, n] { job.part(i, n); });
        job.part(0, n);
    }
    if (job.failure) std::rethrow_exception(job.failure);
}

}  // namespace htaf
