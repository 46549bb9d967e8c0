// The live allocations: of the devices, and pinned on the host.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <shared_mutex>

namespace tessera::emulator {

enum class MemoryKind { device, pinned };

struct Allocation {
  void* memory = nullptr;
  std::size_t bytes = 0;
  MemoryKind kind = MemoryKind::device;
  int device = 0;  // of pinned memory: the current device at that time
};

// Memory that is freed in the order of a stream. The thread that runs the stream calls this once.
// It takes no lock, and its flag is never acquired: a free orders no threads.
class PendingRelease {
 public:
  void operator()();

 private:
  friend class MemoryRegistry;
  enum class State { unused, pending, released };
  std::atomic<void*> memory_{nullptr};
  std::atomic<State> state_{State::unused};
  std::size_t bytes_ = 0;  // the registry's
  int device_ = 0;
};

// Each allocation is a block of exactly the requested size, so that the address sanitizer sees an
// overrun. Its address is a multiple of 256, and it is filled with 0xFF: a NaN in every floating
// type.
class MemoryRegistry {
 public:
  // `limit`: bytes of device memory of each device.
  explicit MemoryRegistry(std::size_t limit) : limit_(limit) {}
  MemoryRegistry(const MemoryRegistry&) = delete;
  MemoryRegistry& operator=(const MemoryRegistry&) = delete;
  ~MemoryRegistry();

  // Null: out of memory (for a device: the limit). bytes > 0.
  void* allocate(MemoryKind kind, int device, std::size_t bytes);

  // The allocation of one of these kinds that begins at `memory`.
  [[nodiscard]] std::optional<Allocation> find_start(const void* memory) const;
  // The allocation that contains all of the bytes (bytes > 0).
  [[nodiscard]] std::optional<Allocation> find(const void* memory, std::size_t bytes) const;
  // The allocation that contains some of the bytes.
  [[nodiscard]] std::optional<Allocation> find_any(const void* memory, std::size_t bytes) const;

  // Frees the allocation that begins at `memory`.
  void release(const void* memory);
  // find() no longer finds the memory. A call of the returned object frees it.
  PendingRelease& release_later(const void* memory);

  [[nodiscard]] std::size_t limit() const { return limit_; }
  [[nodiscard]] std::size_t used(int device) const;

 private:
  using Allocations = std::map<std::uintptr_t, Allocation>;
  Allocations::const_iterator overlapping(std::uintptr_t begin, std::size_t bytes) const;
  void collect();

  const std::size_t limit_;
  mutable std::shared_mutex mutex_;  // lookups share it, and so order no host threads
  Allocations allocations_;
  std::deque<PendingRelease> releases_;  // reused, because their addresses were handed out
  std::map<int, std::size_t> used_;
};

}  // namespace tessera::emulator
