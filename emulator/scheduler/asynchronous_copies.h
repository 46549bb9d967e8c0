// The asynchronous copies of a block's threads that are under way.
#pragma once

#include <array>
#include <cstddef>
#include <list>

namespace tessera::emulator {

// A copy of `bytes` bytes to shared memory of which the first `valid` come from global memory and
// the rest are zeroes.
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
  unsigned group = 0;  // the one that the next copy joins
};

// Where the copies of all threads are kept. Memory is taken when more are under way than ever
// before and never given back, so that a running block neither waits for the allocator nor frees
// what another thread allocated (which the thread sanitizer would call a race).
class AsynchronousCopyStore {
 public:
  void add(AsynchronousCopies& copies, void* shared, const void* global, std::size_t bytes,
           std::size_t valid);
  // Takes out the oldest copy of the groups that must be finished when at most `pending` may be
  // under way; false: there is none.
  bool take(AsynchronousCopies& copies, unsigned pending, AsynchronousCopy& copy);

 private:
  std::list<std::array<AsynchronousCopy, 128>> chunks_;
  AsynchronousCopy* free_ = nullptr;
};

}  // namespace tessera::emulator
