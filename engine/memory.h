// Host memory for tensors: a caching pool for each rank. Once gradients and optimizer state exist
// (the first step makes them), a training step allocates nothing from the system.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace tessera {

struct MemoryStats {
  std::size_t in_use = 0;       // bytes handed out, rounded sizes
  std::size_t peak_in_use = 0;  // largest in_use since the last reset
  std::size_t reserved = 0;     // bytes held from the system
  std::uint64_t system_allocations = 0;
};

// Blocks are 64-byte aligned, contents undefined. Thread-safe: a block may be freed on another
// thread than the one that took it; it returns to the pool that it came from.
class MemoryPool : public std::enable_shared_from_this<MemoryPool> {
 public:
  static std::shared_ptr<MemoryPool> create();
  // The calling thread's pool: the thread's own until share() joins it to another's.
  static const std::shared_ptr<MemoryPool>& current();
  static void set_current(std::shared_ptr<MemoryPool> pool);

  ~MemoryPool();
  MemoryPool(const MemoryPool&) = delete;
  MemoryPool& operator=(const MemoryPool&) = delete;

  // The block's deleter keeps the pool alive. Throws Error(out_of_memory) with the size asked for
  // and the bytes in use.
  std::shared_ptr<std::byte> allocate(std::size_t bytes);

  [[nodiscard]] MemoryStats stats() const;
  void reset_peak();
  // Gives cached blocks that nobody uses back to the system.
  void trim();

 private:
  MemoryPool();
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tessera
