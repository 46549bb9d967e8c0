// Memory for tensors: a caching pool for each rank and device. Once gradients and optimizer state
// exist (the first step makes them), a training step of the sizes of those before allocates nothing
// from the system.
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

struct MemoryStats {
  std::size_t in_use = 0;       // bytes handed out, rounded sizes
  std::size_t peak_in_use = 0;  // largest in_use since the last reset
  std::size_t reserved = 0;     // bytes of blocks from the system, with pages or without
  std::size_t held = 0;  // bytes of those with pages: in_use, and what the pool keeps for later
  std::size_t peak_held = 0;  // largest held since the last reset
  std::uint64_t system_allocations = 0;
  MemoryUse use;        // what is handed out, by kind; its total is in_use
  MemoryUse at_peak;    // the same when in_use came to peak_in_use
  MemoryUse in_files;   // what lies in files instead (engine/storage): none of the above counts it
  MemoryUse on_host;    // what lies in the host's memory instead: nor this
  MemoryUse host_peak;  // the same when it was most, since the last reset
};

class MemoryPool;

// Smaller blocks keep their pages: one fault each, they would cost more time than their memory is
// worth.
constexpr std::size_t smallest_discarded = std::size_t{1} << 20;

// Where pools take blocks from: the system's heap, or a GPU's arena. Thread-safe.
class MemorySource {
 public:
  MemorySource() = default;
  virtual ~MemorySource() = default;
  MemorySource(const MemorySource&) = delete;
  MemorySource& operator=(const MemorySource&) = delete;

  // A block, for which all pools over this source give up what they only keep for later, if it has
  // to be. Null when there is no more.
  [[nodiscard]] std::byte* obtain(std::size_t bytes);

  // A multiple of this is what blocks of `bytes` are rounded to.
  [[nodiscard]] virtual std::size_t granularity(std::size_t bytes) const = 0;
  // Null when there is no more.
  [[nodiscard]] virtual std::byte* take(std::size_t bytes) = 0;
  virtual void give_back(std::byte* block, std::size_t bytes) = 0;
  // Whether that costs little in the middle of a step, where another queue may still be using it.
  [[nodiscard]] virtual bool gives_back_at_once() const { return false; }
  // Whether blocks from smallest_discarded on have pages of their own, which discard() gives back.
  [[nodiscard]] virtual bool has_pages() const { return false; }
  // Gives the pages of a block back, which keeps its address: it holds zeros, and no memory until
  // it is written. False, and nothing done, where that cannot be had.
  [[nodiscard]] virtual bool discard(std::byte* /*block*/, std::size_t /*bytes*/) { return false; }
  // After discard(), before the block is written: makes its pages at once, for a fraction of what
  // they cost one by one.
  virtual void populate(std::byte* /*block*/, std::size_t /*bytes*/) {}
  // Bytes of the blocks that are out, and the most that were at once. Zeros where nobody counts:
  // the system knows what its heap has given.
  struct Taken {
    std::size_t now = 0;
    std::size_t peak = 0;
  };
  [[nodiscard]] virtual Taken taken() const { return {}; }
  // What an out-of-memory message adds about the source (", ..."), or nothing.
  [[nodiscard]] virtual std::string shortage() const { return {}; }

 private:
  friend class MemoryPool;
  void add(MemoryPool& pool);
  void remove(const MemoryPool& pool);

  std::mutex pools_mutex_;
  std::vector<MemoryPool*> pools_;
};

// Blocks are 64-byte aligned (256 on a GPU), contents undefined. Thread-safe: a block may be freed
// on another thread than the one that took it; it returns to the pool that it came from.
//
// A GPU's blocks are reused in the order of the host's calls, which is the order of the rank's
// compute queue. Memory that another queue works on must therefore be kept until the compute queue
// has waited for that work (Event::join).
class MemoryPool : public std::enable_shared_from_this<MemoryPool> {
 public:
  static std::shared_ptr<MemoryPool> create(Device device = Device::cpu());
  static std::shared_ptr<MemoryPool> create(std::shared_ptr<MemorySource> source);
  // The calling thread's pool of the device, made on first use; set_current() joins it to another
  // thread's.
  static const std::shared_ptr<MemoryPool>& current(Device device = Device::cpu());
  static void set_current(std::shared_ptr<MemoryPool> pool, Device device = Device::cpu());

  ~MemoryPool();
  MemoryPool(const MemoryPool&) = delete;
  MemoryPool& operator=(const MemoryPool&) = delete;

  // The block's deleter keeps the pool alive. Throws Error(out_of_memory) with the size asked for
  // and the bytes in use.
  std::shared_ptr<std::byte> allocate(std::size_t bytes);

  // Memory that is not needed for a while, nor what it held: others have it meanwhile. Who does
  // without it brings another block of its size back, which may be a larger one that is free and
  // has pages, where those who brought nothing back yet can still have theirs within the most that
  // was in use at once.
  class Aside {
   public:
    Aside(std::shared_ptr<MemoryPool> pool, MemoryKind kind, std::size_t bytes);
    ~Aside();
    Aside(const Aside&) = delete;
    Aside& operator=(const Aside&) = delete;
    // Once.
    [[nodiscard]] std::shared_ptr<std::byte> bring_back();

   private:
    std::shared_ptr<MemoryPool> pool_;
    MemoryKind kind_;
    std::size_t bytes_;
  };
  // Of the block's last user. Null, and nothing done, where it is not worth it (it is small, or
  // its source knows no pages), or the memory is of no pool.
  static std::unique_ptr<Aside> set_aside(std::shared_ptr<std::byte>& block);

  [[nodiscard]] MemoryStats stats() const;
  void reset_peak();
  // Called, on the allocating thread, by each allocation that raises the peak. For planning; one at
  // a time, and none when empty.
  void set_on_peak(std::function<void()> callback);
  // Counts what lies in files.
  void count_file(MemoryKind kind, std::size_t bytes);
  void uncount_file(MemoryKind kind, std::size_t bytes);
  // Counts what lies in page-locked memory of the host.
  void count_host(MemoryKind kind, std::size_t bytes);
  void uncount_host(MemoryKind kind, std::size_t bytes);
  // Gives cached blocks that nobody uses back to the system.
  void trim();

 private:
  explicit MemoryPool(std::shared_ptr<MemorySource> source);
  struct State;
  struct Return;  // a block's deleter
  std::shared_ptr<std::byte> allocate(std::size_t bytes, MemoryKind kind, bool comes_back);

  std::unique_ptr<State> state_;
};

}  // namespace tessera
