// The interface between a training run and what it trains: the module to shard, batches by the
// numbers of their samples, their loss, an evaluation, and the files of a saved folder besides the
// weights. The run does not know the tasks. A program may have tasks of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/state/scalars.h"
#include "engine/nn/module.h"
#include "models/model.h"
#include "sharding/context/context.h"
#include "sharding/context_parallel.h"
#include "sharding/runtime/statistics.h"

namespace tessera::tasks {

// The host data of a rank's micro-batch.
struct Prepared {
  Prepared() = default;
  virtual ~Prepared() = default;
  Prepared(const Prepared&) = delete;
  Prepared& operator=(const Prepared&) = delete;

  std::int64_t samples = 0;
  std::int64_t tokens = 0;  // without padding
  // If the task weighs batches: the number of values that its loss is the mean of, as labels that
  // are not ignored.
  std::int64_t weight = 0;
};

// The result of an evaluation: numbers by name; the first one decides which checkpoint is best.
struct Evaluation {
  std::vector<std::pair<std::string, double>> numbers;
  bool higher_is_better = false;
  // The first number. A std::logic_error without one.
  [[nodiscard]] double best_by() const {
    TESSERA_REQUIRE(!numbers.empty(),
                    "an evaluation without numbers: Task::evaluate() returns at least one");
    return numbers.front().second;
  }
};

class Task {
 public:
  Task() = default;
  virtual ~Task() = default;
  Task(const Task&) = delete;
  Task& operator=(const Task&) = delete;

  // The trained module, which the run shards; on `meta` until then.
  [[nodiscard]] virtual nn::Module& module() = 0;
  // Files of a saved folder besides weights of this dtype, by name.
  [[nodiscard]] virtual std::map<std::string, std::string> files(DType /*weights*/) const {
    return {};
  }
  // The folders that have tensor files of their own: SaveOptions::tensor_folders.
  [[nodiscard]] virtual std::set<std::string> tensor_folders() const { return {}; }

  // Samples of an epoch of each training data set; none on a planned device, where no data is read.
  // A sample's number counts on over epochs.
  [[nodiscard]] virtual std::vector<std::int64_t> samples_per_epoch() const = 0;
  // Reads these samples. May run on any thread, and on several at a time.
  [[nodiscard]] virtual std::unique_ptr<Prepared> prepare(
      std::size_t data_set, std::span<const std::int64_t> samples) const = 0;
  // The longest batch that so many samples could be, for plans.
  [[nodiscard]] virtual std::unique_ptr<Prepared> blank(std::int64_t samples) const = 0;
  // Comes before the losses of each step, the first of which is step 1, except in a plan, which is
  // for the largest step. True if the batches of this step have another shape than those before.
  [[nodiscard]] virtual bool begin_step(std::int64_t /*step*/) { return false; }
  // The mean loss of a batch, on the rank's device. Collective if the loss is. Of a batch with the
  // weight 0 it is finite.
  [[nodiscard]] virtual Tensor loss(const Prepared& batch, const Context& context) = 0;
  // Follows each loss() with its value, before its backward: the task releases what it has kept of
  // that batch to explain a value that is not finite. The cause if it is outside of the trained
  // module, as the end of "the loss is not finite, because": "the teacher's logits are not". Not
  // collective.
  [[nodiscard]] virtual std::string after_loss(double /*value*/) { return {}; }
  // Numbers beside the loss, such as rewards: their names for logs, and their means over the batch
  // of the last loss(), in the same order. A step's come from them as its loss comes from those of
  // its batches. The names are the same on every rank.
  [[nodiscard]] virtual std::vector<std::string> metric_names() const { return {}; }
  [[nodiscard]] virtual std::vector<double> metrics() const { return {}; }
  // How a step's loss comes from the means of its batches (micro-batches of all ranks). true: it is
  // the mean over all that they are means of, each batch counts by its Prepared::weight, and loss
  // and gradient do not depend on how the samples are split. false: each batch counts by its
  // samples, which is the same where all samples have equally many labels. The same on every rank.
  [[nodiscard]] virtual bool weighs_batches() const { return false; }
  // For tasks that weigh batches and whose rows are padded to the longest of a batch: the most
  // places of a sample, the places of these, and what a row of so many costs
  // (TrainerOptions::deal_by_cost). 0: all samples cost the same.
  [[nodiscard]] virtual std::int64_t most_places() const { return 0; }
  [[nodiscard]] virtual std::vector<std::int64_t> places(
      std::size_t /*data_set*/, std::span<const std::int64_t> /*samples*/) const {
    return {};
  }
  [[nodiscard]] virtual double row_cost(std::int64_t places) const {
    return static_cast<double>(places);
  }
  // Why ranks must have equally many samples, as the end of "the ranks' parts must be equal: ": the
  // loss is not a mean over samples or labels, so that another split is another loss, or its
  // collectives need it. Empty: they may have any numbers.
  [[nodiscard]] virtual std::string needs_equal_batches() const { return {}; }
  // From now on `ranks` hold each sequence together (TrainerOptions::context_parallel): prepare()
  // and blank() count the tokens and the weight of this rank's part, loss() is the mean over it,
  // and evaluate() is that of whole sequences. Comes before the data. The result is empty, or why
  // the task cannot, as the end of "context_parallel: ".
  [[nodiscard]] virtual std::string share_sequences(
      const std::shared_ptr<const ContextParallel>& /*ranks*/) {
    return "its loss needs whole sequences on each rank";
  }
  // The communication of loss() that is not the trained module's: a teacher's gathers.
  [[nodiscard]] virtual CommunicationStatistics communication() const { return {}; }
  // Describes a rank's batch of so many samples for the user: "8 x 256 tokens".
  [[nodiscard]] virtual std::string describe_batch(std::int64_t samples) const {
    return std::to_string(samples);
  }

  // Counts of the data by name, for the run's summary, such as the samples that are left out.
  [[nodiscard]] virtual std::vector<std::pair<std::string, std::int64_t>> data_counts() const {
    return {};
  }

  // Notes about the data, which one rank prints. It may read data files again.
  [[nodiscard]] virtual std::vector<std::string> data_notes() const { return {}; }

  // Collective: the numbers are those of all ranks together. Empty without data for it. A task
  // whose evaluation takes long calls between_batches() in it.
  [[nodiscard]] virtual bool evaluates() const { return false; }
  [[nodiscard]] virtual Evaluation evaluate(const Context& /*context*/,
                                            std::int64_t /*batch_size*/) {
    return {};
  }

  // For the run: what between_batches() does.
  void set_between_batches(std::function<void()> between) { between_ = std::move(between); }

  // The facts that give a position in the data its meaning: saved with it, and compared when a run
  // resumes. check_data() throws Error(data) or Error(configuration) that says what has changed.
  virtual void remember_data(Scalars& /*scalars*/) const {}
  virtual void check_data(const Scalars& /*scalars*/, const std::string& /*folder*/) const {}

 protected:
  // Collective: in evaluate(), at places that all ranks reach, as before each batch. It ends the
  // evaluation by an exception, on all ranks at the same place, if a signal asks the run to stop.
  void between_batches() const {
    if (between_) between_();
  }

 private:
  std::function<void()> between_;
};

// A task whose module is, or holds, a model that folders of transformers can hold.
class ModelTask : public Task {
 public:
  // The model that folders hold: its configuration and the names of its tensors.
  [[nodiscard]] virtual const models::Model& model() const = 0;
  // Collective. Fills a pretrained model's tensors from a folder that transformers or Sentence
  // Transformers saved. Tensors that are not read from the folder keep their initial values.
  virtual void load_weights(const std::string& folder,
                            std::vector<checkpoint::LogicalTensor>& tensors) const {
    const models::HuggingFaceNames names = model().hugging_face_names();
    checkpoint::load_hugging_face(folder, tensors, names.ignored, names.aliases);
  }
};

}  // namespace tessera::tasks
