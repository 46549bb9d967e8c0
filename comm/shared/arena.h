// Memory that all ranks of a job see, handed out in ranges that any rank can map.
//
// Ranks that are threads share anonymous memory. Ranks that are processes share one memfd: it has
// no name, so a killed job leaves nothing behind, and it does not count against the size of
// /dev/shm.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace tessera::comm {

inline constexpr std::size_t page_bytes = 4096;

constexpr std::size_t round_up(std::size_t bytes, std::size_t multiple) {
  return (bytes + multiple - 1) / multiple * multiple;
}

class Arena {
 public:
  virtual ~Arena() = default;

  // Address space for `bytes` of zeros. One rank calls it and sends the place to the others.
  virtual std::uint64_t reserve(std::size_t bytes) = 0;
  // Makes the range addressable in this rank. Nothing may be touched before it is committed.
  virtual std::byte* map(std::uint64_t where, std::size_t bytes) = 0;
  // Backs a part of a mapped range, whole pages, with memory; Error(out_of_memory) when none is
  // left.
  virtual void commit(std::uint64_t where, std::size_t offset, std::size_t bytes) = 0;
  // Takes the page faults of a committed part now rather than in the middle of a training step.
  virtual void prefault(std::byte* memory, std::size_t bytes) = 0;
  virtual void unmap(std::byte* memory, std::size_t bytes) noexcept = 0;
  // Returns the memory to the system. The last rank that holds the range calls it, after unmap.
  virtual void discard(std::uint64_t where, std::size_t bytes) noexcept = 0;

  [[nodiscard]] virtual bool between_processes() const = 0;
};

std::unique_ptr<Arena> make_anonymous_arena();

// An arena in the file `descriptor`, which the arena closes in its destructor. `next_free` is the
// first byte of the file that belongs to no range, and lies in memory that all processes share.
std::unique_ptr<Arena> make_file_arena(int descriptor, std::atomic<std::uint64_t>& next_free);

// Extends the file, zero-filled, to hold [offset, offset + bytes); Error(out_of_memory) when
// memory is short.
void commit_file_range(int descriptor, std::uint64_t offset, std::size_t bytes);

// At the beginning of every range: the number of ranks that still hold it.
struct SegmentHeader {
  std::atomic<std::uint32_t> holders{0};
};

// One rank's hold on a range; the last one discards it. The creator constructs the SegmentHeader
// first.
class Segment {
 public:
  Segment(std::shared_ptr<Arena> arena, std::uint64_t where, std::size_t bytes, std::byte* memory)
      : arena_(std::move(arena)), where_(where), bytes_(bytes), memory_(memory) {}
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  [[nodiscard]] std::byte* memory() const { return memory_; }

 private:
  std::shared_ptr<Arena> arena_;
  std::uint64_t where_;
  std::size_t bytes_;
  std::byte* memory_;
};

}  // namespace tessera::comm
