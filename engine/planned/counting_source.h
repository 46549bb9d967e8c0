// Memory for plans: addresses without memory behind them.
#pragma once

#include <atomic>
#include <cstdint>

#include "engine/device/memory.h"

namespace tessera {

// Rounds blocks like the device for which the plan is made. Access to an address faults at once: no
// valid address of x86-64 begins with these bits. Thread-safe.
class CountingSource final : public MemorySource {
 public:
  explicit CountingSource(DeviceType stands_for) : stands_for_(stands_for) {}

  [[nodiscard]] std::size_t granularity(std::size_t bytes) const override;
  // Every call returns addresses that were not returned before.
  [[nodiscard]] std::byte* take(std::size_t bytes) override;
  void give_back(std::byte* /*block*/, std::size_t /*bytes*/) override {}
  [[nodiscard]] bool has_pages() const override { return stands_for_ == DeviceType::cpu; }
  [[nodiscard]] bool discard(std::byte* block, std::size_t bytes) override;

 private:
  DeviceType stands_for_;
  std::atomic<std::uint64_t> next_{std::uint64_t{1} << 60};
};

}  // namespace tessera
