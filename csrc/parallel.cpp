#include "parallel.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "team.hpp"

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

// Returns once `there` holds. The next loop of a plan comes within microseconds, so the thread does not sleep; after
// some of them it lets others have its core.
template <class F>
void wait(const F& there) {
    for (int i = 0; !there(); ++i) {
        if (i >= 4000) {
            std::this_thread::yield();
            continue;
        }
#if defined(__x86_64__)
        __builtin_ia32_pause();
#elif defined(__aarch64__)
        asm volatile("yield");
#endif
    }
}

// Threads that wait for the loops of the first one.
class Team {
   public:
    // By the first thread, as all that follows but `serve`: how many threads there are, itself among them.
    void set_size(std::size_t size) { size_ = size; }
    std::size_t size() const { return size_; }

    void share(Job& job, std::size_t parts) {
        job_ = &job, parts_ = parts;
        left_.store(size_ - 1, std::memory_order_relaxed);
        turn_.fetch_add(1, std::memory_order_release);
        job.part(0, parts);
        wait([&] { return left_.load(std::memory_order_acquire) == 0; });
    }
    void end() {
        job_ = nullptr;
        turn_.fetch_add(1, std::memory_order_release);
    }

    // By thread i > 0: parts i of all loops, until the end.
    void serve(std::size_t i) {
        for (unsigned seen = 0;; ++seen) {
            wait([&] { return turn_.load(std::memory_order_acquire) != seen; });
            if (!job_) return;
            if (i < parts_) job_->part(i, parts_);
            left_.fetch_sub(1, std::memory_order_release);
        }
    }

   private:
    Job* job_ = nullptr;
    std::size_t parts_ = 0, size_ = 1;
    alignas(64) std::atomic<unsigned> turn_{0};
    alignas(64) std::atomic<std::size_t> left_{0};
};

thread_local Team* current = nullptr;  // that this thread is the first of, between two loops

struct Region {
    const std::function<void()>& work;
    const OpenMP* omp;
    Team team;
    std::exception_ptr failure;

    void lead(std::size_t size) {
        team.set_size(size);
        current = &team;
        try {
            work();
        } catch (...) {
            failure = std::current_exception();
        }
        current = nullptr;
        team.end();
    }
};

void in_team(void* data) {
    Region& region = *static_cast<Region*>(data);
    if (int i = region.omp->thread()) region.team.serve(static_cast<std::size_t>(i));
    else region.lead(static_cast<std::size_t>(region.omp->threads()));
}

}  // namespace

void parallel(std::size_t count, int threads, const std::function<void(std::size_t, std::size_t)>& body) {
    Team* team = current;
    std::size_t n = std::min<std::size_t>(std::max(threads, 1), count);
    if (team) n = std::min(n, team->size());
    if (n <= 1) {
        if (count) body(0, count);
        return;
    }
    Job job{count, body, openmp(), nullptr, {}};
    if (team) {
        current = nullptr;  // a loop within this one is none of the team's
        team->share(job, n);
        current = team;
    } else if (job.omp) {
        job.omp->parallel(in_region, &job, static_cast<unsigned>(n), 0);
    } else {
        std::vector<std::jthread> others;  // joined however this block is left
        others.reserve(n - 1);
        for (std::size_t i = 1; i < n; ++i) others.emplace_back([&job, i, n] { job.part(i, n); });
        job.part(0, n);
    }
    if (job.failure) std::rethrow_exception(job.failure);
}

void together(int threads, const std::function<void()>& work) {
    if (threads <= 1 || current) return work();
    Region region{work, openmp(), {}, nullptr};
    if (region.omp) {
        region.omp->parallel(in_team, &region, static_cast<unsigned>(threads), 0);
    } else {
        std::vector<std::jthread> others;
        others.reserve(static_cast<std::size_t>(threads) - 1);
        for (int i = 1; i < threads; ++i) others.emplace_back([&region, i] { region.team.serve(static_cast<std::size_t>(i)); });
        region.lead(static_cast<std::size_t>(threads));
    }
    if (region.failure) std::rethrow_exception(region.failure);
}

}  // namespace htaf
