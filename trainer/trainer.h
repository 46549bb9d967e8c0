// A training run: model, optimizer, data and position, and its steps.
//
//   ts::Trainer trainer(ts::tasks::make_tensor_task(net, samples, loss), context,
//                       {.batch_size = 32, .checkpoint = {.dir = "out"}});
//   trainer.resume();
//   while (trainer.position().steps < 1000 && trainer.step()) {
//   }
//   trainer.save();
//   trainer.finish_save();
//
// Every rank makes the collective calls in the same order, on the thread that made the trainer, and
// while the module lives: else they throw std::logic_error. An Error comes from options, data,
// files or another rank. After an exception of resume(), step() or evaluate() the run cannot go on:
// later calls throw std::logic_error. Only a run whose parameters have stayed as the last step left
// them (each call says so) may still save and export them.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "checkpoint/save/async_save.h"
#include "checkpoint/save/model_files.h"
#include "engine/optim/optimizer.h"
#include "engine/optim/schedule.h"
#include "engine/places/step_statistics.h"
#include "engine/random.h"
#include "sharding/context/loss_scaler.h"
#include "sharding/fully_shard.h"
#include "sharding/plan/plan.h"
#include "sharding/profiler/step_recorder.h"
#include "tasks/batch_order.h"
#include "tasks/batches/prepared_queue.h"
#include "tasks/task.h"
#include "trainer/events.h"
#include "trainer/options.h"
#include "trainer/rank_shares.h"
#include "trainer/run_guard.h"
#include "trainer/spikes.h"
#include "trainer/step_metrics.h"

namespace tessera {

class Pruner;  // trainer/pruning/pruner.h

// The position of a run. It is the same on every rank and does not depend on the world size.
struct TrainingPosition {
  std::int64_t steps = 0;  // optimizer steps done
  // Batches that all ranks have taken (they key dropout), and where the next ones begin.
  tasks::DataPosition data;
};

// Neither copied nor moved; a function may return one that it makes.
class Trainer {
 public:
  // Collective. Shards the task's module and builds everything; reads no checkpoint yet. The
  // thread's seed (ts::manual_seed) decides initial values and dropout: set it before the module is
  // made, to the same number on every rank. On a planned device (sharding/plan/plan.h) the run can
  // take steps, and nothing else. Throws Error(configuration) for options that cannot work, and for
  // options, data (Task::samples_per_epoch, remember_data) or seeds that differ between the ranks.
  Trainer(std::unique_ptr<tasks::Task> task, Context context, TrainerOptions options);

  // Collective, once, before the first step and save. Goes on from the step that checkpoint.resume
  // names, if there is one. After a restart by the launcher it goes on from the newest save of this
  // launch instead. A program that does not call it begins anew, as with checkpoint.resume "never".
  RunEvents resume();
  // Collective. Makes the checkpoints' folder if the run saves. If the folder, or that of an
  // export, cannot be written or has no room for a single save, it fails before the first step, not
  // at the first save.
  RunEvents prepare_folder();

  // Collective. One optimizer step over gradient_accumulation_steps micro-batches, also after
  // TrainerOptions::steps: the loop of the program ends the run. For a step that
  // must not be used, TrainerOptions::spikes decides: an Error(numeric) that leaves the parameters
  // unchanged, or metrics with a `spike`. After a roll-back, position() is that of the checkpoint,
  // but for the data, which goes on; without a checkpoint of this run the step is skipped instead.
  // The error of an asynchronous save leaves the parameters unchanged, too; in fp16, gradients that
  // overflow are dropped. Returns nothing if a signal to stop has reached a rank between two
  // micro-batches: then no rank takes the step, and the position stays.
  std::optional<StepMetrics> step();
  // Collective. The result of the task's evaluation, which leaves the parameters unchanged; an
  // std::logic_error if the task has none (Task::evaluates()). The module has the mode that it had
  // before. Without numbers if a signal to stop has reached a rank before the end; the tasks of
  // this library look for one before each batch.
  tasks::Evaluation evaluate();
  // Collective. Writes a checkpoint of the present position, or with checkpoint.async begins to
  // write it. `found` is the evaluation of this position, for SaveOptions::keep_best. An error
  // leaves the run as it was.
  RunEvents save(const std::optional<tasks::Evaluation>& found = {});
  // The end of a checkpoint that is written while training goes on. The first returns its events if
  // the writing has ended. The second waits for the end and throws the error of the writing, if
  // there was one. (Each step throws it as well.) A program with checkpoint.async must call it
  // after its last save: the destructor can only print the error, and ts::run() then returns its
  // code.
  RunEvents finished_save();
  RunEvents finish_save();
  // Collective. Writes the weights alone into checkpoint.export_folder, if it is set.
  RunEvents export_weights();

  [[nodiscard]] const TrainingPosition& position() const { return position_; }
  // The folder of the step that resume() went on from, or an empty text.
  [[nodiscard]] const std::string& resumed_from() const { return resumed_from_; }
  // Whether the options ask for checkpoints.
  [[nodiscard]] bool saves() const {
    return !options_.checkpoint.dir.empty() && options_.checkpoint.every > 0;
  }
  [[nodiscard]] bool evaluates() const { return task_->evaluates(); }
  // How the ranks divide a micro-batch now.
  [[nodiscard]] const RankShares& shares() const { return shares_.value(); }
  // The largest signal number that a rank noted until the end of the last step, or until the step
  // or an evaluation was abandoned (agreed on by all).
  [[nodiscard]] int interruption() const { return interruption_; }
  // True if a rank has got a new request for a save (SIGUSR1).
  [[nodiscard]] bool save_requested() const { return save_requests_ > save_requests_before_; }
  [[nodiscard]] const tasks::Task& task() const { return *task_; }
  [[nodiscard]] const ShardedModel& model() const { return *sharded_; }
  // From now on the run records each step (sharding/profiler/step_recorder.h), with everything
  // until the next step.
  void record() {
    recorder_ = sharded_->record();
    if (sequence_) sequence_->record(recorder_);
  }
  // A std::logic_error before record().
  [[nodiscard]] StepRecorder& recorder() const {
    TESSERA_REQUIRE(recorder_ != nullptr,
                    "recorder() of a run that records nothing: call record()");
    return *recorder_;
  }
  // This rank's part of the metrics' peak_bytes.
  [[nodiscard]] std::int64_t peak_bytes();
  [[nodiscard]] const Context& context() const { return context_; }
  // The most memory that this rank's steps have used so far.
  [[nodiscard]] RankMemory memory() const { return measure_memory(context_); }
  // How many steps of this thread had their memory in fixed places (engine/device/memory_step.h).
  [[nodiscard]] StepStatistics step_memory() const;

 private:
  // Collective. Rank 0 works on the folder that this option names; an error names the option.
  void on_main(std::string_view option, const std::function<void()>& work) const;
  void check_is_folder() const;
  void load_initial_weights();
  // Collective: StepChecks::before_load. What has changed is an event of the resume.
  std::optional<events::SettingsChanged> check_step(const std::string& path);
  // The bytes that a save writes: tensors alone. The small files beside them do not matter.
  struct SaveBytes {
    std::uint64_t model = 0, optimizer = 0;
    [[nodiscard]] std::uint64_t total() const { return model + optimizer; }
  };
  [[nodiscard]] SaveBytes bytes_of_save() const;
  [[nodiscard]] std::optional<events::LittleRoom> check_room() const;
  [[nodiscard]] std::map<std::string, std::string> files_beside_weights() const;
  [[nodiscard]] SaveOptions save_options(const std::optional<tasks::Evaluation>& found) const;
  RunEvents saved_events(const checkpoint::Saved& saved, std::optional<double> seconds = {});
  bool resume_restarted(int restart, RunEvents& events);
  // The step's folder, or nullopt if there is none.
  std::optional<std::string> resume_newest(const std::string& dir,
                                           const checkpoint::CheckpointQuery& search,
                                           RunEvents& events);
  void resume_from(const std::string& path, RunEvents& events);
  void start_line(const std::string& from, RunEvents& events);
  void begin_line(RunEvents& events);
  void warn(const std::string& text, RunEvents& events);
  void warn_of_missing_score(std::optional<double> score,
                             const std::optional<tasks::Evaluation>& found, RunEvents& events);
  events::Resumed take_position(const Scalars& scalars, const std::string& folder);
  void take_data_position(const Scalars& scalars, const std::string& folder);
  events::Resumed start_data_anew(const std::string& folder, std::int64_t steps);
  struct MicroBatch {
    double loss = 0;
    std::int64_t tokens = 0;
    std::vector<double> metrics = {};  // Task::metrics(), as `loss`
    double compute_s = 0;              // without waits for other ranks and for data

    void add(const MicroBatch& other);
  };
  [[nodiscard]] LoadOptions load_options() const;
  RunEvents find_begin();
  std::optional<StepMetrics> take_step();
  // Gives the memory new places before a step whose batches or number of batches are other ones.
  void prepare_places();
  [[nodiscard]] std::int64_t micro_batches() const;  // of the next step
  // The forwards and backwards of a step. Returns nothing if a signal ends it.
  std::optional<MicroBatch> take_batches(tasks::DataPosition& data);
  // The micro-batches of a step of a task that weighs them.
  struct WeighedBatches {
    std::deque<tasks::PreparedQueue::Taken> taken;
    double part_of_one = 0;  // the factor of a batch's mean loss, by unit of its weight
  };
  // Collective.
  WeighedBatches take_weighed_batches(tasks::DataPosition data);
  // Returns the part of the micro-batch in the rank's loss, and its tokens.
  MicroBatch forward_backward(tasks::DataPosition& data, WeighedBatches& weighed);
  // The factor of a batch's mean loss in the rank's.
  [[nodiscard]] double part_of(const tasks::Prepared& batch, const WeighedBatches& weighed) const;
  // The time for which the rank has waited for others in collectives, and for data, so far.
  [[nodiscard]] double waited_seconds() const;
  // Later batches are prepared anew.
  void drop_batches();
  // After a step: other parts of the batches, if the ranks' times ask for it.
  void rebalance(StepMetrics& metrics);
  tasks::PreparedQueue::Taken next_batch(const tasks::DataPosition& data);
  // Collective. The losses of the batches from a position on, in evaluation mode, for what hooks
  // see.
  void run_forwards(tasks::DataPosition data, std::int64_t batches);
  // Sums `mine` over the ranks.
  MicroBatch agree(StepMetrics& metrics, const MicroBatch& mine);
  // What the model and the task have moved between ranks so far.
  struct Traffic {
    std::uint64_t bytes = 0;
    double exposed_seconds = 0;
  };
  [[nodiscard]] Traffic traffic() const;
  // Collective. Whether a rank noted a signal to stop; all ranks get the same answer.
  bool agree_to_stop();
  void abandon_step();
  void update_parameters();
  // Before an error that all ranks throw: drops the gradients, so that the last step may be saved.
  void keep_last_step();
  bool may_update(StepMetrics& metrics, double norm);
  // Collective. What made the step's loss not finite, on the first rank that knows it.
  [[nodiscard]] std::string find_fault();
  // The place of a micro-batch's samples: `first` is this rank's first one in the epochs.
  [[nodiscard]] BatchPosition place_of(const tasks::DataPosition& data, std::int64_t first,
                                       std::int64_t samples) const;
  // With deal_by_cost: how the queue deals.
  [[nodiscard]] std::optional<tasks::PreparedQueue::Share::Deal> deal() const;
  // True if each step measures how evenly the ranks compute.
  [[nodiscard]] bool measures_imbalance() const {
    return shares_->are_asked() || options_.deal_by_cost;
  }
  // The number of this rank's part in shares_.
  [[nodiscard]] int share() const { return sequence_ ? sequence_->block() : context_.rank(); }
  // Throws if the run has to end.
  void decide(const Spike& spike);
  // `times`: so many spikes without a better step, or a newer checkpoint.
  [[noreturn]] void end_by(const Spike& spike, int times);
  void roll_back(Spike& spike);
  void take_state(const Scalars& scalars);
  [[nodiscard]] std::int64_t cached_bytes() const;
  // For the trace's lane of checkpoints, from `seconds` ago until now.
  void record_save(double seconds);

  TrainerOptions options_;
  Context context_;
  std::unique_ptr<tasks::Task> task_;
  RunGuard guard_;
  std::optional<ShardedModel> sharded_;
  std::shared_ptr<StepRecorder> recorder_;  // null if no log needs it
  std::unique_ptr<optim::Optimizer> optimizer_;
  std::optional<LossScaler> scaler_;  // fp16
  SpikeWatch spikes_;
  std::shared_ptr<Pruner> pruner_;  // null if the run prunes nothing
  std::string loss_fault_;          // of this rank's batches in this step: Task::after_loss()
  int rollbacks_ = 0;               // to rolled_back_to_
  std::string rolled_back_to_;
  optim::Schedule schedule_;
  std::shared_ptr<const ContextParallel> sequence_;  // null: each rank has whole sequences
  std::optional<RankShares> shares_;  // of ranks, or of the blocks that hold sequences together
  std::optional<tasks::BatchOrder> order_;
  std::optional<tasks::PreparedQueue> batches_;  // from the first step on
  bool rewinds_ = false;             // a step was abandoned: the next one takes its batches again
  std::int64_t placed_batches_ = 0;  // micro-batches of the last step, for which memory has places
  // Micro-batches between two looks for a signal to stop, the same on all ranks: a look makes the
  // ranks wait for one another, so that there are as few as the last step's time allows.
  std::int64_t batches_per_check_ = 1;
  TrainingPosition position_;
  bool may_resume_ = true;  // until the first resume(), step() or save()
  std::string resumed_from_;
  std::string newest_step_;  // the folder of this run's newest checkpoint
  RunEvents late_events_;    // of a save that a roll-back waited for
  checkpoint::StateNames names_to_load_;
  int interruption_ = 0;
  std::int64_t save_requests_ = 0;
  std::int64_t save_requests_before_ = 0;
  bool has_line_ = false;  // resume() or the first save has chosen it
  checkpoint::Line line_;
  std::set<std::string> warned_;  // warnings that were returned already
  std::int64_t peak_resident_ = 0;
  checkpoint::ModelFiles files_;       // rank 0's: CheckpointOptions::files
  std::unique_ptr<AsyncSaver> saver_;  // last, so that it is destroyed first: it may be writing
  bool saver_ready_ = false;
};

}  // namespace tessera
