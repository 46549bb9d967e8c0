// Memory for tensors: a caching pool for each rank and device. After the first step has made
// gradients and optimizer state, a training step of the same sizes allocates nothing from the
// system.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engine/device/device.h"
#include "engine/device/memory_kind.h"

namespace tessera {

struct StepStatistics;  // engine/places/step_statistics.h
struct StepNeeds;

struct MemoryStats {
  std::size_t in_use = 0;       // bytes of blocks in use, rounded sizes
  std::size_t peak_in_use = 0;  // largest in_use since the last reset
  std::size_t reserved = 0;     // bytes of blocks from the system, with or without pages
  std::size_t held = 0;  // bytes of blocks with pages: in_use, and what the pool keeps for later
  std::size_t peak_held = 0;  // largest held since the last reset
  std::uint64_t system_allocations = 0;
  MemoryUse use;        // memory in use, by kind; its total is in_use
  MemoryUse at_peak;    // the same when in_use reached peak_in_use
  MemoryUse in_files;   // data in files (engine/storage); not counted above
  MemoryUse on_host;    // data in host memory; not counted above
  MemoryUse host_peak;  // the same at its largest, since the last reset
};

class MemoryPool;

// Smaller blocks keep their pages: page faults would cost more than the memory is worth.
constexpr std::size_t smallest_discarded = std::size_t{1} << 20;

// The source of a pool's blocks: the system's heap, or a GPU's arena. Thread-safe.
class MemorySource {
 public:
  MemorySource() = default;
  virtual ~MemorySource() = default;
  MemorySource(const MemorySource&) = delete;
  MemorySource& operator=(const MemorySource&) = delete;

  // A block. If necessary, all pools over this source first release the blocks that they keep for
  // later. Null if memory is exhausted.
  [[nodiscard]] std::byte* obtain(std::size_t bytes);

  // Sizes of blocks of `bytes` are rounded up to a multiple of this.
  [[nodiscard]] virtual std::size_t granularity(std::size_t bytes) const = 0;
  // Null if memory is exhausted.
  [[nodiscard]] virtual std::byte* take(std::size_t bytes) = 0;
  virtual void give_back(std::byte* block, std::size_t bytes) = 0;
  // True if give_back() is cheap in the middle of a step, while another queue may still use the
  // block.
  [[nodiscard]] virtual bool gives_back_at_once() const { return false; }
  // True if blocks from smallest_discarded on have pages of their own, which discard() can release.
  [[nodiscard]] virtual bool has_pages() const { return false; }
  // Releases the pages of a block, which keeps its address. It then holds zeros and needs no memory
  // until it is written. Returns false, with no effect, if that is not possible.
  [[nodiscard]] virtual bool discard(std::byte* /*block*/, std::size_t /*bytes*/) { return false; }
  // After discard(), before the block is written: makes its pages at once, for a fraction of the
  // cost of making them one by one.
  virtual void populate(std::byte* /*block*/, std::size_t /*bytes*/) {}
  // Returns memory of blocks that were given back to the system, as far as the source keeps it.
  virtual void give_back_holes() {}
  // Bytes of blocks that are taken, and their peak. Zeros if the source does not count them, like
  // the system's heap.
  struct Taken {
    std::size_t now = 0;
    std::size_t peak = 0;
  };
  [[nodiscard]] virtual Taken taken() const { return {}; }
  // Text about the source for an out-of-memory message (", ..."), or empty.
  [[nodiscard]] virtual std::string shortage() const { return {}; }

 private:
  friend class MemoryPool;
  void add(MemoryPool& pool);
  void remove(const MemoryPool& pool);

  std::mutex pools_mutex_;
  std::vector<MemoryPool*> pools_;
};

// Blocks are 64-byte aligned (256 on a GPU), contents undefined. Thread-safe: any thread may free a
// block; it returns to the pool that it came from.
//
// A GPU's blocks are reused in the order of the host's calls, which is the order of the rank's
// compute queue. Memory that another queue uses must therefore be kept until the compute queue has
// waited for that work (Event::join).
class MemoryPool : public std::enable_shared_from_this<MemoryPool> {
 public:
  static std::shared_ptr<MemoryPool> create(Device device = Device::cpu());
  static std::shared_ptr<MemoryPool> create(std::shared_ptr<MemorySource> source);
  // The calling thread's pool of the device, made on first use. set_current() lets it share another
  // thread's pool.
  static const std::shared_ptr<MemoryPool>& current(Device device = Device::cpu());
  static void set_current(std::shared_ptr<MemoryPool> pool, Device device = Device::cpu());

  ~MemoryPool();
  MemoryPool(const MemoryPool&) = delete;
  MemoryPool& operator=(const MemoryPool&) = delete;

  // The block's deleter keeps the pool alive. Throws Error(out_of_memory) with the requested size
  // and the bytes in use.
  std::shared_ptr<std::byte> allocate(std::size_t bytes);

  // A block lent back to the pool while its contents are not needed. bring_back() returns a block
  // of at least its size. It may be a larger free block that has pages, if the other lent blocks
  // still fit below the peak of memory in use.
  class Aside {
   public:
    Aside(std::shared_ptr<MemoryPool> pool, MemoryKind kind, std::size_t bytes);
    ~Aside();
    Aside(const Aside&) = delete;
    Aside& operator=(const Aside&) = delete;
    // Call it once.
    [[nodiscard]] std::shared_ptr<std::byte> bring_back();

   private:
    std::shared_ptr<MemoryPool> pool_;
    MemoryKind kind_;
    std::size_t bytes_;
  };
  // Requires that the caller is the block's last user. Returns null, with no effect, if lending
  // does not pay (a small block, or a source without pages) or the memory is not from a pool.
  static std::unique_ptr<Aside> set_aside(std::shared_ptr<std::byte>& block);

  [[nodiscard]] MemoryStats stats() const;
  void reset_peak();
  // Each allocation that raises the peak calls it, on the allocating thread. For planning. There is
  // one callback; an empty one removes it.
  void set_on_peak(std::function<void()> callback);
  // Counts data in files.
  void count_file(MemoryKind kind, std::size_t bytes);
  void uncount_file(MemoryKind kind, std::size_t bytes);
  // Counts data in page-locked host memory.
  void count_host(MemoryKind kind, std::size_t bytes);
  void uncount_host(MemoryKind kind, std::size_t bytes);
  // Returns unused cached blocks to the system, and the range of a step's places between two steps.
  void trim();

  // A step of the calling thread begins and ends; MemoryStep calls them. `whole`: false if an
  // exception ends it.
  void begin_step();
  void end_step(bool whole);
  // The next steps allocate otherwise than those so far: their memory gets new places, and the
  // range of the old ones is given back before the next step.
  void expect_other_steps();
  [[nodiscard]] bool in_step() const;
  [[nodiscard]] StepStatistics step_statistics() const;
  // The memory of the last whole step with its blocks in fixed places; zeros before the first one.
  [[nodiscard]] StepNeeds step_needs() const;

 private:
  explicit MemoryPool(std::shared_ptr<MemorySource> source);
  struct State;
  struct Return;  // a block's deleter
  std::shared_ptr<std::byte> allocate(std::size_t bytes, MemoryKind kind, bool comes_back);
  void make_range();

  std::unique_ptr<State> state_;
};

}  // namespace tessera
