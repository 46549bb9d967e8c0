// What a training run asks of what it trains: the module to shard, batches by the numbers of their
// samples, their loss, an evaluation, and what a saved folder holds beside the weights. A task is a
// file of its own beside next_token.h; the run knows none of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/state/scalars.h"
#include "models/model.h"
#include "sharding/context/context.h"

namespace tessera::tasks {

// What a rank computes with in a micro-batch, read and put together, on the host.
struct Prepared {
  Prepared() = default;
  virtual ~Prepared() = default;
  Prepared(const Prepared&) = delete;
  Prepared& operator=(const Prepared&) = delete;

  std::int64_t samples = 0;
  std::int64_t tokens = 0;  // that are no padding
};

// What an evaluation found: numbers by name, the one that says which checkpoint is best first.
struct Evaluation {
  std::vector<std::pair<std::string, double>> numbers;
  bool higher_is_better = false;
  [[nodiscard]] double best_by() const { return numbers.front().second; }
};

class Task {
 public:
  Task() = default;
  virtual ~Task() = default;
  Task(const Task&) = delete;
  Task& operator=(const Task&) = delete;

  // What is trained, and with it sharded; on `meta` until then.
  [[nodiscard]] virtual nn::Module& module() = 0;
  // The model in it that folders hold: its configuration and the names of its tensors.
  [[nodiscard]] virtual const models::Model& model() const = 0;
  // What a saved folder holds beside weights of this dtype, by name.
  [[nodiscard]] virtual std::map<std::string, std::string> files(DType weights) const = 0;
  // Which tensors go into folders of their own: SaveOptions::tensor_folders.
  [[nodiscard]] virtual std::set<std::string> tensor_folders() const { return {}; }
  // Collective. Fills a pretrained model's tensors from a folder that transformers or Sentence
  // Transformers saved; what the folder is not asked for keeps its initial values.
  virtual void load_weights(const std::string& folder,
                            std::vector<checkpoint::LogicalTensor>& tensors) const {
    const models::HuggingFaceNames names = model().hugging_face_names();
    checkpoint::load_hugging_face(folder, tensors, names.ignored, names.aliases);
  }

  // Samples of an epoch of each training data set: none on a planned device, where no data is read.
  // A sample's number counts on over epochs.
  [[nodiscard]] virtual std::vector<std::int64_t> samples_per_epoch() const = 0;
  // Reads these samples. On any thread, and on several at a time.
  [[nodiscard]] virtual std::unique_ptr<Prepared> prepare(
      std::size_t data_set, std::span<const std::int64_t> samples) const = 0;
  // What so many samples would be at their longest, for plans.
  [[nodiscard]] virtual std::unique_ptr<Prepared> blank(std::int64_t samples) const = 0;
  // The mean loss of a batch, where the rank computes. Collective where the loss is.
  [[nodiscard]] virtual Tensor loss(const Prepared& batch, const Context& context) = 0;
  // "8 x 256 tokens": what a rank's batch of so many samples is, for people.
  [[nodiscard]] virtual std::string describe_batch(std::int64_t samples) const = 0;

  // Collective: the numbers are those of all ranks together. None without data for it.
  [[nodiscard]] virtual bool evaluates() const = 0;
  [[nodiscard]] virtual Evaluation evaluate(const Context& context, std::int64_t batch_size) = 0;

  // What a position in the data means nothing without: saved with it, and compared where it is
  // taken up again. Throws Error(data) or Error(configuration) that says what has changed.
  virtual void remember_data(Scalars& scalars) const = 0;
  virtual void check_data(const Scalars& scalars, const std::string& folder) const = 0;
};

}  // namespace tessera::tasks
