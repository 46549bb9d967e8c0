// Batches that are read and put together ahead of the step that takes them, on a worker.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>

#include "engine/device/stream.h"
#include "tasks/batch_order.h"
#include "tasks/task.h"

namespace tessera::tasks {

class PreparedQueue {
 public:
  // A rank's part of every batch.
  struct Share {
    int rank = 0;
    int world_size = 1;
    std::int64_t batch_size = 1;  // of the rank
  };
  // Batches from `from` on. `task` and `order` live longer.
  PreparedQueue(const Task& task, const BatchOrder& order, const Share& share, DataPosition from);
  ~PreparedQueue() = default;
  PreparedQueue(const PreparedQueue&) = delete;
  PreparedQueue& operator=(const PreparedQueue&) = delete;

  struct Taken {
    BatchOrder::Batch batch;  // of all ranks
    std::unique_ptr<Prepared> prepared;
  };
  // The next one; throws what reading it threw. Batches before it are given back to nobody.
  Taken take();
  // How long take() has stood still, in all.
  [[nodiscard]] double waited_seconds() const { return waited_seconds_; }

 private:
  struct Slot {
    BatchOrder::Batch batch;
    std::unique_ptr<Prepared> prepared;
    Event ready;
  };
  void fill();

  static constexpr std::size_t depth = 4;  // batches ahead: what evens out long and short ones
  const Task& task_;
  const BatchOrder& order_;
  Share share_;
  DataPosition next_;  // of the batch that is prepared next
  std::deque<std::shared_ptr<Slot>> slots_;
  double waited_seconds_ = 0;
  Stream worker_{"data"};  // goes first: it may be working on a slot
};

}  // namespace tessera::tasks
