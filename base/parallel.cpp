// parallel_for over OpenMP's pool. Without OpenMP (the thread sanitizer's build: its barriers are
// invisible to the sanitizer) the calling thread computes alone.
#include "base/parallel.h"

#if defined(_OPENMP)
#include <omp.h>
#endif

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <mutex>

#include "base/home_process.h"

namespace tessera {
namespace {

#if defined(_OPENMP)
int cores() {
  return omp_get_num_procs();
}
// Sets the threads of the calling thread's pool; oneDNN reads the value.
void set_pool_threads(int threads) {
  omp_set_num_threads(threads);
}
#else
int cores() {
  return 1;
}
void set_pool_threads(int /*threads*/) {}
#endif

int threads_from_environment() {
  for (const char* name : {"TESSERA_NUM_THREADS", "OMP_NUM_THREADS"}) {
    if (const char* text = std::getenv(name)) {
      const int value = std::atoi(text);
      if (value > 0) return value;
    }
  }
  const char* local_world = std::getenv("LOCAL_WORLD_SIZE");
  const int ranks = local_world != nullptr ? std::max(1, std::atoi(local_world)) : 1;
  return std::max(1, cores() / ranks);
}

thread_local int threads_of_this_rank = 0;

}  // namespace

int compute_threads() {
  if (threads_of_this_rank == 0) set_compute_threads(threads_from_environment());
  return threads_of_this_rank;
}

void set_compute_threads(int threads) {
  threads_of_this_rank = std::max(1, threads);
  set_pool_threads(threads_of_this_rank);
}

#if defined(_OPENMP)

bool inside_parallel_for() {
  return omp_in_parallel() != 0;
}

// OpenMP starts a pool at a thread's first parallel region.
void require_pool() {
  if (compute_threads() == 1) return;
  thread_local const HomeProcess pool;
  pool.require("computing");
}

void detail::parallel_for_pool(std::int64_t begin, std::int64_t end, std::int64_t grain,
                               const std::function<void(std::int64_t, std::int64_t)>& body) {
  require_pool();
  const std::int64_t grains = (end - begin + grain - 1) / grain;
  const auto threads = static_cast<int>(std::min<std::int64_t>(compute_threads(), grains));
  std::exception_ptr error;
  std::mutex error_mutex;
#pragma omp parallel num_threads(threads)
  {
    const std::int64_t count = omp_get_num_threads();
    const std::int64_t index = omp_get_thread_num();
    const std::int64_t first = begin + grains * index / count * grain;
    const std::int64_t last = std::min(end, begin + grains * (index + 1) / count * grain);
    try {
      if (first < last) body(first, last);
    } catch (...) {
      const std::lock_guard lock(error_mutex);
      error = std::current_exception();
    }
  }
  if (error) std::rethrow_exception(error);
}

#else

bool inside_parallel_for() {
  return false;
}

void require_pool() {}

void detail::parallel_for_pool(std::int64_t begin, std::int64_t end, std::int64_t /*grain*/,
                               const std::function<void(std::int64_t, std::int64_t)>& body) {
  body(begin, end);
}

#endif

}  // namespace tessera
