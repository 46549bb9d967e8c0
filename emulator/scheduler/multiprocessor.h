// A multiprocessor of the emulated device runs one block at a time, every thread of it on a fiber,
// on the OS thread that calls it.
// A thread runs until it exits or must wait for others, and then switches to the next one that can
// run. Warps get their turns in the schedule's order, each as far as it can go.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "emulator/scheduler/asynchronous_copies.h"
#include "emulator/scheduler/context.h"
#include "emulator/scheduler/schedule.h"
#include "emulator/scheduler/shared_memory.h"
#include "emulator/scheduler/thread_operations.h"

namespace tessera::emulator {

inline constexpr int most_threads_of_a_block = 1024;
inline constexpr int most_warps_of_a_block = most_threads_of_a_block / lanes_of_a_warp;

// Every thread of every block runs body(argument) once.
struct GridWork {
  dim3 grid, block;
  std::size_t shared_bytes;
  const char* kernel;
  void (*body)(void*);
  void* argument;
  Schedule schedule;
};

// Orders the threads of a grid's blocks with the host, for the thread sanitizer. Blocks of one grid
// are not ordered with each other.
struct GridOrdering {
  char start = 0, end = 0;
};

enum class ThreadState : std::uint8_t { ready, at_barrier, in_warp_operation, exited };

struct DeviceThread {
  uint3 index;
  ThreadState state;
  bool fenced;
  Context* context;      // null: not started
  Operation waiting_at;  // where it waits, or waited last
  AsynchronousCopies copies;
};

class Multiprocessor {
 public:
  Multiprocessor();
  ~Multiprocessor();
  Multiprocessor(const Multiprocessor&) = delete;
  Multiprocessor& operator=(const Multiprocessor&) = delete;

  // The multiprocessor whose block the calling OS thread runs; null outside.
  static Multiprocessor* current();

  // Call begin, any number of blocks, and end on one OS thread.
  void begin_grid(const GridWork& work);
  void run_block(std::uint64_t block);
  void end_grid();

  // Called on the block's threads; thread_operations.h describes them.
  [[noreturn]] void fail(const char* what, const Operation& operation);
  void block_barrier(const Operation& operation);
  void warp_meeting(unsigned mask, void* argument, void (*perform)(const LaneArguments&),
                    bool orders_memory, const Operation& operation);
  [[nodiscard]] int lane() const { return current_ % lanes_of_a_warp; }
  [[nodiscard]] unsigned live_lanes() const;
  [[nodiscard]] DeviceThread& thread() { return threads_[current_]; }
  [[nodiscard]] SharedMemory& shared_memory() { return shared_memory_; }
  [[nodiscard]] AsynchronousCopyStore& copies() { return copies_; }

 private:
  // Lanes that meet; there is one meeting for each lowest lane of a mask.
  struct Meeting {
    unsigned arrived = 0;
    bool turn = false;
    Operation operation{};
    LaneArguments arguments{};
  };
  struct Barrier {
    int arrived = 0;
    bool turn = false;
    Operation operation{};
  };

  static void serve_threads();
  void run_current_thread();
  void finish_current_thread();
  void begin_threads();
  [[nodiscard]] bool threads_have_identities() const;
  void make_sanitizer_contexts();
  Context& context_for(int thread);
  void enter(Context& from, int next);
  void make_current(int thread);
  void hand_over();
  void make_ready(int thread);
  int take_ready();
  void order_warps();
  void release_barrier();
  void open_meeting(Meeting& meeting, int warp, unsigned mask, const Operation& operation);
  void end_shared_memory();
  [[noreturn]] void fail_deadlock();

  // The grid and the block.
  const GridWork* work_ = nullptr;
  std::unique_ptr<GridOrdering> ordering_;
  Random random_{0};
  unsigned block_parity_ = 0;

  // The threads of the block.
  std::vector<DeviceThread> threads_;
  int thread_count_ = 0, warp_count_ = 0, alive_ = 0, current_ = 0;
  Barrier barrier_;
  std::vector<std::array<Meeting, lanes_of_a_warp>> meetings_;  // [warp][lowest lane of the mask]
  SharedMemory shared_memory_;
  AsynchronousCopyStore copies_;

  // The lanes of each warp that can run, and the places of such warps in the order of turns.
  std::array<unsigned, most_warps_of_a_block> ready_lanes_{};
  std::array<std::uint8_t, most_warps_of_a_block> warp_at_{}, turn_of_{};
  unsigned ready_turns_ = 0;

  // The stacks of the host and of the threads.
  Context host_;
  std::vector<std::unique_ptr<Context>> contexts_;
  std::vector<Context*> idle_contexts_;
  void* cleaner_ = nullptr;  // the thread sanitizer's thread that frees a block's shared memory
};

}  // namespace tessera::emulator
