// Forwards calls to the multiprocessor that runs the calling thread's block.
#include "emulator/scheduler/thread_operations.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>

#include "emulator/scheduler/multiprocessor.h"
#include "emulator/scheduler/sanitizers.h"

namespace tessera::emulator {
namespace {

Multiprocessor& multiprocessor(const char* name) {
  Multiprocessor* current = Multiprocessor::current();
  if (current == nullptr) {
    std::fprintf(stderr, "emulator error: %s is called outside a kernel\n", name);
    std::abort();
  }
  return *current;
}

bool aligned(const void* address, std::size_t alignment) {
  return reinterpret_cast<std::uintptr_t>(address) % alignment == 0;
}

}  // namespace

void fail(const char* what, const Operation& operation) {
  multiprocessor(operation.name).fail(what, operation);
}

void block_barrier(const Operation& operation) {
  multiprocessor(operation.name).block_barrier(operation);
}

void fence() {
  multiprocessor("a fence").thread().fenced = true;
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

bool fenced() {
  return multiprocessor("an atomic operation").thread().fenced;
}

int lane() {
  return multiprocessor("a warp operation").lane();
}

unsigned live_lanes() {
  return multiprocessor("__activemask").live_lanes();
}

void warp_meeting(unsigned mask, void* argument, void (*perform)(const LaneArguments&),
                  const Operation& operation) {
  multiprocessor(operation.name).warp_meeting(mask, argument, perform, false, operation);
}

void warp_barrier(unsigned mask, const Operation& operation) {
  multiprocessor(operation.name).warp_meeting(mask, nullptr, nullptr, true, operation);
}

void* dynamic_shared_memory() {
  return multiprocessor("dynamic_shared_memory").shared_memory().dynamic();
}

void* shared_variable(const void* key, std::size_t bytes, const Operation& operation) {
  Multiprocessor& self = multiprocessor(operation.name);
  void* variable = self.shared_memory().variable(key, bytes);
  if (variable == nullptr) {
    self.fail(
        "the block's shared variables do not fit: at most 48 KiB, and 227 KiB with the "
        "dynamic part",
        operation);
  }
  return variable;
}

void check_shared(const void* address, std::size_t bytes, std::size_t alignment,
                  const Operation& operation) {
  Multiprocessor& self = multiprocessor(operation.name);
  if (!aligned(address, alignment)) self.fail("the shared address is misaligned", operation);
  if (!self.shared_memory().contains(address, bytes)) {
    self.fail("the address is not shared memory of this block", operation);
  }
}

void begin_copy(void* shared, const void* global, std::size_t bytes, std::size_t valid,
                const Operation& operation) {
  Multiprocessor& self = multiprocessor(operation.name);
  check_shared(shared, bytes, bytes, operation);
  if (valid > bytes) self.fail("more bytes are valid than are copied", operation);
  if (valid > 0 && !aligned(global, bytes)) {
    self.fail("the global address is misaligned", operation);
  }
  if (!sanitizer::accessible(global, valid)) {
    self.fail("the copy reads beyond the global memory", operation);
  }
  self.copies().add(self.thread().copies, shared, global, bytes, valid);
}

void commit_copies() {
  ++multiprocessor("copy_async_commit").thread().copies.group;
}

void finish_copies(unsigned pending, void (*copy)(void* shared, const void* global,
                                                  std::size_t bytes, std::size_t valid)) {
  Multiprocessor& self = multiprocessor("copy_async_wait");
  AsynchronousCopy oldest;
  while (self.copies().take(self.thread().copies, pending, oldest)) {
    copy(oldest.shared, oldest.global, oldest.bytes, oldest.valid);
  }
}

}  // namespace tessera::emulator
