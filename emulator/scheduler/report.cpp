// Reports of wrong kernels: the error, the place, and the waiting threads.
#include <cstdio>
#include <cstdlib>
#include <mutex>

#include "emulator/scheduler/indices.h"
#include "emulator/scheduler/multiprocessor.h"

namespace tessera::emulator {
namespace {

// Blocks on other OS threads may fail at the same time; the first one reports.
std::mutex& report_mutex() {
  static std::mutex mutex;
  return mutex;
}

void print_place(const Operation& operation) {
  std::fprintf(stderr, "%s", operation.name);
  if (operation.place.line > 0) {
    std::fprintf(stderr, " (%s:%d)", operation.place.file, operation.place.line);
  }
}

bool alike(const DeviceThread& a, const DeviceThread& b) {
  if (a.state != b.state) return false;
  const bool waits =
      a.state == ThreadState::at_barrier || a.state == ThreadState::in_warp_operation;
  return !waits || a.waiting_at == b.waiting_at;
}

// One line for each run of threads in the same state.
void print_threads(const std::vector<DeviceThread>& threads, int count) {
  constexpr int most_lines = 16;
  int lines = 0;
  for (int first = 0; first < count;) {
    int end = first + 1;
    while (end < count && alike(threads[first], threads[end])) ++end;
    if (++lines > most_lines) {
      std::fprintf(stderr, "    ... and %d more threads\n", count - first);
      return;
    }
    std::fprintf(stderr, "    threads %4d to %4d: ", first, end - 1);
    switch (threads[first].state) {
      case ThreadState::ready:
        std::fprintf(stderr, "can run");
        break;
      case ThreadState::exited:
        std::fprintf(stderr, "exited");
        break;
      case ThreadState::at_barrier:
      case ThreadState::in_warp_operation:
        std::fprintf(stderr, "wait at ");
        print_place(threads[first].waiting_at);
        break;
    }
    std::fprintf(stderr, "\n");
    first = end;
  }
}

}  // namespace

void Multiprocessor::fail(const char* what, const Operation& operation) {
  const std::lock_guard lock(report_mutex());
  const dim3 grid = work_->grid;
  const dim3 block = work_->block;
  std::fprintf(stderr, "\nemulator error: %s\n  at ", what);
  print_place(operation);
  std::fprintf(
      stderr,
      "\n  kernel %s, grid (%u, %u, %u), block (%u, %u, %u), %zu bytes of dynamic shared memory\n",
      work_->kernel, grid.x, grid.y, grid.z, block.x, block.y, block.z, work_->shared_bytes);
  std::fprintf(stderr, "  block (%u, %u, %u), thread (%u, %u, %u): warp %d, lane %d\n", blockIdx.x,
               blockIdx.y, blockIdx.z, threadIdx.x, threadIdx.y, threadIdx.z,
               current_ / lanes_of_a_warp, lane());
  print_threads(threads_, thread_count_);
  std::fflush(stderr);
  std::abort();
}

void Multiprocessor::fail_deadlock() {
  int waiting = 0;
  while (threads_[waiting].state != ThreadState::at_barrier &&
         threads_[waiting].state != ThreadState::in_warp_operation) {
    ++waiting;
  }
  make_current(waiting);
  const bool at_barrier = threads_[waiting].state == ThreadState::at_barrier;
  fail(at_barrier ? "no thread can run: some wait at a barrier that others never reach"
                  : "no thread can run: lanes wait for lanes of their mask that never come",
       threads_[waiting].waiting_at);
}

}  // namespace tessera::emulator
