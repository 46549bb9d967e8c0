// The insides of a pool, for the files that implement it.
#pragma once

#include <algorithm>
#include <bit>
#include <iterator>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "engine/device/memory.h"
#include "engine/places/step_places.h"

namespace tessera {

// The memory in which the blocks of a step have their places. Its pages are a first part of it.
struct StepRange {
  std::byte* memory = nullptr;
  std::size_t bytes = 0;
  std::size_t paged = 0;
};

struct MemoryPool::State {
  // Smaller blocks are kept even if sizes vary: together they are small.
  static constexpr std::size_t smallest_returned = std::size_t{64} << 10;
  // The most to hold above the peak of memory in use, if sizes do not vary.
  static constexpr std::size_t most_spare = std::size_t{8} << 20;

  struct FreeBlock {
    std::byte* memory;
    std::uint64_t freed;  // running number
  };
  using FreeBlocks = std::multimap<std::size_t, FreeBlock>;  // by size, of one size by `freed`

  std::shared_ptr<MemorySource> source;
  mutable std::mutex mutex;
  FreeBlocks free;                // whose pages other blocks needed
  FreeBlocks free_without_pages;  // whose pages others needed
  std::uint64_t freed = 0;
  std::size_t beyond = 0;  // total bytes of new blocks that exceeded enough()
  std::size_t aside = 0;   // bytes that will be brought back
  std::size_t idle = 0;    // in blocks in use: their size beyond the counted size
  MemoryStats stats;
  std::function<void()> on_peak;
  StepPlaces places;
  std::thread::id step_thread;
  StepRange range;  // the memory of the places

  // Counts a block as in use with `size` bytes, of which `bytes` were requested.
  void use(MemoryKind kind, std::size_t bytes, std::size_t size, std::size_t size_of_block) {
    std::function<void()> at_peak;
    {
      const std::lock_guard lock(mutex);
      idle += size_of_block - size;
      stats.in_use += size;
      stats.use[kind] += bytes;
      stats.use.rounding += size - bytes;
      if (stats.in_use <= stats.peak_in_use) return;
      stats.peak_in_use = stats.in_use;
      stats.at_peak = stats.use;
      at_peak = on_peak;
    }
    if (at_peak) at_peak();
  }

  // The functions below need the mutex.
  void unuse(MemoryKind kind, std::size_t bytes, std::size_t size) {
    stats.in_use -= size;
    stats.use[kind] -= bytes;
    stats.use.rounding -= size - bytes;
  }

  void hold(std::size_t bytes) {
    stats.held += bytes;
    stats.peak_held = std::max(stats.peak_held, stats.held);
  }

  void count_new(std::size_t bytes) {
    if (stats.held + bytes > enough(bytes)) beyond += bytes;
  }

  // A step whose sizes differ from earlier ones (sentences) would get its own set of blocks, with
  // new pages and memory for all of them. Steps of constant size make all their blocks in the first
  // ones. A pool that keeps making blocks has varying sizes; it should reuse larger blocks.
  [[nodiscard]] bool sizes_vary() const {
    return beyond > stats.peak_in_use + (std::size_t{16} << 20);
  }

  // Four sizes per octave: the new block also serves the next, somewhat longer batch.
  static std::size_t roomy(std::size_t wanted, std::size_t unit) {
    const std::size_t quarter = std::max(unit, std::bit_floor(wanted) / 4);
    return (wanted + quarter - 1) / quarter * quarter;
  }

  // The extra size that a free block may have for a lent block of `wanted` bytes that comes back.
  // Such a block has pages; a new one would need them. The unused part is missing elsewhere if the
  // other lent blocks come back before blocks are freed, so it is limited to the spare memory, and
  // may be 0.
  [[nodiscard]] std::size_t slack_of_return(std::size_t wanted) const {
    const auto above = [](std::size_t all, std::size_t part) { return all - std::min(all, part); };
    const std::size_t now = above(stats.peak_in_use, stats.in_use + idle);
    const std::size_t slack = std::max(above(now, aside), std::min(now, above(spare(), idle)));
    return std::min(slack, 3 * wanted);
  }

  // Takes the smallest block that fits and is at most `slack` larger. Among equal sizes it takes
  // the one freed last, which may still be in the cache.
  static std::byte* take_fit(FreeBlocks& blocks, std::size_t wanted, std::size_t slack,
                             std::size_t& size) {
    const auto smallest = blocks.lower_bound(wanted);
    if (smallest == blocks.end() || smallest->first > wanted + slack) return nullptr;
    const auto fit = std::prev(blocks.upper_bound(smallest->first));
    size = fit->first;
    std::byte* const block = fit->second.memory;
    blocks.erase(fit);
    return block;
  }

  // The bytes that the pool may hold: a little more than the peak of memory in use. Without the
  // extra, the step's peak moves pages between sizes. If sizes vary, the extra is an eighth.
  [[nodiscard]] std::size_t enough(std::size_t more) const {
    return std::max(stats.peak_in_use + spare(), stats.in_use + more);
  }
  [[nodiscard]] std::size_t spare() const {
    const std::size_t peak = stats.peak_in_use;
    return sizes_vary() ? peak / 8 : std::min(peak / 32, most_spare);
  }

  // The free block that gives up its pages for `missing` bytes. A step requests the same blocks as
  // the one before, the longest unused first, so the smallest sufficient block is best. If sizes
  // vary, the longest unused block goes, small ones included, and may come back in another size.
  FreeBlocks::iterator find_victim(std::size_t missing) {
    if (sizes_vary()) {
      return std::min_element(
          free.lower_bound(smallest_returned), free.end(),
          [](const auto& a, const auto& b) { return a.second.freed < b.second.freed; });
    }
    const auto fit = free.lower_bound(std::max(missing, smallest_discarded));
    if (fit != free.end() || free.empty()) return fit;
    const std::size_t largest = std::prev(free.end())->first;
    return largest < smallest_discarded ? free.end() : free.lower_bound(largest);
  }

  // Called before `bytes` more get pages. Free blocks give up theirs while the pool would hold more
  // than enough().
  void make_room(std::size_t bytes) {
    const std::size_t most = enough(bytes);
    while (stats.held + bytes > most) {
      if (shorten_range(stats.held + bytes - most)) continue;
      const auto victim = find_victim(stats.held + bytes - most);
      if (victim == free.end()) return;
      const std::size_t size = victim->first;
      if (source->discard(victim->second.memory, size)) {
        free_without_pages.insert(free.extract(victim));
      } else if (sizes_vary() && source->gives_back_at_once()) {
        source->give_back(victim->second.memory, size);
        stats.reserved -= size;
        free.erase(victim);
      } else {
        return;
      }
      stats.held -= size;
    }
  }

  [[nodiscard]] bool records_here() const {
    return places.in_step() && step_thread == std::this_thread::get_id();
  }

  // The size of a block that holds `bytes`.
  [[nodiscard]] std::size_t rounded(std::size_t bytes) const {
    const std::size_t unit = source->granularity(bytes);
    return std::max(unit, (bytes + unit - 1) / unit * unit);
  }

  // Gives up pages at the end of the range that no block uses, unless the present step will write
  // them. False if there are none.
  bool shorten_range(std::size_t missing) {
    if (range.paged == 0 || places.follows()) return false;
    const std::size_t unit = source->granularity(smallest_discarded);
    const std::size_t left =
        range.paged - std::min(range.paged, std::max(missing, smallest_discarded));
    const std::size_t end = (std::max(left, places.end_of_use()) + unit - 1) / unit * unit;
    if (end >= range.paged || !source->discard(range.memory + end, range.paged - end)) return false;
    stats.held -= range.paged - end;
    range.paged = end;
    return true;
  }

  // Counts pages for all of the range. Returns the part that had none.
  std::size_t lengthen_range() {
    const std::size_t more = range.bytes - range.paged;
    if (more > 0) make_room(more);
    hold(more);
    range.paged = range.bytes;
    return more;
  }

  // No block may use the range.
  void give_back_range() {
    if (range.memory == nullptr) return;
    source->give_back(range.memory, range.bytes);
    stats.reserved -= range.bytes;
    stats.held -= range.paged;
    range = {};
  }
};

struct MemoryPool::Return {
  std::shared_ptr<MemoryPool> pool;
  std::size_t size;     // of the block
  std::size_t counted;  // of it
  std::size_t bytes;
  MemoryKind kind;
  StepPlaces::Ticket ticket;
  bool placed;

  void operator()(std::byte* freed) const {
    State& state = *pool->state_;
    const std::lock_guard lock(state.mutex);
    state.places.free(ticket);
    if (placed) {
      state.places.give_back(static_cast<std::size_t>(freed - state.range.memory), size);
    } else {
      state.free.emplace(size, State::FreeBlock{freed, ++state.freed});
    }
    state.idle -= size - counted;
    state.unuse(kind, bytes, counted);
  }
};

}  // namespace tessera
