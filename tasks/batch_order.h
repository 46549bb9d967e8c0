// The samples of a run's batches: over several data sets, over epochs, and at an epoch's end. They
// depend only on the position, not on the number of ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/state/scalars.h"

namespace tessera::tasks {

// Each batch is from one data set: from all in turn, or drawn in proportion to their samples.
enum class Mix : std::uint8_t { round_robin, by_size };

struct BatchOrderOptions {
  std::vector<std::int64_t> samples = {};  // of an epoch, for each data set
  Mix mix = Mix::round_robin;
  std::uint64_t seed = 0;  // of the draws
  // If an epoch's samples are not a multiple of the batch, its last batch continues with the next
  // epoch's first samples; with even_batches it is filled with the epoch's own first samples, as in
  // Accelerate; with drop_last it is left out.
  bool even_batches = false;
  bool drop_last = false;
};

// Compares the settings on which the order of a run's data depends with those of the run that it
// resumes.
class OrderComparison {
 public:
  // `key` is the recipe's, `name` the manifest's.
  void add(const char* key, const Scalars& there, const char* name, std::int64_t here);
  void add(const char* key, const Scalars& there, const char* name, bool here);
  // Error(configuration) with the settings that differ. `folder` is the other run's.
  void check(const std::string& folder) const;

 private:
  std::vector<std::string> changed_;
};

// The position of a run in its data.
struct DataPosition {
  std::int64_t batches = 0;        // taken so far, of all data sets
  std::vector<std::int64_t> next;  // for each data set, the number of its next sample
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
  // The batch of `size` samples of all ranks together at a position. Throws Error(data) if
  // drop_last leaves no batch.
  [[nodiscard]] Batch at(const DataPosition& position, std::int64_t size) const;
  // Moves to the position after the batch.
  void advance(DataPosition& position, const Batch& batch) const;
  // The numbers of `count` samples of the batch from `offset` on: a rank's share.
  [[nodiscard]] std::vector<std::int64_t> share(const Batch& batch, std::int64_t offset,
                                                std::int64_t count) const;

 private:
  [[nodiscard]] std::size_t data_set_of(std::int64_t batch) const;

  BatchOrderOptions options_;
};

}  // namespace tessera::tasks
