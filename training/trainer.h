// A training run built from a recipe: model, optimizer, data and position, and its steps.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/save/async_save.h"
#include "checkpoint/save/model_files.h"
#include "engine/optim/optimizer.h"
#include "engine/optim/schedule.h"
#include "sharding/fully_shard.h"
#include "sharding/plan/plan.h"
#include "sharding/profiler/step_recorder.h"
#include "tasks/batch_order.h"
#include "tasks/prepared_queue.h"
#include "tasks/task.h"
#include "training/recipe/recipe.h"
#include "training/step_metrics.h"

namespace tessera::cli {

// The position of a run. It is the same on every rank and does not depend on the world size.
struct TrainingPosition {
  std::int64_t steps = 0;  // optimizer steps done
  // Batches that all ranks have taken (they key dropout), and where the next ones begin.
  tasks::DataPosition data;
};

class TrainingRun {
 public:
  // Collective. Builds everything; reads no checkpoint yet. For a pretrained folder of steps it
  // takes the newest complete step. On a planned device (sharding/plan/plan.h) it reads no data:
  // the run can take steps, and nothing else.
  TrainingRun(const Recipe& recipe, Context context);

  // Collective. Goes on from the step that the recipe's `resume` names, if there is one. After a
  // restart by the launcher it goes on from the newest save of this launch instead. Returns notes
  // for the user.
  std::vector<std::string> resume();
  // Collective. Makes the checkpoints' folder if the run saves. If the folder cannot be written, or
  // has no room for a single save, it fails before the first step, not at the first save. Returns
  // notes for the user.
  std::vector<std::string> prepare_folder();

  // Collective. One optimizer step over gradient_accumulation_steps micro-batches. A loss or
  // gradient that is not finite is an Error(numeric) that leaves the parameters unchanged; in fp16,
  // gradients that overflow are dropped. Returns nothing if a signal to stop has reached a rank
  // between two micro-batches: then no rank takes the step, and the position stays.
  std::optional<StepMetrics> step();
  // Collective. The result of the task's evaluation on the recipe's validation data.
  tasks::Evaluation evaluate();
  // Collective. Writes a checkpoint of the present position, or with checkpoint.async begins to
  // write it. `found` is the evaluation of this position, for checkpoint.keep_best. Returns notes
  // for the user; each warning only once.
  std::vector<std::string> save(const std::optional<tasks::Evaluation>& found = {});
  // Notes about a checkpoint that is written while training goes on. The first returns them if the
  // writing has ended. The second waits for the end and throws the error of the writing, if there
  // was one. (Each step throws it as well.)
  std::vector<std::string> finished_save();
  std::vector<std::string> finish_save();
  // Collective. Does what the recipe's checkpoint.export asks for, and returns a note if it does.
  std::optional<std::string> export_weights();

  [[nodiscard]] const TrainingPosition& position() const { return position_; }
  // The folder of the step that resume() went on from, or an empty text.
  [[nodiscard]] const std::string& resumed_from() const { return resumed_from_; }
  // Whether the recipe asks for checkpoints.
  [[nodiscard]] bool saves() const {
    return recipe_.checkpoint.dir && recipe_.checkpoint.every > 0;
  }
  [[nodiscard]] bool evaluates() const { return task_->evaluates(); }
  // The largest signal number that a rank noted until the end of the last step, or until it was
  // abandoned (agreed on by all).
  [[nodiscard]] int interruption() const { return interruption_; }
  // True if a rank has got a new request for a save (SIGUSR1).
  [[nodiscard]] bool save_requested() const { return save_requests_ > save_requests_before_; }
  [[nodiscard]] std::string describe() const;
  [[nodiscard]] std::int64_t parameters() const;
  [[nodiscard]] std::int64_t trained_parameters() const;
  // From now on the run records each step (sharding/profiler/step_recorder.h), with everything
  // until the next step.
  void record() { recorder_ = sharded_->record(); }
  [[nodiscard]] StepRecorder& recorder() const { return *recorder_; }  // after record()
  // This rank's part of the metrics' peak_bytes.
  [[nodiscard]] std::int64_t peak_bytes();
  [[nodiscard]] const Context& context() const { return context_; }
  // The most memory that this rank's steps have used so far.
  [[nodiscard]] RankMemory memory() const { return measure_memory(context_); }

 private:
  void load_pretrained();
  // Collective. Refuses a step, or the newest step of a folder, that this run cannot go on from,
  // with the recipe's keys that differ. Notes if the step has the pooler that the run keeps. If it
  // has none (older versions did not keep it), loads the pooler of model.pretrained.
  void look_at_step(const std::string& path);
  // The checkpoint of a run of adapters has the adapter alone.
  [[nodiscard]] checkpoint::StateNames state_names() const;
  [[nodiscard]] checkpoint::StateNames names_to_load() const;
  void remember_adapter(SaveOptions& options) const;
  void check_adapter(const Scalars& scalars, const std::string& folder) const;
  // The bytes that a save writes: tensors alone. The small files beside them do not matter.
  struct SaveBytes {
    std::uint64_t model = 0, optimizer = 0;
    [[nodiscard]] std::uint64_t total() const { return model + optimizer; }
  };
  [[nodiscard]] SaveBytes bytes_of_save() const;
  [[nodiscard]] std::string check_room() const;
  [[nodiscard]] std::map<std::string, std::string> files_beside_weights() const;
  std::vector<std::string> note_saved(const checkpoint::Saved& saved, const std::string& how);
  bool resume_restarted(int restart, std::vector<std::string>& notes);
  // The step's folder, or nullopt if there is none.
  std::optional<std::string> resume_newest(const std::string& dir,
                                           const checkpoint::CheckpointQuery& search,
                                           std::vector<std::string>& notes);
  void resume_from(const std::string& path, std::vector<std::string>& notes);
  void start_line(const std::string& from, std::vector<std::string>& notes);
  // Both return a note.
  std::string take_position(const Scalars& scalars, const std::string& folder);
  void take_data_position(const Scalars& scalars, const std::string& folder);
  std::string start_data_anew(const std::string& folder, std::int64_t steps);
  struct MicroBatch {
    double loss = 0;
    std::int64_t tokens = 0;
  };
  MicroBatch forward_backward(tasks::DataPosition& data, std::int64_t accumulated);
  tasks::PreparedQueue::Taken next_batch(const tasks::DataPosition& data);
  // Sums `mine` over the ranks.
  MicroBatch agree(StepMetrics& metrics, const MicroBatch& mine);
  // Collective. Whether a rank noted a signal to stop; all ranks get the same answer.
  bool agree_to_stop();
  void abandon_step();
  bool may_update(StepMetrics& metrics, double norm);
  [[nodiscard]] std::int64_t cached_bytes() const;
  // For the trace's lane of checkpoints, from `seconds` ago until now.
  void record_save(double seconds);

  Recipe recipe_;
  Context context_;
  std::unique_ptr<tasks::Task> task_;
  std::optional<nn::LoraOptions> adapter_;  // set if adapters are trained
  std::optional<ShardedModel> sharded_;
  std::shared_ptr<StepRecorder> recorder_;  // null if no log needs it
  std::unique_ptr<optim::Optimizer> optimizer_;
  std::optional<LossScaler> scaler_;  // fp16
  optim::Schedule schedule_;
  std::optional<tasks::BatchOrder> order_;
  std::optional<tasks::PreparedQueue> batches_;  // from the first step on
  // Micro-batches between two looks for a signal to stop, the same on all ranks: a look makes the
  // ranks wait for one another, so that there are as few as the last step's time allows.
  std::int64_t batches_per_check_ = 1;
  std::int64_t batch_size_ = 0;
  TrainingPosition position_;
  std::string resumed_from_;
  bool step_lacks_pooler_ = false;
  int interruption_ = 0;
  std::int64_t save_requests_ = 0;
  std::int64_t save_requests_before_ = 0;
  checkpoint::Line line_;
  std::set<std::string> told_;  // warnings that were printed already
  std::int64_t peak_resident_ = 0;
  checkpoint::ModelFiles model_files_;  // rank 0's: of a pretrained folder
  std::unique_ptr<AsyncSaver> saver_;   // last, so that it is destroyed first: it may be writing
  bool saver_ready_ = false;
};

}  // namespace tessera::cli
