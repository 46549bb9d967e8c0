// The pending asynchronous copies of a block's threads.
#pragma once

#include <array>
#include <cstddef>
#include <list>

namespace tessera::emulator {

// A copy of `bytes` bytes to shared memory; the first `valid` come from global memory, the rest are
// zeroes.
struct AsynchronousCopy {
  void* shared;
  const void* global;
  std::size_t bytes, valid;
  unsigned group;
  AsynchronousCopy* next;
};

// The copies of one thread in the order of their issue.
struct AsynchronousCopies {
  AsynchronousCopy* first = nullptr;
  AsynchronousCopy* last = nullptr;
  unsigned group = 0;  // the group that the next copy joins
};

// Stores the copies of all threads. It grows when more copies are pending than ever before, and
// never shrinks. So a running block neither waits for the allocator nor frees memory that another
// thread allocated (which the thread sanitizer would report as a race).
class AsynchronousCopyStore {
 public:
  void add(AsynchronousCopies& copies, void* shared, const void* global, std::size_t bytes,
           std::size_t valid);
  // Takes out the oldest copy of the groups that must be finished when at most `pending` groups may
  // be pending; false: there is none.
  bool take(AsynchronousCopies& copies, unsigned pending, AsynchronousCopy& copy);

 private:
  std::list<std::array<AsynchronousCopy, 128>> chunks_;
  AsynchronousCopy* free_ = nullptr;
};

}  // namespace tessera::emulator
