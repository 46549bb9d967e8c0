// What memory is for. A thread says it for what it allocates from now on; pools count by it, and a
// plan is compared with a run by it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string_view>

namespace tessera {

enum class MemoryKind : std::uint8_t {
  parameters,     // what the optimizer updates: master shards, or an unsharded module's parameters
  gradients,      // reduced gradients: what the optimizer reads
  optimizer,      // moments
  communication,  // what collectives work on: gathered parameters, gradients before their reduction
  activations,    // what a forward keeps for its backward, and what both compute with
  other,          // batches of data, staging
};
inline constexpr std::size_t memory_kinds = 6;
std::string_view name_of(MemoryKind kind);

// Bytes by kind, as they were asked for, and what blocks have beyond that.
struct MemoryUse {
  std::array<std::size_t, memory_kinds> bytes{};
  std::size_t rounding = 0;

  [[nodiscard]] std::size_t& operator[](MemoryKind kind) {
    return bytes[static_cast<std::size_t>(kind)];
  }
  [[nodiscard]] std::size_t operator[](MemoryKind kind) const {
    return bytes[static_cast<std::size_t>(kind)];
  }
  [[nodiscard]] std::size_t total() const {
    return std::accumulate(bytes.begin(), bytes.end(), rounding);
  }
};

// The calling thread's kind: `activations` outside of all scopes.
MemoryKind current_memory_kind();

// The innermost scope decides.
class MemoryScope {
 public:
  explicit MemoryScope(MemoryKind kind);
  ~MemoryScope();
  MemoryScope(const MemoryScope&) = delete;
  MemoryScope& operator=(const MemoryScope&) = delete;

 private:
  MemoryKind previous_;
};

}  // namespace tessera
