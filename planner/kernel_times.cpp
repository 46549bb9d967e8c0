// A table of kernels that times each kernel.
#include "planner/kernel_times.h"

#include <chrono>

#include "base/error.h"

namespace tessera::planner {
namespace {

using KernelClock = std::chrono::steady_clock;

thread_local KernelTimes* thread_kernel_times = nullptr;

template <auto kernel, class Arguments>
void timed_kernel(const Arguments& arguments, kernels::Queue queue) {
  const auto begin = KernelClock::now();
  (kernels::cpu_kernels().*kernel)(arguments, queue);
  const auto end = KernelClock::now();
  thread_kernel_times->add(work_of(arguments), std::chrono::duration<double>(end - begin).count());
}

const kernels::KernelTable& timed_kernels() {
  static constexpr kernels::KernelTable table{
#define TESSERA_TIMED_KERNEL(name, Arguments) \
  .name = &timed_kernel<&kernels::KernelTable::name, kernels::Arguments>,
      TESSERA_KERNELS(TESSERA_TIMED_KERNEL)
#undef TESSERA_TIMED_KERNEL
  };
  return table;
}

}  // namespace

KernelTimes::KernelTimes() : guard_(timed_kernels()) {
  TESSERA_REQUIRE(thread_kernel_times == nullptr, "a thread times its kernels once at a time");
  thread_kernel_times = this;
}

KernelTimes::~KernelTimes() {
  thread_kernel_times = nullptr;
}

}  // namespace tessera::planner
