// Which samples make the batches of a run: over several data sets, over epochs, and at an epoch's
// end. A function of the position alone, which belongs to no number of ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tessera::tasks {

// Each batch is of one data set: of all in turn, or drawn in proportion to their samples.
enum class Mix : std::uint8_t { round_robin, by_size };

struct BatchOrderOptions {
  std::vector<std::int64_t> samples = {};  // of an epoch of each data set
  Mix mix = Mix::round_robin;
  std::uint64_t seed = 0;  // of the draws
  // An epoch whose samples are no multiple of the batch: its last batch goes on with the next
  // epoch's first samples, or with even_batches is filled up with the epoch's own first ones
  // (Accelerate's way), or with drop_last is left out.
  bool even_batches = false;
  bool drop_last = false;
};

// Where a run stands in its data.
struct DataPosition {
  std::int64_t batches = 0;        // taken so far, of all data sets
  std::vector<std::int64_t> next;  // of each data set the number of its next sample
  friend bool operator==(const DataPosition&, const DataPosition&) = default;
};

class BatchOrder {
 public:
  explicit BatchOrder(BatchOrderOptions options);

  struct Batch {
    std::size_t data_set = 0;
    std::int64_t first = 0;  // the number of its first sample
    std::int64_t size = 0;
  };
  [[nodiscard]] DataPosition begin() const;
  // The batch of `size` samples, those of all ranks together, at a position. Throws Error(data)
  // where drop_last leaves none.
  [[nodiscard]] Batch at(const DataPosition& position, std::int64_t size) const;
  // The position behind it.
  void advance(DataPosition& position, const Batch& batch) const;
  // The numbers of `count` of its samples from the one at `offset` on: a rank's share.
  [[nodiscard]] std::vector<std::int64_t> share(const Batch& batch, std::int64_t offset,
                                                std::int64_t count) const;

 private:
  [[nodiscard]] std::size_t data_set_of(std::int64_t batch) const;

  BatchOrderOptions options_;
};

}  // namespace tessera::tasks
