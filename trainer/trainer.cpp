// Building a run from its parts, its steps and its evaluation.
#include "trainer/trainer.h"

#include <fmt/format.h>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "base/host_memory.h"
#include "engine/autograd.h"
#include "engine/device/backend.h"
#include "engine/device/memory.h"
#include "engine/device/memory_step.h"
#include "engine/nn/evaluation_mode.h"
#include "engine/ops.h"
#include "engine/random.h"
#include "trainer/option_checks.h"
#include "trainer/pruning/pruner.h"

namespace tessera {
namespace {

std::unique_ptr<tasks::Task> required(std::unique_ptr<tasks::Task> task) {
  TESSERA_REQUIRE(task != nullptr,
                  "a Trainer without a task: give it one, as tasks::make_tensor_task returns");
  return task;
}

// The samples of the task's data sets. A planned run has one endless data set.
std::vector<std::int64_t> samples_of(const tasks::Task& task, const Context& context) {
  std::vector<std::int64_t> samples = task.samples_per_epoch();
  if (samples.empty() && context.device().is_planned()) {
    return {std::numeric_limits<std::int64_t>::max() / 2};
  }
  TESSERA_REQUIRE(
      !samples.empty(),
      "Task::samples_per_epoch() returned an empty list; it has a number of samples for "
      "each data set");
  for (std::size_t set = 0; set < samples.size(); ++set) {
    TESSERA_REQUIRE(
        samples[set] > 0,
        "Task::samples_per_epoch() returned {} for data set {}; a data set has at least "
        "one sample",
        samples[set], set);
  }
  return samples;
}

RankShares shares_of(const TrainerOptions& options, const tasks::Task& task,
                     const Context& context) {
  const std::string name(options.names.rank_weights);
  const std::string option = fmt::format("{}: {}", options.names.place(name), name);
  const std::string reason =
      options.rank_weights.are_equal() ? std::string() : task.needs_equal_batches();
  TESSERA_CHECK(reason.empty(), ErrorCode::configuration,
                "{}: the ranks' parts must be equal, because {}; leave it out", option, reason);
  return {options.rank_weights, context.world_size() / options.context_parallel, options.batch_size,
          option};
}

void check_dealing(const TrainerOptions& options, const tasks::Task& task) {
  if (!options.deal_by_cost) return;
  const std::string name(options.names.deal_by_cost);
  TESSERA_CHECK(task.most_places() > 0 && task.weighs_batches(), ErrorCode::configuration,
                "{}: {}: all samples of this task cost the same, or its loss depends on how they "
                "are split; leave it out",
                options.names.place(name), name);
}

// The ranks that hold sequences together, if the options ask for them.
std::shared_ptr<const ContextParallel> sequence_of(const TrainerOptions& options, tasks::Task& task,
                                                   const Context& context) {
  if (options.context_parallel == 1) return nullptr;
  const std::string name(options.names.context_parallel);
  const std::string option = fmt::format("{}: {}", options.names.place(name), name);
  TESSERA_CHECK(context.world_size() % options.context_parallel == 0, ErrorCode::configuration,
                "{}: {} ranks do not divide the world of {}", option, options.context_parallel,
                context.world_size());
  auto sequence = std::make_shared<const ContextParallel>(context, options.context_parallel);
  const std::string reason = task.share_sequences(sequence);
  TESSERA_CHECK(reason.empty(), ErrorCode::configuration, "{}: {}; leave it out", option, reason);
  return sequence;
}

// A NaN's sign bit has no meaning and differs between compilers: messages do not show it.
float unsigned_nan(float value) {
  return std::isnan(value) ? std::fabs(value) : value;
}

// Seconds from a signal to the end of the run that gradient accumulation may add, as long as a
// micro-batch takes less.
constexpr double stop_delay = 0.5;

// Ends an evaluation that a signal does not wait for.
struct EvaluationStopped {};

// Sets a task's call between batches, for the time of an evaluation.
class BetweenBatches {
 public:
  BetweenBatches(tasks::Task& task, std::function<void()> between) : task_(task) {
    task_.set_between_batches(std::move(between));
  }
  ~BetweenBatches() { task_.set_between_batches({}); }
  BetweenBatches(const BetweenBatches&) = delete;
  BetweenBatches& operator=(const BetweenBatches&) = delete;

 private:
  tasks::Task& task_;
};

// The numbers that the ranks exchange once per step.
struct StepReport {
  double loss = 0;
  std::int64_t tokens = 0;
  std::int64_t peak_bytes = 0;
  std::int64_t cached_bytes = 0;
  double data_wait_s = 0;
  double step_s = 0;
  double compute_s = 0;
  int interruption = 0;
  int save_requests = 0;
  int save_failed = 0;
};

}  // namespace

Trainer::Trainer(std::unique_ptr<tasks::Task> task, Context context, TrainerOptions options)
    : options_(std::move(options)),
      context_(std::move(context)),
      task_(required(std::move(task))),
      guard_(task_->module()),
      spikes_(options_.spikes),
      names_to_load_(options_.checkpoint.save.names) {
  compare_options(context_, options_, *task_);
  check_options(options_);
  check_dealing(options_, *task_);
  sequence_ = sequence_of(options_, *task_, context_);
  shares_.emplace(shares_of(options_, *task_, context_));
  if (options_.names.learning_rate.empty()) {
    options_.names.learning_rate = options_.schedule ? "schedule.peak" : "optimizer.lr";
  }
  options_.data.samples = samples_of(*task_, context_);
  order_.emplace(options_.data);
  position_.data = order_->begin();
  const optim::ShardNeeds needs = optim::needs_of_choice(options_.optimizer);
  if (!options_.sharding.apart) options_.sharding.apart = needs.apart;
  options_.sharding.block = std::lcm(options_.sharding.block, needs.block);
  sharded_.emplace(task_->module(), context_, options_.sharding);
  optimizer_ = optim::make_optimizer(options_.optimizer, sharded_->parameters());
  schedule_ = options_.schedule.value_or(optim::Schedule{.peak = optimizer_->learning_rate()});
  if (options_.pruning) {
    TESSERA_CHECK(!optimizer_->average_state(), ErrorCode::configuration,
                  "pruning: the optimizer saves averages of weights; take another optimizer");
    pruner_ = std::make_shared<Pruner>(*options_.pruning, *sharded_, task_->module());
  }
  if (options_.sharding.param_dtype == float16) scaler_.emplace(options_.loss_scale);
  if (saves() && options_.checkpoint.async) {
    saver_ = std::make_unique<AsyncSaver>(context_, *sharded_, *optimizer_);
  }
}

std::optional<StepMetrics> Trainer::step() {
  return guard_.run("step()", RunGuard::Needs::everything, [this] {
    std::optional<StepMetrics> taken = take_step();
    // After the step's end, so that its memory is recorded as that of every step.
    if (taken && taken->spike && taken->spike->done == SpikeAction::rollback) {
      roll_back(*taken->spike);
    }
    return taken;
  });
}

std::optional<StepMetrics> Trainer::take_step() {
  prepare_places();
  const MemoryStep memory(context_.device());
  may_resume_ = false;
  if (std::exchange(rewinds_, false)) drop_batches();
  const auto begin = std::chrono::steady_clock::now();
  if (recorder_) recorder_->begin_step(position_.steps + 1);
  const Traffic before = traffic();
  task_->module().train();
  const double waited_before = batches_ ? batches_->waited_seconds() : 0;
  tasks::DataPosition data = position_.data;
  loss_fault_.clear();
  const std::optional<MicroBatch> mine = take_batches(data);
  if (!mine) return std::nullopt;
  StepMetrics metrics;
  if (scaler_) metrics.loss_scale = scaler_->factor();
  const double norm =
      sharded_->clip_grad_norm(options_.max_grad_norm, metrics.loss_scale.value_or(1));
  metrics.grad_norm = static_cast<float>(norm);
  metrics.lr = schedule_.at(position_.steps);
  metrics.data_wait_s = batches_ ? batches_->waited_seconds() - waited_before : 0;
  const auto seconds_since = [](auto then) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - then).count();
  };
  metrics.step_s = seconds_since(begin);
  const MicroBatch all = agree(metrics, *mine);
  const bool usable = may_update(metrics, norm);
  optimizer_->set_learning_rate(metrics.lr);
  {
    const ComputeScope optimizer(recorder_.get(), SpanKind::optimizer);
    if (usable) update_parameters();
    optimizer_->zero_grad();
  }
  if (pruner_) {
    pruner_->choose(position_.steps + 1, context_,
                    [&](std::int64_t batches) { run_forwards(data, batches); });
  }
  // The first step creates everything that a run creates, so that a plan and a measurement include
  // it.
  if (saver_ && !std::exchange(saver_ready_, true)) saver_->reserve(options_.checkpoint.save.names);

  const std::int64_t samples = micro_batches() * shares_->all();
  position_.steps += 1;
  position_.data = std::move(data);
  metrics.step = position_.steps;
  rebalance(metrics);
  const Traffic after = traffic();
  metrics.comm_bytes = static_cast<std::int64_t>(after.bytes - before.bytes);
  metrics.exposed_comm_s = after.exposed_seconds - before.exposed_seconds;
  metrics.step_s = seconds_since(begin);
  if (recorder_) recorder_->end_step();
  metrics.samples_per_s = static_cast<double>(samples) / metrics.step_s;
  metrics.tokens_per_s = static_cast<double>(all.tokens) / metrics.step_s;
  return metrics;
}

void Trainer::update_parameters() {
  if (pruner_) pruner_->begin_step(position_.steps + 1);
  optimizer_->step();
  if (pruner_) pruner_->end_step(position_.steps + 1);
}

Trainer::Traffic Trainer::traffic() const {
  const CommunicationStatistics model = sharded_->communication();
  const CommunicationStatistics task = task_->communication();
  return {model.bytes + task.bytes, model.exposed_seconds + task.exposed_seconds};
}

bool Trainer::agree_to_stop() {
  const int signal = options_.signals ? options_.signals().stop : 0;
  std::string bytes(sizeof signal, '\0');
  std::memcpy(bytes.data(), &signal, sizeof signal);
  const comm::Tag tag{static_cast<std::uint64_t>(position_.steps), 0, comm::Phase::metrics};
  const ComputeScope exchange(recorder_.get(), SpanKind::exchange);
  int all = 0;
  for (const std::string& part : context_.communicator().exchange(bytes, tag)) {
    int one = 0;
    std::memcpy(&one, part.data(), sizeof one);
    all = std::max(all, one);
  }
  if (context_.device().is_planned() || all == 0) return false;
  interruption_ = all;
  return true;
}

// The gradients so far are for nothing. The data of the step come again, after a resume or in the
// next step.
void Trainer::abandon_step() {
  optimizer_->zero_grad();
  rewinds_ = true;
  if (recorder_) recorder_->abandon_step();
}

void Trainer::keep_last_step() {
  optimizer_->zero_grad();
  guard_.keep_last_step();
}

// Decides if the step's gradients can be used. The decision is the same on every rank, because all
// have the same loss and norm. A loss scale that was too large costs a step; what happens after
// other values that are not finite, and after a high loss, is in TrainerOptions::spikes.
bool Trainer::may_update(StepMetrics& metrics, double norm) {
  const std::string fault = std::isfinite(metrics.loss) ? std::string() : find_fault();
  // No scale helps against a loss that is not finite itself.
  const bool is_scaled =
      scaler_ && fault.empty() &&
      (options_.spikes.action == SpikeAction::stop || std::isfinite(metrics.loss));
  bool overflow = false;
  try {
    overflow = is_scaled && !scaler_->update(norm);
  } catch (const Error& error) {
    keep_last_step();
    fail(error.code(), "step {}: {}", position_.steps + 1, error.what());
  }
  if (scaler_) metrics.skipped_steps = scaler_->state().skipped_steps;
  if (overflow) return false;
  metrics.spike = spikes_.judge(position_.steps + 1, metrics.loss, metrics.grad_norm);
  if (metrics.spike) {
    metrics.spike->cause = fault;
    decide(*metrics.spike);
  }
  return !metrics.spike;
}

void Trainer::decide(const Spike& spike) {
  if (spike.done == SpikeAction::stop) end_by(spike, 1);
  if (spikes_.in_a_row() >= SpikeWatch::most_in_a_row) end_by(spike, spikes_.in_a_row());
}

void Trainer::end_by(const Spike& spike, int times) {
  keep_last_step();
  const std::string so_far =
      times == 1 ? "" : fmt::format(", the {}th such step without progress", times);
  TESSERA_CHECK(!spike.limit, ErrorCode::numeric,
                "step {}: loss {} is above {}, the limit of spike_sigma {}{}; lower {}, raise "
                "spike_sigma, or resume from the last checkpoint",
                spike.step, spike.loss, static_cast<float>(*spike.limit),
                options_.spikes.sigma.value_or(0), so_far, options_.names.learning_rate);
  const std::string cause = spike.cause.empty()
                                ? fmt::format("; lower {}, or resume from the last checkpoint",
                                              options_.names.learning_rate)
                                : ", because " + spike.cause;
  fail(ErrorCode::numeric, "step {}: loss {} and gradient norm {} are not finite{}{}", spike.step,
       unsigned_nan(spike.loss), unsigned_nan(spike.grad_norm), so_far, cause);
}

// Resident memory of the process; on a GPU the memory that it has taken from the arena: pools with
// their caches, also those of side streams, collective memory, and the scratch of NCCL and of
// kernels.
std::int64_t Trainer::peak_bytes() {
  const Device device = context_.device();
  if (device.type == DeviceType::cpu) {
    // The kernel's figure lacks counts that it has not summed up yet, and may sink.
    return peak_resident_ = std::max(peak_resident_, peak_resident_bytes());
  }
  return static_cast<std::int64_t>(backend_of(device.type).memory_source(device)->taken().peak);
}

std::int64_t Trainer::cached_bytes() const {
  const MemoryStats stats = MemoryPool::current(context_.device())->stats();
  return static_cast<std::int64_t>(stats.held - stats.in_use);
}

StepStatistics Trainer::step_memory() const {
  return MemoryPool::current(context_.device())->step_statistics();
}

Trainer::MicroBatch Trainer::agree(StepMetrics& metrics, const MicroBatch& mine) {
  const RunSignals signals = options_.signals ? options_.signals() : RunSignals{};
  const StepReport report_of_mine{mine.loss,           mine.tokens,
                                  peak_bytes(),        cached_bytes(),
                                  metrics.data_wait_s, metrics.step_s,
                                  mine.compute_s,      signals.stop,
                                  signals.saves,       saver_ && saver_->failed() ? 1 : 0};
  std::string bytes(sizeof report_of_mine + mine.metrics.size() * sizeof(double), '\0');
  std::memcpy(bytes.data(), &report_of_mine, sizeof report_of_mine);
  if (!mine.metrics.empty()) {
    std::memcpy(bytes.data() + sizeof report_of_mine, mine.metrics.data(),
                mine.metrics.size() * sizeof(double));
  }
  MicroBatch all;
  interruption_ = 0;
  save_requests_before_ = save_requests_;
  bool save_failed = false;
  double slowest = 0;
  std::vector<RankShares::Work> works;
  const comm::Tag tag{static_cast<std::uint64_t>(position_.steps), 0, comm::Phase::metrics};
  const ComputeScope exchange(recorder_.get(), SpanKind::exchange);
  for (const std::string& part : context_.communicator().exchange(bytes, tag)) {
    StepReport report;
    TESSERA_REQUIRE(part.size() == bytes.size(),
                    "ranks have different Task::metric_names(); they are the same on every rank");
    std::memcpy(&report, part.data(), sizeof report);
    MicroBatch of_rank{report.loss, report.tokens, std::vector<double>(mine.metrics.size())};
    if (!of_rank.metrics.empty()) {
      std::memcpy(of_rank.metrics.data(), part.data() + sizeof report,
                  of_rank.metrics.size() * sizeof(double));
    }
    all.add(of_rank);
    metrics.peak_bytes = std::max(metrics.peak_bytes, report.peak_bytes);
    metrics.cached_bytes = std::max(metrics.cached_bytes, report.cached_bytes);
    metrics.data_wait_s = std::max(metrics.data_wait_s, report.data_wait_s);
    slowest = std::max(slowest, report.step_s);
    works.push_back({report.tokens, report.compute_s});
    interruption_ = std::max(interruption_, report.interruption);
    save_requests_ = std::max<std::int64_t>(save_requests_, report.save_requests);
    save_failed = save_failed || report.save_failed != 0;
  }
  if (measures_imbalance()) metrics.imbalance = imbalance_of(works);
  if (shares_->are_asked()) {
    shares_->add(works);
    metrics.rank_samples = shares_->samples();
  }
  if (save_failed) {
    keep_last_step();
    (void)saver_->wait();  // throws the same on every rank
  }
  metrics.loss = static_cast<float>(all.loss / context_.world_size());
  const std::vector<std::string> names = task_->metric_names();
  for (std::size_t i = 0; i < names.size(); ++i) {
    metrics.of_task.emplace_back(names[i], all.metrics[i] / context_.world_size());
  }
  // A plan has no time of its own, and looks after each micro-batch.
  if (!context_.device().is_planned() && slowest > 0) {
    const auto accumulated = static_cast<double>(micro_batches());
    batches_per_check_ =
        static_cast<std::int64_t>(std::clamp(stop_delay * accumulated / slowest, 1.0, accumulated));
  }
  return all;
}

tasks::Evaluation Trainer::evaluate() {
  TESSERA_REQUIRE(task_->evaluates(),
                  "evaluate() of a task without an evaluation: its class overrides evaluates() and "
                  "evaluate(); save() needs none");
  return guard_.run("evaluate()", RunGuard::Needs::last_step, [this] {
    const NoGradGuard no_grad;
    const nn::EvaluationMode evaluating(task_->module());
    tasks::Evaluation found;
    const BetweenBatches between(*task_, [this] {
      if (agree_to_stop()) throw EvaluationStopped{};
    });
    try {
      optimizer_->begin_evaluation();
      found = task_->evaluate(context_, options_.batch_size);
    } catch (const EvaluationStopped&) {  // on every rank
    } catch (...) {
      optimizer_->end_evaluation();  // an evaluation that failed may be repeated
      throw;
    }
    optimizer_->end_evaluation();
    return found;
  });
}

}  // namespace tessera
