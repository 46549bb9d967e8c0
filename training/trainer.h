// A training run built from a recipe: model, optimizer, data and position, and the steps over them.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/save/async_save.h"
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

// Where a run stands. The same on every rank; belongs to no world size.
struct TrainingPosition {
  std::int64_t steps = 0;  // optimizer steps done
  // Batches of all ranks taken, which key dropout, and where the next ones begin.
  tasks::DataPosition data;
};

class TrainingRun {
 public:
  // Collective. Builds everything; nothing is read from a checkpoint yet. Of a pretrained folder of
  // steps the newest that is whole is taken. On a planned device (sharding/plan/plan.h) no data is
  // read: the run can take steps, and nothing else.
  TrainingRun(const Recipe& recipe, Context context);

  // Collective. Goes on from what the recipe's `resume` says, if there is something; a restart by
  // the launcher from the newest save of this launch, whatever it says. Notes for the user come
  // back.
  std::vector<std::string> resume();
  // Collective. Makes the checkpoints' folder, if there will be any: a place that cannot be
  // written, or has no room for a single save, is said before the first step, not at the first
  // save. Notes for the user come back.
  std::vector<std::string> prepare_folder();

  // Collective. One optimizer step over gradient_accumulation_steps micro-batches. A loss or
  // gradient that is not finite is an Error(numeric) that leaves parameters as they were; in fp16,
  // gradients that overflow are dropped. Nothing comes back where a signal to stop has reached a
  // rank between two micro-batches: then no rank takes the step, and the position stays.
  std::optional<StepMetrics> step();
  // Collective. What the task's evaluation finds on the recipe's validation data.
  tasks::Evaluation evaluate();
  // Collective. Writes a checkpoint of the present position, or with checkpoint.async begins to;
  // `found` is the evaluation of this position, for checkpoint.keep_best. Notes for the user come
  // back; a warning once, however many saves repeat it.
  std::vector<std::string> save(const std::optional<tasks::Evaluation>& found = {});
  // Of a checkpoint that was being written while training went on, notes when it has come to its
  // end; the second waits for that, and throws what it failed with. (Each step throws it as well.)
  std::vector<std::string> finished_save();
  std::vector<std::string> finish_save();
  // Collective. What the recipe's checkpoint.export asks for: a note when there is such.
  std::optional<std::string> export_weights();

  [[nodiscard]] const TrainingPosition& position() const { return position_; }
  // The step's folder that resume() went on from, or nothing.
  [[nodiscard]] const std::string& resumed_from() const { return resumed_from_; }
  [[nodiscard]] bool evaluates() const { return task_->evaluates(); }
  // The largest signal number that a rank noted until the end of the last step, or until it was
  // abandoned (agreed on by all).
  [[nodiscard]] int interruption() const { return interruption_; }
  // Whether a rank was asked for a save since the last one that it was asked for (SIGUSR1).
  [[nodiscard]] bool save_requested() const { return save_requests_ > save_requests_before_; }
  [[nodiscard]] std::string describe() const;
  [[nodiscard]] std::int64_t parameters() const;
  [[nodiscard]] std::int64_t trained_parameters() const;
  // Each step is recorded from now on (sharding/profiler/step_recorder.h), and what belongs to it
  // until the next one.
  void record() { recorder_ = sharded_->record(); }
  [[nodiscard]] StepRecorder& recorder() const { return *recorder_; }  // after record()
  // What metrics have of all ranks, of this one.
  [[nodiscard]] std::int64_t peak_bytes();
  [[nodiscard]] const Context& context() const { return context_; }
  // What this rank's steps took so far, at most.
  [[nodiscard]] RankMemory memory() const { return measure_memory(context_); }

 private:
  void load_pretrained();
  // Collective. Refuses a step, or the newest of a folder of steps, that this run cannot go on
  // from, by the keys of the recipe that differ. Notes whether it has the pooler that the run
  // keeps; where it has none (older versions did not keep it), loads model.pretrained's.
  void look_at_step(const std::string& path);
  // Of an adapter's run the checkpoint has the adapter alone.
  [[nodiscard]] checkpoint::StateNames state_names() const;
  [[nodiscard]] checkpoint::StateNames names_to_load() const;
  void remember_adapter(SaveOptions& options) const;
  void check_adapter(const Scalars& scalars, const std::string& folder) const;
  // What a save writes: tensors alone, the small files beside them are not worth a word.
  struct SaveBytes {
    std::uint64_t model = 0, optimizer = 0;
    [[nodiscard]] std::uint64_t total() const { return model + optimizer; }
  };
  [[nodiscard]] SaveBytes bytes_of_save() const;
  [[nodiscard]] std::string check_room() const;
  [[nodiscard]] bool saves() const {
    return recipe_.checkpoint.dir && recipe_.checkpoint.every > 0;
  }
  [[nodiscard]] std::map<std::string, std::string> files_beside_weights() const;
  std::vector<std::string> note_saved(const checkpoint::Saved& saved, const std::string& how);
  bool resume_restarted(int restart, std::vector<std::string>& notes);
  // The step's folder, or nothing when there is none.
  std::optional<std::string> resume_newest(const std::string& dir, const checkpoint::Search& search,
                                           std::vector<std::string>& notes);
  void resume_from(const std::string& path, std::vector<std::string>& notes);
  void start_line(const std::string& from, std::vector<std::string>& notes);
  // Both say what was done.
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
  // For the lane of checkpoints, from `seconds` ago until now.
  void record_save(double seconds);

  Recipe recipe_;
  Context context_;
  std::unique_ptr<tasks::Task> task_;
  std::optional<nn::LoraOptions> adapter_;  // where adapters are trained
  std::optional<ShardedModel> sharded_;
  std::shared_ptr<StepRecorder> recorder_;  // null: nobody wants to know
  std::unique_ptr<optim::Optimizer> optimizer_;
  std::optional<LossScaler> scaler_;  // fp16
  optim::Schedule schedule_;
  std::optional<tasks::BatchOrder> order_;
  std::optional<tasks::PreparedQueue> batches_;  // from the first step on
  std::int64_t batch_size_ = 0;
  TrainingPosition position_;
  std::string resumed_from_;
  bool step_lacks_pooler_ = false;
  int interruption_ = 0;
  std::int64_t save_requests_ = 0;
  std::int64_t save_requests_before_ = 0;
  checkpoint::Line line_;
  std::set<std::string> told_;  // warnings of saves
  std::int64_t peak_resident_ = 0;
  std::map<std::string, std::string> model_files_;  // rank 0's: of a pretrained folder
  std::unique_ptr<AsyncSaver> saver_;               // goes first: it may be writing
  bool saver_ready_ = false;
};

}  // namespace tessera::cli
