// Hashes by XXH3.
#include "tokenizers/pipeline/word_cache.h"

#include <xxhash.h>

#include <algorithm>

namespace tessera::tokenizers {

WordCache::WordCache() : slots_(slot_mask + 1), arena_(arena_size) {}

std::uint64_t WordCache::hash_of(std::string_view word) {
  return XXH3_64bits(word.data(), word.size());
}

void WordCache::insert(std::string_view word, std::uint64_t hash,
                       std::span<const std::int32_t> ids) {
  if (ids.size() > 0xffff) return;  // an entry counts them in 16 bits
  const std::size_t size = ids.size() + (word.size() + 3) / 4;
  if (used_ + size > arena_.size()) {
    used_ = 0;
    if (++epoch_ == 0) {  // after 2^32 arenas
      std::fill(slots_.begin(), slots_.end(), Slot{});
      epoch_ = 1;
    }
  }
  std::int32_t* const entry = arena_.data() + used_;
  std::copy(ids.begin(), ids.end(), entry);
  std::memcpy(entry + ids.size(), word.data(), word.size());
  slots_[hash & slot_mask] = {hash, static_cast<std::uint32_t>(used_), epoch_,
                              static_cast<std::uint16_t>(ids.size()),
                              static_cast<std::uint16_t>(word.size())};
  used_ += size;
}

}  // namespace tessera::tokenizers
