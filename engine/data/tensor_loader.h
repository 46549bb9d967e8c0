// Batches of pairs of tensors, in an order that does not depend on the number of ranks.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "engine/tensor.h"

namespace tessera::data {

// inputs [N, ...] and targets [N, ...], on the CPU: sample i is row i of both.
struct TensorDataset {
  Tensor inputs;
  Tensor targets;
};

// Throws std::logic_error or Error(data) for samples that are not that.
void check_samples(const TensorDataset& samples);
// These rows of a tensor on the CPU, in this order, on the device.
Tensor take_rows(const Tensor& source, const std::vector<std::int64_t>& rows, Device device);

struct TensorLoaderOptions {
  std::int64_t batch_size = 1;  // samples of one rank in a step
  bool shuffle = false;
  std::uint64_t seed = 0;
  bool drop_last = false;  // else an epoch's last batches are filled up with its first samples
};

// One iteration is one epoch; each begin() after the first starts the next epoch. A loader, its
// copies and the results of for_rank() share this count, separately for each rank, so ranks that
// are threads may share one loader. Taking a batch also sets its position in the generator
// (engine/random.h). Batches are on the default device of the thread that takes them.
class TensorLoader {
 public:
  TensorLoader(TensorDataset dataset, const TensorLoaderOptions& options);

  // The same data, as one rank of a world sees it.
  [[nodiscard]] TensorLoader for_rank(int rank, int world_size) const;
  [[nodiscard]] std::int64_t steps_per_epoch() const;
  // The next begin() starts epoch `epoch`, counted from 0. Use it to resume a run.
  void set_epoch(std::int64_t epoch) { epochs_->set_next({rank_, world_size_}, epoch); }
  // The number of samples in the last batch that are not filling.
  [[nodiscard]] std::int64_t real_samples() const { return real_samples_; }

  class Iterator {
   public:
    std::pair<Tensor, Tensor> operator*() const { return loader_->batch(step_); }
    Iterator& operator++() {
      ++step_;
      return *this;
    }
    bool operator!=(const Iterator& other) const { return step_ != other.step_; }

   private:
    friend class TensorLoader;
    Iterator(TensorLoader* loader, std::int64_t step) : loader_(loader), step_(step) {}
    TensorLoader* loader_;
    std::int64_t step_;
  };
  Iterator begin();
  Iterator end() { return {this, steps_per_epoch()}; }

 private:
  // The next epoch of each (rank, world size).
  class Epochs {
   public:
    using Rank = std::pair<int, int>;
    std::int64_t take(Rank rank);
    void set_next(Rank rank, std::int64_t epoch);

   private:
    std::mutex mutex_;
    std::map<Rank, std::int64_t> next_;
  };

  std::pair<Tensor, Tensor> batch(std::int64_t step);
  [[nodiscard]] std::int64_t sample(std::int64_t position) const;

  TensorDataset dataset_;
  TensorLoaderOptions options_;
  int rank_ = 0;
  int world_size_ = 1;
  std::shared_ptr<Epochs> epochs_ = std::make_shared<Epochs>();
  std::int64_t epoch_ = -1;  // of the last begin()
  std::int64_t real_samples_ = 0;
  std::vector<std::int64_t> order_;  // of this epoch; empty: not shuffled
};

}  // namespace tessera::data
