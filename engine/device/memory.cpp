// The caching pool. It keeps free blocks by size and takes the best fit within an eighth above the
// request, or within three times the request if sizes keep changing.
#include "engine/device/memory.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <map>
#include <mutex>
#include <utility>

#include "base/error.h"
#include "engine/device/backend.h"

namespace tessera {
namespace {

// Smaller blocks are kept even if sizes vary: together they are small.
constexpr std::size_t smallest_returned = std::size_t{64} << 10;
// The most to hold above the peak of memory in use, if sizes do not vary.
constexpr std::size_t most_spare = std::size_t{8} << 20;

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
  FreeBlocks free;                // whose pages other blocks needed
  FreeBlocks free_without_pages;  // whose pages others needed
  std::uint64_t freed = 0;
  std::size_t beyond = 0;  // total bytes of new blocks that exceeded enough()
  std::size_t aside = 0;   // bytes that will be brought back
  std::size_t idle = 0;    // in blocks in use: their size beyond the counted size
  MemoryStats stats;
  std::function<void()> on_peak;

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
};

struct MemoryPool::Return {
  std::shared_ptr<MemoryPool> pool;
  std::size_t size;     // of the block
  std::size_t counted;  // of it
  std::size_t bytes;
  MemoryKind kind;

  void operator()(std::byte* freed) const {
    State& state = *pool->state_;
    const std::lock_guard lock(state.mutex);
    state.free.emplace(size, State::FreeBlock{freed, ++state.freed});
    state.idle -= size - counted;
    state.unuse(kind, bytes, counted);
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
  return allocate(bytes, current_memory_kind(), false);
}

std::shared_ptr<std::byte> MemoryPool::allocate(std::size_t bytes, MemoryKind kind,
                                                bool comes_back) {
  const std::size_t unit = state_->source->granularity(bytes);
  const std::size_t wanted = std::max(unit, (bytes + unit - 1) / unit * unit);
  std::byte* block = nullptr;
  std::size_t size = wanted;
  std::size_t counted = 0;  // 0: all of it
  bool without_pages = false;
  {
    const std::lock_guard lock(state_->mutex);
    block = State::take_fit(state_->free, wanted, wanted / 8, size);
    if (block == nullptr && state_->sizes_vary()) {
      block = State::take_fit(state_->free, wanted, 2 * wanted, size);
    }
    if (block == nullptr && comes_back) {
      block = State::take_fit(state_->free, wanted, state_->slack_of_return(wanted), size);
      if (block != nullptr) counted = wanted;
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
  // Another thread will write a block that comes back; it can make the pages as well.
  if (without_pages && !comes_back) state_->source->populate(block, size);
  if (counted == 0) counted = size;
  state_->use(kind, bytes, counted, size);
  return {block, Return{shared_from_this(), size, counted, bytes, kind}};
}

MemoryPool::Aside::Aside(std::shared_ptr<MemoryPool> pool, MemoryKind kind, std::size_t bytes)
    : pool_(std::move(pool)), kind_(kind), bytes_(bytes) {
  State& state = *pool_->state_;
  const std::lock_guard lock(state.mutex);
  state.aside += bytes_;
}

MemoryPool::Aside::~Aside() {
  State& state = *pool_->state_;
  const std::lock_guard lock(state.mutex);
  state.aside -= bytes_;
}

std::shared_ptr<std::byte> MemoryPool::Aside::bring_back() {
  return pool_->allocate(bytes_, kind_, true);
}

std::unique_ptr<MemoryPool::Aside> MemoryPool::set_aside(std::shared_ptr<std::byte>& block) {
  const auto* const returned = std::get_deleter<Return>(block);
  if (returned == nullptr || returned->bytes < smallest_discarded ||
      !returned->pool->state_->source->has_pages()) {
    return nullptr;
  }
  auto aside = std::make_unique<Aside>(returned->pool, returned->kind, returned->bytes);
  block.reset();
  return aside;
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
