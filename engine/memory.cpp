// The caching pool: free blocks by size, best fit within an eighth above what is asked for.
#include "engine/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <mutex>

#include "kernels/base/error.h"

namespace tessera {
namespace {

constexpr std::size_t small_alignment = 64;
constexpr std::size_t large_block = std::size_t{1} << 20;  // from here on, blocks are whole pages
constexpr std::size_t page = 4096;
constexpr std::size_t huge_page = std::size_t{2} << 20;

std::size_t rounded(std::size_t bytes) {
  const std::size_t unit = bytes >= large_block ? page : small_alignment;
  return std::max(unit, (bytes + unit - 1) / unit * unit);
}

std::byte* system_allocate(std::size_t bytes) {
  const std::size_t alignment = bytes >= large_block ? page : small_alignment;
  void* block = std::aligned_alloc(alignment, bytes);
  // Advice only: without huge pages the memory works the same.
  if (block != nullptr && bytes >= 2 * huge_page) madvise(block, bytes, MADV_HUGEPAGE);
  return static_cast<std::byte*>(block);
}

thread_local std::shared_ptr<MemoryPool> pool_of_this_thread;

}  // namespace

struct MemoryPool::State {
  mutable std::mutex mutex;
  std::multimap<std::size_t, std::byte*> free;
  MemoryStats stats;
};

MemoryPool::MemoryPool() : state_(std::make_unique<State>()) {}

std::shared_ptr<MemoryPool> MemoryPool::create() {
  return std::shared_ptr<MemoryPool>(new MemoryPool());  // the constructor is private
}

const std::shared_ptr<MemoryPool>& MemoryPool::current() {
  if (!pool_of_this_thread) pool_of_this_thread = create();
  return pool_of_this_thread;
}

void MemoryPool::set_current(std::shared_ptr<MemoryPool> pool) {
  pool_of_this_thread = std::move(pool);
}

MemoryPool::~MemoryPool() {
  trim();
}

std::shared_ptr<std::byte> MemoryPool::allocate(std::size_t bytes) {
  const std::size_t wanted = rounded(bytes);
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
    block = system_allocate(wanted);
    if (block == nullptr) {
      trim();
      block = system_allocate(wanted);
    }
    TESSERA_CHECK(block != nullptr, ErrorCode::out_of_memory,
                  "out of memory: {} bytes asked for, {} bytes in use by tensors; use a smaller "
                  "batch, a sharding strategy that holds less, or more ranks",
                  bytes, stats().in_use);
    const std::lock_guard lock(state_->mutex);
    state_->stats.reserved += size;
    ++state_->stats.system_allocations;
  }
  {
    const std::lock_guard lock(state_->mutex);
    state_->stats.in_use += size;
    state_->stats.peak_in_use = std::max(state_->stats.peak_in_use, state_->stats.in_use);
  }
  return {block, [pool = shared_from_this(), size](std::byte* freed) {
            const std::lock_guard lock(pool->state_->mutex);
            pool->state_->free.emplace(size, freed);
            pool->state_->stats.in_use -= size;
          }};
}

MemoryStats MemoryPool::stats() const {
  const std::lock_guard lock(state_->mutex);
  return state_->stats;
}

void MemoryPool::reset_peak() {
  const std::lock_guard lock(state_->mutex);
  state_->stats.peak_in_use = state_->stats.in_use;
}

void MemoryPool::trim() {
  const std::lock_guard lock(state_->mutex);
  for (const auto& [size, block] : state_->free) {
    std::free(block);
    state_->stats.reserved -= size;
  }
  state_->free.clear();
}

}  // namespace tessera
