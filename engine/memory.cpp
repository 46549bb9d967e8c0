// The caching pool: free blocks by size, best fit within an eighth above what is asked for, or
// within three times as much where sizes go on changing.
#include "engine/memory.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <map>
#include <mutex>
#include <utility>

#include "engine/backend.h"
#include "kernels/base/error.h"

namespace tessera {
namespace {

// Smaller blocks are kept, however sizes vary: all that are ever in use at once are little.
constexpr std::size_t smallest_returned = std::size_t{64} << 10;

std::shared_ptr<MemoryPool>& pool_of_this_thread(Device device) {
  thread_local std::shared_ptr<MemoryPool> cpu;
  if (device.type == DeviceType::cpu) [[likely]]
    return cpu;
  thread_local std::map<std::pair<DeviceType, int>, std::shared_ptr<MemoryPool>> others;
  return others[{device.type, device.index}];
}

}  // namespace

std::byte* MemorySource::obtain(std::size_t bytes) {
  if (std::byte* const block = take(bytes)) return block;
  {
    const std::lock_guard lock(pools_mutex_);
    for (MemoryPool* const pool : pools_) pool->trim();
  }
  return take(bytes);
}

void MemorySource::add(MemoryPool& pool) {
  const std::lock_guard lock(pools_mutex_);
  pools_.push_back(&pool);
}

void MemorySource::remove(const MemoryPool& pool) {
  const std::lock_guard lock(pools_mutex_);
  std::erase(pools_, &pool);
}

struct MemoryPool::State {
  struct FreeBlock {
    std::byte* memory;
    std::uint64_t freed;  // running number
  };
  using FreeBlocks = std::multimap<std::size_t, FreeBlock>;  // by size, of one size by `freed`

  std::shared_ptr<MemorySource> source;
  mutable std::mutex mutex;
  FreeBlocks free;                // with pages
  FreeBlocks free_without_pages;  // whose pages others needed
  std::uint64_t freed = 0;
  std::size_t beyond = 0;  // bytes of new blocks, so far, of more than was ever in use at once
  MemoryStats stats;
  std::function<void()> on_peak;

  // A block of `size` bytes, of which `bytes` were asked for, is in use from now on.
  void use(MemoryKind kind, std::size_t bytes, std::size_t size) {
    std::function<void()> at_peak;
    {
      const std::lock_guard lock(mutex);
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

  // The others need the mutex.
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
    if (stats.held + bytes > std::max(stats.peak_in_use, stats.in_use + bytes)) beyond += bytes;
  }

  // A step of other sizes than those before (sentences) would get a set of blocks of its own: new
  // pages for each, and the memory of them all. Steps of one size make their blocks in the first
  // ones; who goes on has sizes that vary, and a larger block serves as well.
  [[nodiscard]] bool sizes_vary() const {
    return beyond > stats.peak_in_use + (std::size_t{16} << 20);
  }

  // Four sizes to an octave: the new block serves the next, somewhat longer batch as well.
  static std::size_t roomy(std::size_t wanted, std::size_t unit) {
    const std::size_t quarter = std::max(unit, std::bit_floor(wanted) / 4);
    return (wanted + quarter - 1) / quarter * quarter;
  }

  // The smallest block that fits and is not more than `slack` larger, of its size the one freed
  // last, whose lines may still be cached.
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

  // Before `bytes` more get pages: what is kept for later gives up its own, the longest unused
  // first, as far as more would be held than was ever in use at once. Where sizes vary small blocks
  // go too, and may come back in another size.
  void make_room(std::size_t bytes) {
    std::size_t enough = std::max(stats.peak_in_use, stats.in_use + bytes);
    // An eighth more, without which what goes is what the same step asks for next.
    if (sizes_vary()) enough = std::max(stats.peak_in_use + stats.peak_in_use / 8, enough);
    const std::size_t smallest = sizes_vary() ? smallest_returned : smallest_discarded;
    while (stats.held + bytes > enough) {
      const auto oldest = std::min_element(
          free.lower_bound(smallest), free.end(),
          [](const auto& a, const auto& b) { return a.second.freed < b.second.freed; });
      if (oldest == free.end()) return;
      const std::size_t size = oldest->first;
      if (source->discard(oldest->second.memory, size)) {
        free_without_pages.insert(free.extract(oldest));
      } else if (sizes_vary() && source->gives_back_at_once()) {
        source->give_back(oldest->second.memory, size);
        stats.reserved -= size;
        free.erase(oldest);
      } else {
        return;
      }
      stats.held -= size;
    }
  }
};

struct MemoryPool::Return {
  std::shared_ptr<MemoryPool> pool;
  std::size_t size;  // of the block
  std::size_t bytes;
  MemoryKind kind;
  bool without_pages = false;

  void operator()(std::byte* freed) const {
    State& state = *pool->state_;
    const std::lock_guard lock(state.mutex);
    auto& free = without_pages ? state.free_without_pages : state.free;
    free.emplace(size, State::FreeBlock{freed, ++state.freed});
    if (!without_pages) state.unuse(kind, bytes, size);
  }
};

MemoryPool::MemoryPool(std::shared_ptr<MemorySource> source) : state_(std::make_unique<State>()) {
  state_->source = std::move(source);
  state_->source->add(*this);
}

std::shared_ptr<MemoryPool> MemoryPool::create(Device device) {
  return create(backend_of(device.type).memory_source(device));
}

std::shared_ptr<MemoryPool> MemoryPool::create(std::shared_ptr<MemorySource> source) {
  return std::shared_ptr<MemoryPool>(new MemoryPool(std::move(source)));  // private constructor
}

const std::shared_ptr<MemoryPool>& MemoryPool::current(Device device) {
  std::shared_ptr<MemoryPool>& pool = pool_of_this_thread(device);
  if (!pool) pool = create(device);
  return pool;
}

void MemoryPool::set_current(std::shared_ptr<MemoryPool> pool, Device device) {
  pool_of_this_thread(device) = std::move(pool);
}

MemoryPool::~MemoryPool() {
  state_->source->remove(*this);
  trim();
}

std::shared_ptr<std::byte> MemoryPool::allocate(std::size_t bytes) {
  const std::size_t unit = state_->source->granularity(bytes);
  const std::size_t wanted = std::max(unit, (bytes + unit - 1) / unit * unit);
  std::byte* block = nullptr;
  std::size_t size = wanted;
  bool without_pages = false;
  {
    const std::lock_guard lock(state_->mutex);
    block = State::take_fit(state_->free, wanted, wanted / 8, size);
    if (block == nullptr && state_->sizes_vary()) {
      block = State::take_fit(state_->free, wanted, 2 * wanted, size);
    }
    const std::size_t made = state_->sizes_vary() ? State::roomy(wanted, unit) : wanted;
    if (block == nullptr) {
      const std::size_t slack = std::max(wanted / 8, made - wanted);
      block = State::take_fit(state_->free_without_pages, wanted, slack, size);
      if (block != nullptr) {
        state_->make_room(size);
        state_->hold(size);
        without_pages = true;
      }
    }
    if (block == nullptr) {
      size = made;
      state_->count_new(size);
      state_->make_room(size);
    }
  }
  if (block == nullptr) {
    block = state_->source->obtain(size);
    if (block == nullptr && size > wanted) block = state_->source->obtain(size = wanted);
    TESSERA_CHECK(block != nullptr, ErrorCode::out_of_memory,
                  "out of memory: {} bytes asked for, {} bytes in use by tensors{}; use a smaller "
                  "batch, a sharding strategy that holds less, or more ranks",
                  bytes, stats().in_use, state_->source->shortage());
    const std::lock_guard lock(state_->mutex);
    state_->stats.reserved += size;
    state_->hold(size);
    ++state_->stats.system_allocations;
  }
  if (without_pages) state_->source->populate(block, size);
  const MemoryKind kind = current_memory_kind();
  state_->use(kind, bytes, size);
  return {block, Return{shared_from_this(), size, bytes, kind}};
}

bool MemoryPool::discard(const std::shared_ptr<std::byte>& block) {
  auto* const returned = std::get_deleter<Return>(block);
  if (returned == nullptr) return false;  // of no pool
  if (returned->without_pages) return true;
  State& state = *returned->pool->state_;
  if (!state.source->discard(block.get(), returned->size)) return false;
  const std::lock_guard lock(state.mutex);
  state.unuse(returned->kind, returned->bytes, returned->size);
  state.stats.held -= returned->size;
  returned->without_pages = true;
  return true;
}

void MemoryPool::restore(const std::shared_ptr<std::byte>& block) {
  auto* const returned = std::get_deleter<Return>(block);
  if (returned == nullptr || !returned->without_pages) return;
  State& state = *returned->pool->state_;
  {
    const std::lock_guard lock(state.mutex);
    state.make_room(returned->size);
    state.hold(returned->size);
    returned->without_pages = false;
  }
  state.source->populate(block.get(), returned->size);
  state.use(returned->kind, returned->bytes, returned->size);
}

MemoryStats MemoryPool::stats() const {
  const std::lock_guard lock(state_->mutex);
  return state_->stats;
}

void MemoryPool::reset_peak() {
  const std::lock_guard lock(state_->mutex);
  state_->stats.peak_in_use = state_->stats.in_use;
  state_->stats.at_peak = state_->stats.use;
  state_->stats.peak_held = state_->stats.held;
  state_->stats.host_peak = state_->stats.on_host;
}

void MemoryPool::set_on_peak(std::function<void()> callback) {
  const std::lock_guard lock(state_->mutex);
  state_->on_peak = std::move(callback);
}

void MemoryPool::count_file(MemoryKind kind, std::size_t bytes) {
  const std::lock_guard lock(state_->mutex);
  state_->stats.in_files[kind] += bytes;
}

void MemoryPool::uncount_file(MemoryKind kind, std::size_t bytes) {
  const std::lock_guard lock(state_->mutex);
  state_->stats.in_files[kind] -= bytes;
}

void MemoryPool::count_host(MemoryKind kind, std::size_t bytes) {
  const std::lock_guard lock(state_->mutex);
  MemoryStats& stats = state_->stats;
  stats.on_host[kind] += bytes;
  if (stats.on_host.total() > stats.host_peak.total()) stats.host_peak = stats.on_host;
}

void MemoryPool::uncount_host(MemoryKind kind, std::size_t bytes) {
  const std::lock_guard lock(state_->mutex);
  state_->stats.on_host[kind] -= bytes;
}

void MemoryPool::trim() {
  const std::lock_guard lock(state_->mutex);
  for (auto* const blocks : {&state_->free, &state_->free_without_pages}) {
    for (const auto& [size, block] : *blocks) {
      state_->source->give_back(block.memory, size);
      state_->stats.reserved -= size;
      if (blocks == &state_->free) state_->stats.held -= size;
    }
    blocks->clear();
  }
}

}  // namespace tessera
