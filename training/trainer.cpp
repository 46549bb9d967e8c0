// Building a run, its steps and its evaluation.
#include "training/trainer.h"

#include <fmt/format.h>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "base/host_memory.h"
#include "checkpoint/load/peft.h"
#include "engine/autograd.h"
#include "engine/device/backend.h"
#include "engine/device/memory.h"
#include "engine/nn/lora.h"
#include "engine/ops.h"
#include "engine/random.h"
#include "models/load/adapter.h"
#include "training/interruption.h"
#include "training/make_task.h"
#include "training/pretrained_folder.h"

namespace tessera::cli {
namespace {

WrapPolicy wrap_policy(const Recipe& recipe, const tasks::Task& task) {
  switch (recipe.sharding.auto_wrap_policy) {
    case AutoWrapPolicy::none:
      return WrapPolicy::none();
    case AutoWrapPolicy::size_based:
      return WrapPolicy::size(recipe.sharding.min_num_params);
    case AutoWrapPolicy::transformer_based:
      break;
  }
  const auto& classes = recipe.sharding.transformer_layer_cls_to_wrap;
  return WrapPolicy::transformer(classes.empty() ? std::vector{task.model().layer_class()}
                                                 : classes);
}

ShardingOptions sharding_options(const Recipe& recipe, const Context& context,
                                 const tasks::Task& task) {
  const ShardingRecipe& chosen = recipe.sharding;
  ShardingOptions options;
  options.strategy = chosen.sharding_strategy;
  options.wrap = wrap_policy(recipe, task);
  set_precision(recipe, options);
  if (chosen.ignored_modules) {
    options.ignored_modules = chosen.ignored_modules->names;
    options.ignored_pattern = chosen.ignored_modules->pattern;
  }
  options.backward_prefetch = chosen.backward_prefetch;
  options.forward_prefetch = chosen.forward_prefetch;
  options.limit_all_gathers = static_cast<int>(chosen.limit_all_gathers);
  options.reshard_after_forward = chosen.reshard_after_forward;
  options.reshard_after_backward = chosen.reshard_after_backward;
  options.group_size = static_cast<int>(chosen.group_size.value_or(context.world().local_size));
  options.reduction_group = static_cast<int>(chosen.reduction_group.value_or(0));
  options.activation_checkpointing = chosen.activation_checkpointing;
  options.activation_checkpointing_cls = chosen.activation_checkpointing_cls;
  options.activation_checkpointing_every = static_cast<int>(chosen.activation_checkpointing_every);
  options.activation_offload = chosen.activation_offload;
  options.offload = offload_options(recipe);
  return options;
}

IgnoredModules ignored_modules(const Recipe& recipe, nn::Module& module,
                               const ShardingOptions& options) {
  try {
    return {module, options.ignored_modules, options.ignored_pattern};
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("{}: sharding.{}",
                                          where(recipe, "sharding.ignored_modules"), error.what()));
  }
}

// The gradients of ignored modules are not reduced. Adapters in them would not be trained.
void freeze_ignored(const Recipe& recipe, nn::Module& module, const ShardingOptions& options) {
  const IgnoredModules ignored = ignored_modules(recipe, module, options);
  for (const OwnedParameter& parameter : ignored.parameters()) {
    TESSERA_CHECK(!trains_adapters(recipe) || !parameter.tensor.requires_grad(),
                  ErrorCode::configuration,
                  "{}: sharding.ignored_modules: {} is trained beside the model (model.lora), but "
                  "ignored modules are frozen; leave one of them out",
                  where(recipe, "sharding.ignored_modules"), parameter.name);
  }
  for (const auto& [name, part] : ignored.outermost()) freeze(*part);
}

std::vector<optim::ParameterGroup> parameter_groups(const TrainRecipe& train) {
  std::vector<optim::ParameterGroup> groups;
  for (const ParameterGroupRecipe& group : train.parameter_groups) {
    const double scale = group.lr ? *group.lr / train.lr : 1.0;
    groups.push_back(
        {.pattern = group.pattern, .lr_scale = scale, .weight_decay = group.weight_decay});
  }
  return groups;
}

std::unique_ptr<optim::Optimizer> make_optimizer(const TrainRecipe& train,
                                                 std::vector<nn::NamedParameter> parameters) {
  if (train.optimizer == OptimizerKind::sgd) {
    return std::make_unique<optim::Sgd>(std::move(parameters),
                                        optim::SgdOptions{.lr = train.lr,
                                                          .momentum = train.momentum,
                                                          .weight_decay = train.weight_decay,
                                                          .decay = optim::decay_matrices,
                                                          .groups = parameter_groups(train)});
  }
  return std::make_unique<optim::AdamW>(std::move(parameters),
                                        optim::AdamWOptions{.lr = train.lr,
                                                            .beta1 = train.betas[0],
                                                            .beta2 = train.betas[1],
                                                            .eps = train.eps,
                                                            .weight_decay = train.weight_decay,
                                                            .decay = optim::decay_matrices,
                                                            .groups = parameter_groups(train)});
}

optim::Schedule make_schedule(const TrainRecipe& train) {
  return {.kind = train.lr_schedule,
          .peak = train.lr,
          .minimum = train.min_lr,
          .warmup_steps = train.warmup_steps,
          .decay_steps = train.lr_decay_steps.value_or(train.steps)};
}

// A planned run has one endless data set.
tasks::BatchOrderOptions batch_order(const Recipe& recipe, std::vector<std::int64_t> samples) {
  if (samples.empty()) samples.push_back(std::numeric_limits<std::int64_t>::max() / 2);
  return {.samples = std::move(samples),
          .mix = recipe.data.mix,
          .seed = static_cast<std::uint64_t>(recipe.train.seed),
          .even_batches = recipe.data.even_batches,
          .drop_last = recipe.data.drop_last};
}

// A NaN's sign bit has no meaning and differs between compilers: messages do not show it.
float unsigned_nan(float value) {
  return std::isnan(value) ? std::fabs(value) : value;
}

// The numbers that the ranks exchange once per step.
// Seconds from a signal to the end of the run that gradient accumulation may add, as long as a
// micro-batch takes less.
constexpr double stop_delay = 0.5;

struct StepReport {
  double loss = 0;
  std::int64_t tokens = 0;
  std::int64_t peak_bytes = 0;
  std::int64_t cached_bytes = 0;
  double data_wait_s = 0;
  double step_s = 0;
  int interruption = 0;
  int save_requests = 0;
  int save_failed = 0;
};

}  // namespace

TrainingRun::TrainingRun(const Recipe& recipe, Context context)
    : recipe_(with_model_folder(recipe, context)),
      context_(std::move(context)),
      schedule_(make_schedule(recipe.train)) {
  batch_size_ = batch_size_per_rank(recipe_, context_.world_size());

  manual_seed(static_cast<std::uint64_t>(recipe_.train.seed));
  task_ = make_task(recipe_, context_.device().is_planned());
  if (const auto& folder = recipe_.model.adapter) {
    adapter_ = models::lora_options(checkpoint::read_peft_config(*folder));
  } else if (trains_adapters(recipe_)) {
    adapter_ = lora_options(recipe_);
  }
  order_.emplace(batch_order(recipe_, task_->samples_per_epoch()));
  position_.data = order_->begin();
  const ShardingOptions sharding = sharding_options(recipe_, context_, *task_);
  freeze_ignored(recipe_, task_->module(), sharding);
  sharded_.emplace(task_->module(), context_, sharding);
  optimizer_ = make_optimizer(recipe_.train, sharded_->parameters());
  if (recipe_.sharding.mixed_precision == MixedPrecision::fp16) {
    scaler_.emplace(loss_scale_options(recipe_));
  }
  if (saves() && recipe_.checkpoint.async) {
    saver_ = std::make_unique<AsyncSaver>(context_, *sharded_, *optimizer_);
  }
}

// The next batch of the data; in a planned run, a batch of that size.
tasks::PreparedQueue::Taken TrainingRun::next_batch(const tasks::DataPosition& data) {
  if (context_.device().is_planned()) {
    return {order_->at(data, batch_size_ * context_.world_size()), task_->blank(batch_size_)};
  }
  if (!batches_) {
    const tasks::PreparedQueue::Share share{context_.rank(), context_.world_size(), batch_size_};
    batches_.emplace(*task_, *order_, share, data);
  }
  const ComputeScope waits(recorder_.get(), SpanKind::data);
  return batches_->take();
}

TrainingRun::MicroBatch TrainingRun::forward_backward(tasks::DataPosition& data,
                                                      std::int64_t accumulated) {
  const tasks::PreparedQueue::Taken next = next_batch(data);
  const std::int64_t first = next.batch.first + context_.rank() * batch_size_;
  begin_batch({static_cast<std::uint64_t>(data.batches), first, batch_size_});
  Tensor loss;
  {
    const ComputeScope forward(recorder_.get(), SpanKind::forward);
    loss = task_->loss(*next.prepared, context_);
  }
  const double value = loss.item();
  // With several micro-batches, the gradient is the gradient of their mean.
  if (accumulated != 1) loss = loss * (1.0 / static_cast<double>(accumulated));
  (scaler_ ? scaler_->scale(loss) : loss).backward();
  order_->advance(data, next.batch);
  return {value, next.prepared->tokens};
}

std::optional<StepMetrics> TrainingRun::step() {
  const auto begin = std::chrono::steady_clock::now();
  if (recorder_) recorder_->begin_step(position_.steps + 1);
  const CommunicationStatistics before = sharded_->communication();
  const std::int64_t accumulated = recipe_.train.gradient_accumulation_steps;
  task_->module().train();
  const double waited_before = batches_ ? batches_->waited_seconds() : 0;
  tasks::DataPosition data = position_.data;
  MicroBatch mine;
  for (std::int64_t micro = 0; micro < accumulated; ++micro) {
    std::optional<ShardedModel::NoSync> local_only;
    if (!recipe_.train.sync_each_batch && micro + 1 < accumulated) {
      local_only.emplace(*sharded_);
    }
    const MicroBatch one = forward_backward(data, accumulated);
    mine.loss += one.loss / static_cast<double>(accumulated);
    mine.tokens += one.tokens;
    if (micro + 1 < accumulated && (micro + 1) % batches_per_check_ == 0 && agree_to_stop()) {
      abandon_step();
      return std::nullopt;
    }
  }
  StepMetrics metrics;
  if (scaler_) metrics.loss_scale = scaler_->factor();
  const double norm =
      sharded_->clip_grad_norm(recipe_.train.max_grad_norm, metrics.loss_scale.value_or(1));
  metrics.grad_norm = static_cast<float>(norm);
  metrics.lr = schedule_.at(position_.steps);
  metrics.data_wait_s = batches_ ? batches_->waited_seconds() - waited_before : 0;
  const auto seconds_since = [](auto then) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - then).count();
  };
  metrics.step_s = seconds_since(begin);
  const MicroBatch all = agree(metrics, mine);
  const bool usable = may_update(metrics, norm);
  optimizer_->set_learning_rate(metrics.lr);
  {
    const ComputeScope optimizer(recorder_.get(), SpanKind::optimizer);
    if (usable) optimizer_->step();
    optimizer_->zero_grad();
  }
  // The first step creates everything that a run creates, so that a plan and a measurement include
  // it.
  if (saver_ && !std::exchange(saver_ready_, true)) saver_->reserve(state_names());

  position_.steps += 1;
  position_.data = std::move(data);
  const std::int64_t samples = accumulated * batch_size_ * context_.world_size();
  metrics.step = position_.steps;
  metrics.comm_bytes = static_cast<std::int64_t>(sharded_->communication().bytes - before.bytes);
  metrics.exposed_comm_s = sharded_->communication().exposed_seconds - before.exposed_seconds;
  metrics.step_s = seconds_since(begin);
  if (recorder_) recorder_->end_step();
  metrics.samples_per_s = static_cast<double>(samples) / metrics.step_s;
  metrics.tokens_per_s = static_cast<double>(all.tokens) / metrics.step_s;
  return metrics;
}

bool TrainingRun::agree_to_stop() {
  const int signal = InterruptionWatch::signal();
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

// The gradients so far are for nothing. The data of the step come again after a resume.
void TrainingRun::abandon_step() {
  optimizer_->zero_grad();
  if (recorder_) recorder_->abandon_step();
}

// Decides if the step's gradients can be used. The decision is the same on every rank. A loss scale
// that was too large costs a step; any other value that is not finite ends the run.
bool TrainingRun::may_update(StepMetrics& metrics, double norm) {
  bool overflow = false;
  try {
    overflow = scaler_ && !scaler_->update(norm);
  } catch (const Error& error) {
    fail(error.code(), "step {}: {}", position_.steps + 1, error.what());
  }
  TESSERA_CHECK(overflow || (std::isfinite(metrics.loss) && std::isfinite(metrics.grad_norm)),
                ErrorCode::numeric,
                "step {}: loss {} and gradient norm {} are not finite; lower train.lr, or resume "
                "from the last checkpoint",
                position_.steps + 1, unsigned_nan(metrics.loss), unsigned_nan(metrics.grad_norm));
  if (scaler_) metrics.skipped_steps = scaler_->state().skipped_steps;
  return !overflow;
}

// Resident memory of the process; on a GPU the memory that it has taken from the arena: pools with
// their caches, also those of side streams, collective memory, and the scratch of NCCL and of
// kernels.
std::int64_t TrainingRun::peak_bytes() {
  const Device device = context_.device();
  if (device.type == DeviceType::cpu) {
    // The kernel's figure lacks counts that it has not summed up yet, and may sink.
    return peak_resident_ = std::max(peak_resident_, peak_resident_bytes());
  }
  return static_cast<std::int64_t>(backend_of(device.type).memory_source(device)->taken().peak);
}

std::int64_t TrainingRun::cached_bytes() const {
  const MemoryStats stats = MemoryPool::current(context_.device())->stats();
  return static_cast<std::int64_t>(stats.held - stats.in_use);
}

TrainingRun::MicroBatch TrainingRun::agree(StepMetrics& metrics, const MicroBatch& mine) {
  const StepReport report_of_mine{mine.loss,
                                  mine.tokens,
                                  peak_bytes(),
                                  cached_bytes(),
                                  metrics.data_wait_s,
                                  metrics.step_s,
                                  InterruptionWatch::signal(),
                                  requested_saves(),
                                  saver_ && saver_->failed() ? 1 : 0};
  std::string bytes(sizeof report_of_mine, '\0');
  std::memcpy(bytes.data(), &report_of_mine, sizeof report_of_mine);
  MicroBatch all;
  interruption_ = 0;
  save_requests_before_ = save_requests_;
  bool save_failed = false;
  double slowest = 0;
  const comm::Tag tag{static_cast<std::uint64_t>(position_.steps), 0, comm::Phase::metrics};
  const ComputeScope exchange(recorder_.get(), SpanKind::exchange);
  for (const std::string& part : context_.communicator().exchange(bytes, tag)) {
    StepReport report;
    std::memcpy(&report, part.data(), sizeof report);
    all.loss += report.loss;
    all.tokens += report.tokens;
    metrics.peak_bytes = std::max(metrics.peak_bytes, report.peak_bytes);
    metrics.cached_bytes = std::max(metrics.cached_bytes, report.cached_bytes);
    metrics.data_wait_s = std::max(metrics.data_wait_s, report.data_wait_s);
    slowest = std::max(slowest, report.step_s);
    interruption_ = std::max(interruption_, report.interruption);
    save_requests_ = std::max<std::int64_t>(save_requests_, report.save_requests);
    save_failed = save_failed || report.save_failed != 0;
  }
  if (save_failed) (void)saver_->wait();  // throws the same on every rank
  metrics.loss = static_cast<float>(all.loss / context_.world_size());
  // A plan has no time of its own, and looks after each micro-batch.
  if (!context_.device().is_planned() && slowest > 0) {
    const auto accumulated = static_cast<double>(recipe_.train.gradient_accumulation_steps);
    batches_per_check_ =
        static_cast<std::int64_t>(std::clamp(stop_delay * accumulated / slowest, 1.0, accumulated));
  }
  return all;
}

tasks::Evaluation TrainingRun::evaluate() {
  const NoGradGuard no_grad;
  task_->module().eval();
  return task_->evaluate(context_, batch_size_);
}

checkpoint::StateNames TrainingRun::state_names() const {
  if (!adapter_) return {};
  // The weights of an encoder's modules are small, and Sentence Transformers looks for them there.
  return [folders = task_->tensor_folders()](const std::string& name, bool trained) {
    const bool of_folder = folders.contains(name.substr(0, name.find('.')));
    return of_folder ? name : checkpoint::peft_name_of(name, trained);
  };
}

}  // namespace tessera::cli
