// A model's keys and values of the past tokens of one sequence, so that only new tokens are
// computed. The memory is allocated once.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/ops/cache.h"

namespace tessera::models {

class KeyValueCache {
 public:
  // For `layers` layers and up to `capacity` tokens: one row of each width for a token. A model
  // with packed projections keeps them whole, with value_width 0.
  struct Widths {
    std::int64_t key = 0;
    std::int64_t value = 0;
  };
  KeyValueCache(std::int64_t layers, std::int64_t capacity, Widths widths, DType dtype,
                Device device);

  [[nodiscard]] std::int64_t length() const { return length_; }
  [[nodiscard]] std::int64_t capacity() const { return capacity_; }
  // Writes the rows [1, T, width] of the next T tokens of a layer, and returns all rows of the
  // layer, including these.
  CachedRows append(std::int64_t layer, const Tensor& keys, const Tensor& values = {});
  // Call after T tokens have passed all layers.
  void advance(std::int64_t tokens);
  void clear() { length_ = 0; }

 private:
  struct Layer {
    Tensor keys, values;
  };

  std::int64_t capacity_;
  std::int64_t length_ = 0;
  std::vector<Layer> layers_;
};

// Rows [first, first + count) of [.., rows, width] as [1, count, width], over the same memory.
Tensor rows_of(const Tensor& x, std::int64_t first, std::int64_t count);

// Sequences that a model continues together: one token of each, or several tokens of one.
class DecodingBatch {
 public:
  // ids [sequences, T]; T is 1 for several sequences.
  DecodingBatch(const Tensor& ids, std::vector<KeyValueCache*> caches);

  [[nodiscard]] const Tensor& ids() const { return ids_; }
  [[nodiscard]] std::int64_t tokens() const { return ids_.size(1); }
  // Tokens of the longest sequence, including the batch's.
  [[nodiscard]] std::int64_t longest() const;
  // int32 [sequences, T].
  [[nodiscard]] Tensor positions(Device device) const;
  // The results of attend(cache, place in the batch), [1, T, width], for each sequence,
  // concatenated.
  template <class Attend>
  [[nodiscard]] Tensor attend_each(Attend&& attend) const {
    if (caches_.size() == 1) return attend(*caches_.front(), std::int64_t{0});
    Tensor whole;
    for (std::size_t i = 0; i < caches_.size(); ++i) {
      const auto place = static_cast<std::int64_t>(i);
      const Tensor one = attend(*caches_[i], place);
      if (!whole.defined()) {
        whole = Tensor::empty({static_cast<std::int64_t>(caches_.size()), 1, one.size(2)},
                              one.dtype(), one.device());
      }
      rows_of(whole, place, 1).copy_from(one);
    }
    return whole;
  }
  // The last token's row of each sequence, [sequences, 1, width].
  [[nodiscard]] Tensor last_rows(const Tensor& x) const;
  void advance() const;

 private:
  Tensor ids_;
  std::vector<KeyValueCache*> caches_;
};

}  // namespace tessera::models
