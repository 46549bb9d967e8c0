// Allocates, finds and frees memory.
#include "emulator/runtime/memory_registry.h"

#include <algorithm>
#include <cstdlib>
#include <mutex>

namespace tessera::emulator {
namespace {

std::uintptr_t address_of(const void* memory) {
  return reinterpret_cast<std::uintptr_t>(memory);
}

// Not memset: the thread sanitizer would keep a record of every byte of a device's memory, four
// times its size. The users of the memory get it from the allocating thread, which orders them
// after this.
__attribute__((no_sanitize("thread"))) void fill_with_ones(void* memory, std::size_t bytes) {
  auto* words = static_cast<volatile std::uint64_t*>(memory);
  const std::size_t count = bytes / sizeof(std::uint64_t);
  for (std::size_t i = 0; i < count; ++i) words[i] = ~std::uint64_t{0};
  auto* rest = static_cast<volatile std::uint8_t*>(memory);
  for (std::size_t i = count * sizeof(std::uint64_t); i < bytes; ++i) rest[i] = 0xff;
}

}  // namespace

void PendingRelease::operator()() {
  std::free(memory_.load(std::memory_order_relaxed));
  state_.store(State::released, std::memory_order_relaxed);
}

MemoryRegistry::~MemoryRegistry() {
  for (const auto& [address, allocation] : allocations_) std::free(allocation.memory);
}

void* MemoryRegistry::allocate(MemoryKind kind, int device, std::size_t bytes) {
  constexpr std::size_t alignment = 256;
  const std::lock_guard lock(mutex_);
  collect();
  const bool on_device = kind == MemoryKind::device;
  if (on_device && bytes > limit_ - used_[device]) return nullptr;
  void* memory = nullptr;
  if (posix_memalign(&memory, alignment, bytes) != 0) return nullptr;
  fill_with_ones(memory, bytes);
  if (on_device) used_[device] += bytes;
  allocations_[address_of(memory)] = {memory, bytes, kind, device};
  return memory;
}

std::optional<Allocation> MemoryRegistry::find_start(const void* memory) const {
  const std::shared_lock lock(mutex_);
  const auto found = allocations_.find(address_of(memory));
  if (found == allocations_.end()) return std::nullopt;
  return found->second;
}

std::optional<Allocation> MemoryRegistry::find(const void* memory, std::size_t bytes) const {
  const std::optional<Allocation> found = find_any(memory, bytes);
  if (!found || memory < found->memory) return std::nullopt;
  const std::size_t offset = address_of(memory) - address_of(found->memory);
  return bytes <= found->bytes - offset ? found : std::nullopt;
}

std::optional<Allocation> MemoryRegistry::find_any(const void* memory, std::size_t bytes) const {
  const std::shared_lock lock(mutex_);
  const auto found = overlapping(address_of(memory), bytes);
  if (found == allocations_.end()) return std::nullopt;
  return found->second;
}

// The last allocation that begins before the range's end, if it reaches into the range.
MemoryRegistry::Allocations::const_iterator MemoryRegistry::overlapping(std::uintptr_t begin,
                                                                        std::size_t bytes) const {
  auto next = allocations_.lower_bound(begin + bytes);
  if (next == allocations_.begin()) return allocations_.end();
  --next;
  return next->first + next->second.bytes > begin ? next : allocations_.end();
}

void MemoryRegistry::release(const void* memory) {
  const std::lock_guard lock(mutex_);
  const auto found = allocations_.find(address_of(memory));
  if (found == allocations_.end()) return;
  const Allocation allocation = found->second;
  allocations_.erase(found);
  if (allocation.kind == MemoryKind::device) used_[allocation.device] -= allocation.bytes;
  std::free(allocation.memory);
}

PendingRelease& MemoryRegistry::release_later(const void* memory) {
  using State = PendingRelease::State;
  const std::lock_guard lock(mutex_);
  collect();
  auto unused = std::find_if(releases_.begin(), releases_.end(), [](const PendingRelease& release) {
    return release.state_.load(std::memory_order_relaxed) == State::unused;
  });
  PendingRelease& release = unused != releases_.end() ? *unused : releases_.emplace_back();
  const auto found = allocations_.find(address_of(memory));
  release.memory_.store(found->second.memory, std::memory_order_relaxed);
  release.bytes_ = found->second.bytes;
  release.device_ = found->second.device;
  release.state_.store(State::pending, std::memory_order_relaxed);
  allocations_.erase(found);
  return release;
}

// Records the releases that have happened.
void MemoryRegistry::collect() {
  using State = PendingRelease::State;
  for (PendingRelease& release : releases_) {
    if (release.state_.load(std::memory_order_relaxed) != State::released) continue;
    used_[release.device_] -= release.bytes_;
    release.state_.store(State::unused, std::memory_order_relaxed);
  }
}

std::size_t MemoryRegistry::used(int device) const {
  const std::shared_lock lock(mutex_);
  const auto found = used_.find(device);
  return found != used_.end() ? found->second : 0;
}

}  // namespace tessera::emulator
