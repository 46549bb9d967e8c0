// The caching pool: free blocks by size, best fit within an eighth above what is asked for.
#include "engine/memory.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include "engine/backend.h"
#include "kernels/base/error.h"

namespace tessera {
namespace {

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
  std::shared_ptr<MemorySource> source;
  mutable std::mutex mutex;
  std::multimap<std::size_t, std::byte*> free;
  MemoryStats stats;
  std::function<void()> on_peak;

  // Both need the mutex. The block has `size` bytes, of which `bytes` were asked for.
  bool count(MemoryKind kind, std::size_t bytes, std::size_t size) {
    stats.in_use += size;
    stats.use[kind] += bytes;
    stats.use.rounding += size - bytes;
    if (stats.in_use <= stats.peak_in_use) return false;
    stats.peak_in_use = stats.in_use;
    stats.at_peak = stats.use;
    return true;
  }
  void uncount(MemoryKind kind, std::size_t bytes, std::size_t size) {
    stats.in_use -= size;
    stats.use[kind] -= bytes;
    stats.use.rounding -= size - bytes;
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
  {
    const std::lock_guard lock(state_->mutex);
    const auto fit = state_->free.lower_bound(wanted);
    if (fit != state_->free.end() && fit->first <= wanted + wanted / 8) {
      size = fit->first;
      block = fit->second;
      state_->free.erase(fit);
    }
  }
  if (block == nullptr) {
    block = state_->source->obtain(wanted);
    TESSERA_CHECK(block != nullptr, ErrorCode::out_of_memory,
                  "out of memory: {} bytes asked for, {} bytes in use by tensors{}; use a smaller "
                  "batch, a sharding strategy that holds less, or more ranks",
                  bytes, stats().in_use, state_->source->shortage());
    const std::lock_guard lock(state_->mutex);
    state_->stats.reserved += size;
    ++state_->stats.system_allocations;
  }
  const MemoryKind kind = current_memory_kind();
  std::function<void()> on_peak;
  {
    const std::lock_guard lock(state_->mutex);
    if (state_->count(kind, bytes, size)) on_peak = state_->on_peak;
  }
  std::shared_ptr<std::byte> result(
      block, [pool = shared_from_this(), size, bytes, kind](std::byte* freed) {
        const std::lock_guard lock(pool->state_->mutex);
        pool->state_->free.emplace(size, freed);
        pool->state_->uncount(kind, bytes, size);
      });
  if (on_peak) on_peak();
  return result;
}

MemoryStats MemoryPool::stats() const {
  const std::lock_guard lock(state_->mutex);
  return state_->stats;
}

void MemoryPool::reset_peak() {
  const std::lock_guard lock(state_->mutex);
  state_->stats.peak_in_use = state_->stats.in_use;
  state_->stats.at_peak = state_->stats.use;
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
  for (const auto& [size, block] : state_->free) {
    state_->source->give_back(block, size);
    state_->stats.reserved -= size;
  }
  state_->free.clear();
}

}  // namespace tessera
