// The scheduler's operations for a thread of a running block. The device headers (emulator/device)
// give them CUDA's names.
// Call every function on a thread of a block that run_grid() runs. A wrong call prints the error
// with the kernel, the block, the thread and the places where threads wait, and ends the process.
#pragma once

#include <cstddef>

#include "emulator/scheduler/place.h"

namespace tessera::emulator {

inline constexpr int lanes_of_a_warp = 32;

// Ends the process with a report.
[[noreturn]] void fail(const char* what, const Operation& operation);

// ---- threads of a block

// Waits until all threads of the block have come to the same place. Orders memory. All threads must
// come: an exited thread is an error.
void block_barrier(const Operation& operation);

// Orders the thread's earlier writes before its later atomic operations.
void fence();
[[nodiscard]] bool fenced();

// ---- lanes of a warp

// The lane of the calling thread, and the lanes of its warp that have not exited.
[[nodiscard]] int lane();
[[nodiscard]] unsigned live_lanes();

// The argument of each lane of a warp operation; null for lanes that are not in the mask.
struct LaneArguments {
  unsigned mask;
  void* of[lanes_of_a_warp];

  template <class Argument>
  [[nodiscard]] Argument& at(int lane) const {
    return *static_cast<Argument*>(of[lane]);
  }
};

// Waits until all lanes of the mask have come to the same place with the same mask. The last one
// calls `perform`, which reads and writes the lanes' arguments. Does not order memory.
void warp_meeting(unsigned mask, void* argument, void (*perform)(const LaneArguments&),
                  const Operation& operation);

// The same without a computation; orders memory between the lanes.
void warp_barrier(unsigned mask, const Operation& operation);

// ---- shared memory

[[nodiscard]] void* dynamic_shared_memory();
// The block's variable that `key` identifies; aligned to 128 bytes.
[[nodiscard]] void* shared_variable(const void* key, std::size_t bytes, const Operation& operation);
// Fails unless the bytes are shared memory of this block and the address is a multiple of
// `alignment`.
void check_shared(const void* address, std::size_t bytes, std::size_t alignment,
                  const Operation& operation);

// ---- asynchronous copies

// Records a copy. It happens when the thread waits for its group, as late as CUDA allows.
void begin_copy(void* shared, const void* global, std::size_t bytes, std::size_t valid,
                const Operation& operation);
void commit_copies();
// Makes the copies of all groups but the newest `pending` by calling `copy`, which is compiled with
// the kernel, so that sanitizers see the accesses.
void finish_copies(unsigned pending, void (*copy)(void* shared, const void* global,
                                                  std::size_t bytes, std::size_t valid));

}  // namespace tessera::emulator
