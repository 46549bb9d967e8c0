// Counts the forks between this process and the first one; a handler in the child keeps the count.
#include "base/home_process.h"

#include <pthread.h>

#include <atomic>
#include <new>

#include "base/error.h"

namespace tessera {
namespace {

// Per process: fork() copies it. This is the cheapest way to tell a copy from its original.
std::atomic<unsigned> forks{0};

unsigned current_generation() {
  static const int registered =
      ::pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1, std::memory_order_relaxed); });
  if (registered != 0) throw std::bad_alloc();  // the only reason that it has
  return forks.load(std::memory_order_relaxed);
}

}  // namespace

HomeProcess::HomeProcess() : generation_(current_generation()) {}

bool HomeProcess::left() const noexcept {
  return forks.load(std::memory_order_relaxed) != generation_;
}

void HomeProcess::require_unused_before_fork(std::string_view what) {
  // The handler that counts is registered with the first object.
  if (forks.load(std::memory_order_relaxed) != 0) refuse(what);
}

void HomeProcess::refuse(std::string_view what) {
  misuse(
      "{} after fork(): the threads that it needs have stayed in the parent process; in the child "
      "call exec() or _exit() only, or fork before the library is used",
      what);
}

}  // namespace tessera
