// The ids of earlier words. Texts repeat their words, so the cache answers most of them.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

namespace tessera::tokenizers {

// Used by one thread at a time. Direct-mapped: a new word replaces the one in its slot. Words and
// ids lie in one arena. When it is full, it is emptied with all slots, so memory is bounded and the
// cache follows the current text.
class WordCache {
 public:
  WordCache();

  // The ids of the word, or an empty span with found == false. Valid until the next insert.
  struct Answer {
    bool found = false;
    std::span<const std::int32_t> ids;
  };
  [[nodiscard]] Answer find(std::string_view word, std::uint64_t hash) const {
    const Slot& slot = slots_[hash & slot_mask];
    if (slot.hash != hash || slot.word_bytes != word.size() || slot.epoch != epoch_) return {};
    const std::int32_t* const entry = arena_.data() + slot.at;
    if (std::memcmp(entry + slot.ids, word.data(), word.size()) != 0) return {};
    return {true, {entry, slot.ids}};
  }
  void insert(std::string_view word, std::uint64_t hash, std::span<const std::int32_t> ids);

  static std::uint64_t hash_of(std::string_view word);
  static bool takes(std::string_view word) { return word.size() <= longest_word && !word.empty(); }

 private:
  static constexpr std::size_t longest_word = 128;
  static constexpr std::size_t slot_mask = (std::size_t{1} << 16) - 1;
  static constexpr std::size_t arena_size = std::size_t{1} << 20;  // elements of 4 bytes

  struct Slot {
    std::uint64_t hash = 0;
    std::uint32_t at = 0;
    std::uint32_t epoch = 0;  // of the arena that it points into
    std::uint16_t ids = 0;
    std::uint16_t word_bytes = 0;
  };
  std::vector<Slot> slots_;
  std::vector<std::int32_t> arena_;
  std::size_t used_ = 0;
  std::uint32_t epoch_ = 1;
};

}  // namespace tessera::tokenizers
