// The caching pool. It keeps free blocks by size and takes the best fit within an eighth above the
// request, or within three times the request if sizes keep changing.
#include "engine/device/memory.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include "base/error.h"
#include "engine/device/backend.h"
#include "engine/device/pool_state.h"

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
  const std::size_t wanted = state_->rounded(bytes);
  const std::size_t unit = state_->source->granularity(bytes);
  std::byte* block = nullptr;
  std::size_t size = wanted;
  std::size_t counted = 0;  // 0: all of it
  bool without_pages = false;
  StepPlaces::Grant grant;
  {
    const std::lock_guard lock(state_->mutex);
    if (state_->records_here()) grant = state_->places.allocate(wanted);
    if (grant.offset) block = state_->range.memory + *grant.offset;
    if (block == nullptr) block = State::take_fit(state_->free, wanted, wanted / 8, size);
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
  return {block, Return{shared_from_this(), size, counted, bytes, kind, grant.ticket,
                        grant.offset.has_value()}};
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
  if (!state_->places.in_step() && state_->places.is_idle()) state_->give_back_range();
}

}  // namespace tessera
