// Distributes a grid's blocks over OS threads.
#include "emulator/scheduler/grid.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "emulator/scheduler/multiprocessor.h"

namespace tessera::emulator {
namespace {

std::uint64_t volume(dim3 size) {
  return std::uint64_t{size.x} * size.y * size.z;
}

using Multiprocessors = std::vector<std::unique_ptr<Multiprocessor>>;

// True when the calling thread's kept multiprocessors are gone: the thread is ending and runs the
// destructors of its thread_local objects.
thread_local bool thread_ends = false;

// The multiprocessors of the calling host thread, kept with their stacks until it ends. Each host
// thread has its own, so the emulator does not order the work of two host threads.
Multiprocessors& kept_multiprocessors() {
  struct Kept {
    Multiprocessors all;
    ~Kept() { thread_ends = true; }
  };
  static thread_local Kept kept;
  return kept.all;
}

// Blocks are taken in the schedule's order, one at a time.
void run_blocks(Multiprocessor& multiprocessor, const GridWork& work, const BlockOrder& order,
                std::atomic<std::uint64_t>& next, std::uint64_t count) {
  multiprocessor.begin_grid(work);
  for (;;) {
    const std::uint64_t turn = next.fetch_add(1, std::memory_order_relaxed);
    if (turn >= count) break;
    multiprocessor.run_block(order.at(turn));
  }
  multiprocessor.end_grid();
}

}  // namespace

cudaError_t check_configuration(dim3 grid, dim3 block, std::size_t shared_bytes) {
  constexpr unsigned most_x = 0x7fffffff;
  constexpr unsigned most_yz = 65535;
  constexpr unsigned most_block_z = 64;
  const bool sizes_fit = volume(grid) > 0 && grid.x <= most_x && grid.y <= most_yz &&
                         grid.z <= most_yz && block.x > 0 && block.y > 0 && block.z > 0 &&
                         block.x <= most_threads_of_a_block && block.y <= most_threads_of_a_block &&
                         block.z <= most_block_z && volume(block) <= most_threads_of_a_block;
  if (!sizes_fit) return cudaErrorInvalidConfiguration;
  if (shared_bytes > SharedMemory::most) return cudaErrorInvalidValue;
  return cudaSuccess;
}

void run_grid(dim3 grid, dim3 block, std::size_t shared_bytes, const char* kernel_name,
              void (*body)(void*), void* argument) {
  if (check_configuration(grid, block, shared_bytes) != cudaSuccess) {
    throw std::invalid_argument(std::string("run_grid: no device runs the configuration of ") +
                                kernel_name);
  }
  if (Multiprocessor::current() != nullptr) {
    throw std::invalid_argument(std::string("run_grid: called within a kernel, for ") +
                                kernel_name);
  }
  const GridWork work{
      grid, block, shared_bytes, kernel_name, body, argument, Schedule::from_environment()};
  const std::uint64_t count = volume(grid);
  const BlockOrder order(work.schedule, count);
  std::atomic<std::uint64_t> next{0};
  const auto workers =
      static_cast<std::size_t>(std::min<std::uint64_t>(work.schedule.threads, count));
  // The destructor of a thread_local object may reach this (a CUDA queue waits for its stream).
  Multiprocessors of_this_grid;
  Multiprocessors& multiprocessors = thread_ends ? of_this_grid : kept_multiprocessors();
  while (multiprocessors.size() < workers) {
    multiprocessors.push_back(std::make_unique<Multiprocessor>());
  }
  std::vector<std::jthread> others;
  for (std::size_t i = 1; i < workers; ++i) {
    others.emplace_back([&, i] { run_blocks(*multiprocessors[i], work, order, next, count); });
  }
  run_blocks(*multiprocessors[0], work, order, next, count);
}

}  // namespace tessera::emulator
