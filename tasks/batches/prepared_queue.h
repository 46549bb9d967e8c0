// Batches that a worker reads and assembles before a step needs them.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "engine/device/stream.h"
#include "tasks/batch_order.h"
#include "tasks/task.h"

namespace tessera::tasks {

class PreparedQueue {
 public:
  // A rank's part of every batch.
  struct Share {
    std::int64_t first = 0;    // the place of its first sample in a batch of all ranks
    std::int64_t samples = 1;  // of the rank
    std::int64_t all = 1;      // of all ranks
    // Set: the samples are dealt by their cost (deal_by_cost()), and `first` and `samples` do not
    // count.
    struct Deal {
      std::int64_t part = 0, parts = 1;
      std::int64_t most_places = 0;  // of a part
    };
    std::optional<Deal> deal = {};
  };
  // Batches from `from` on. `task` and `order` must outlive the queue.
  PreparedQueue(const Task& task, const BatchOrder& order, const Share& share, DataPosition from);
  ~PreparedQueue() = default;
  PreparedQueue(const PreparedQueue&) = delete;
  PreparedQueue& operator=(const PreparedQueue&) = delete;

  struct Taken {
    BatchOrder::Batch batch;  // of all ranks
    std::unique_ptr<Prepared> prepared;
  };
  // The next batch; throws the error of reading it. Batches before it cannot be read again.
  Taken take();
  // Total time that take() has waited.
  [[nodiscard]] double waited_seconds() const { return waited_seconds_; }

 private:
  struct Slot {
    BatchOrder::Batch batch;
    std::unique_ptr<Prepared> prepared;
    Event ready;
  };
  void fill();
  // The numbers of this rank's samples.
  [[nodiscard]] std::vector<std::int64_t> own_samples(const BatchOrder::Batch& batch) const;

  static constexpr std::size_t depth = 4;  // batches ahead: evens out long and short ones
  const Task& task_;
  const BatchOrder& order_;
  Share share_;
  DataPosition next_;  // of the batch that is prepared next
  std::deque<std::shared_ptr<Slot>> slots_;
  double waited_seconds_ = 0;
  Stream worker_{"data"};  // destroyed first: it may be filling a slot
};

}  // namespace tessera::tasks
