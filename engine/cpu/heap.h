// The system's heap as a source of tensor memory.
#pragma once

#include "engine/device/memory.h"

namespace tessera {

// Blocks are 64-byte aligned. From 1 MiB on they are whole pages, mapped separately, and huge pages
// if the system has them.
class Heap final : public MemorySource {
 public:
  [[nodiscard]] std::size_t granularity(std::size_t bytes) const override;
  [[nodiscard]] std::byte* take(std::size_t bytes) override;
  void give_back(std::byte* block, std::size_t bytes) override;
  [[nodiscard]] bool gives_back_at_once() const override { return true; }
  [[nodiscard]] bool has_pages() const override { return true; }
  [[nodiscard]] bool discard(std::byte* block, std::size_t bytes) override;
  void populate(std::byte* block, std::size_t bytes) override;
  void give_back_holes() override;
};

}  // namespace tessera
