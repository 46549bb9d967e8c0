// The purposes of memory. A thread sets the kind of its next allocations; pools count by kind, and
// plans are compared with runs by kind.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string_view>

namespace tessera {

enum class MemoryKind : std::uint8_t {
  parameters,     // values that the optimizer updates: master shards, or an unsharded module's
                  // parameters
  gradients,      // reduced gradients, which the optimizer reads
  optimizer,      // moments
  communication,  // buffers of collectives: gathered parameters, gradients before their reduction
  activations,    // values that a forward saves for its backward, and temporaries of both
  other,          // batches of data, staging
};
inline constexpr std::size_t memory_kinds = 6;
std::string_view name_of(MemoryKind kind);

// Requested bytes by kind, and the rounding of blocks beyond them.
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

// The calling thread's kind; `activations` outside all scopes.
MemoryKind current_memory_kind();

// Sets the kind during its lifetime. The innermost scope applies.
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
