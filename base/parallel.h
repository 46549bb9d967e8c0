// Compute threads inside a rank. There is one pool (OpenMP's, which oneDNN also uses), so
// element-wise loops and matrix products never compete for cores.
#pragma once

#include <cstdint>
#include <functional>

namespace tessera {

// Number of compute threads of the calling thread (a rank): per thread, never per process.
// Default: TESSERA_NUM_THREADS, else OMP_NUM_THREADS, else 1 when ranks share the host, else all
// cores.
int compute_threads();
void set_compute_threads(int threads);

// True if the caller is one of several threads of a parallel_for.
bool inside_parallel_for();

// Call this before a library that uses the pool itself, such as oneDNN. It throws std::logic_error
// in a process that was forked after the parent's pool had started: there the library's call would
// never return.
void require_pool();

namespace detail {
void parallel_for_pool(std::int64_t begin, std::int64_t end, std::int64_t grain,
                       const std::function<void(std::int64_t, std::int64_t)>& body);
}

// Calls body(first, last) on disjoint ranges that cover [begin, end). Ranges are multiples of
// `grain` except the last. With one thread, or one grain of work, body runs on the caller and
// nothing is allocated. The split of the range must never change a result: kernels that reduce
// split their input into fixed chunks and combine those in a fixed order.
template <class Body>
void parallel_for(std::int64_t begin, std::int64_t end, std::int64_t grain, Body&& body) {
  if (end <= begin) return;
  if (compute_threads() == 1 || end - begin <= grain) {
    body(begin, end);
    return;
  }
  detail::parallel_for_pool(begin, end, grain, std::forward<Body>(body));
}

}  // namespace tessera
