// The merges of byte-pair encoding: the two tokens, the result, and the rank of each.
#pragma once

#include <cstdint>
#include <vector>

namespace tessera::tokenizers {

struct Merge {
  std::uint32_t rank = 0xffffffffu;  // the lowest goes first
  std::int32_t token = -1;
};

// An open hash table, at most half full.
class MergeTable {
 public:
  explicit MergeTable(std::size_t merges) {
    std::size_t slots = 16;
    while (slots < merges * 2) slots *= 2;
    slots_.resize(slots);
  }
  // If a pair occurs twice, the last rank counts.
  void insert(std::int32_t left, std::int32_t right, Merge merge) {
    Slot& slot = slots_[slot_of(key_of(left, right))];
    slot = {key_of(left, right), merge};
  }
  // No merge has rank 0xffffffff.
  [[nodiscard]] Merge find(std::int32_t left, std::int32_t right) const {
    return slots_[slot_of(key_of(left, right))].merge;
  }

 private:
  static constexpr std::uint64_t empty = ~std::uint64_t{0};
  struct Slot {
    std::uint64_t key = empty;
    Merge merge;
  };
  static std::uint64_t key_of(std::int32_t left, std::int32_t right) {
    return (static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32) |
           static_cast<std::uint32_t>(right);
  }
  [[nodiscard]] std::size_t slot_of(std::uint64_t key) const {
    const std::size_t mask = slots_.size() - 1;
    std::uint64_t hash = key * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 29;
    std::size_t slot = hash & mask;
    while (slots_[slot].key != key && slots_[slot].key != empty) slot = (slot + 1) & mask;
    return slot;
  }
  std::vector<Slot> slots_;
};

}  // namespace tessera::tokenizers
