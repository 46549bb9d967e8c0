// Building a run, its steps, its evaluation.
#include "cli/training_run.h"

#include <fmt/format.h>
#include <chrono>
#include <cmath>
#include <cstring>

#include "cli/device.h"
#include "cli/interruption.h"
#include "engine/autograd.h"
#include "engine/backend.h"
#include "engine/memory.h"
#include "engine/random.h"
#include "kernels/base/error.h"
#include "models/registry.h"

namespace tessera::cli {
namespace {

WrapPolicy wrap_policy(const Recipe& recipe, const models::LanguageModel& model) {
  switch (recipe.sharding.auto_wrap_policy) {
    case AutoWrapPolicy::none:
      return WrapPolicy::none();
    case AutoWrapPolicy::size_based:
      return WrapPolicy::size(recipe.sharding.min_num_params);
    case AutoWrapPolicy::transformer_based:
      break;
  }
  const auto& classes = recipe.sharding.transformer_layer_cls_to_wrap;
  return WrapPolicy::transformer(classes.empty() ? std::vector{model.layer_class()} : classes);
}

ShardingOptions sharding_options(const Recipe& recipe, const Context& context,
                                 const models::LanguageModel& model) {
  const ShardingRecipe& chosen = recipe.sharding;
  TESSERA_CHECK(chosen.mixed_precision != MixedPrecision::fp16, ErrorCode::configuration,
                "{}: sharding.mixed_precision: fp16 needs a loss scaler, which this version has "
                "not; use bf16",
                where(recipe, "sharding.mixed_precision"));
  ShardingOptions options;
  options.strategy = chosen.sharding_strategy;
  options.wrap = wrap_policy(recipe, model);
  if (chosen.mixed_precision == MixedPrecision::bf16) options.param_dtype = bfloat16;
  options.reduce_dtype = chosen.reduce_dtype;
  options.backward_prefetch = chosen.backward_prefetch;
  options.forward_prefetch = chosen.forward_prefetch;
  options.group_size = static_cast<int>(chosen.group_size.value_or(context.world().local_size));
  options.reduction_group = static_cast<int>(chosen.reduction_group.value_or(0));
  options.activation_checkpointing = chosen.activation_checkpointing;
  options.activation_checkpointing_cls = chosen.activation_checkpointing_cls;
  options.activation_checkpointing_every = static_cast<int>(chosen.activation_checkpointing_every);
  options.activation_offload = chosen.activation_offload;
  options.offload = offload_options(recipe);
  return options;
}

std::unique_ptr<optim::Optimizer> make_optimizer(const TrainRecipe& train,
                                                 std::vector<nn::NamedParameter> parameters) {
  if (train.optimizer == OptimizerKind::sgd) {
    return std::make_unique<optim::Sgd>(std::move(parameters),
                                        optim::SgdOptions{.lr = train.lr,
                                                          .momentum = train.momentum,
                                                          .weight_decay = train.weight_decay,
                                                          .decay = optim::decay_matrices});
  }
  return std::make_unique<optim::AdamW>(std::move(parameters),
                                        optim::AdamWOptions{.lr = train.lr,
                                                            .beta1 = train.betas[0],
                                                            .beta2 = train.betas[1],
                                                            .eps = train.eps,
                                                            .weight_decay = train.weight_decay,
                                                            .decay = optim::decay_matrices});
}

optim::Schedule make_schedule(const TrainRecipe& train) {
  optim::Schedule schedule;
  switch (train.lr_schedule) {
    case LearningRateSchedule::constant:
      schedule.kind = optim::ScheduleKind::constant;
      break;
    case LearningRateSchedule::linear:
      schedule.kind = optim::ScheduleKind::linear;
      break;
    case LearningRateSchedule::cosine:
      schedule.kind = optim::ScheduleKind::cosine;
      break;
  }
  schedule.peak = train.lr;
  schedule.minimum = train.min_lr;
  schedule.warmup_steps = train.warmup_steps;
  schedule.decay_steps = train.lr_decay_steps.value_or(train.steps);
  return schedule;
}

Tensor ids_of(const std::vector<std::int32_t>& ids, const Batch& batch, Device device) {
  const MemoryScope kind(MemoryKind::other);
  return Tensor::from(std::span<const std::int32_t>(ids), {batch.count, batch.seq_len}).to(device);
}

// What a batch of data would be, for plans.
void fill_blank(std::int64_t count, std::int64_t seq_len, Batch& batch) {
  batch.count = count;
  batch.seq_len = seq_len;
  batch.inputs.assign(static_cast<std::size_t>(count * seq_len), 0);
  batch.targets = batch.inputs;
}

// A NaN's sign bit says nothing and differs between compilers: messages do not show it.
float unsigned_nan(float value) {
  return std::isnan(value) ? std::fabs(value) : value;
}

// What the ranks tell each other once a step.
struct StepReport {
  double loss = 0;
  std::int64_t peak_bytes = 0;
  std::int64_t cached_bytes = 0;
  int interruption = 0;
  int save_requests = 0;
  int save_failed = 0;
};

}  // namespace

TrainingRun::TrainingRun(const Recipe& recipe, Context context)
    : recipe_(recipe), context_(std::move(context)), schedule_(make_schedule(recipe.train)) {
  batch_size_ = batch_size_per_rank(recipe_, context_.world_size());

  // Data first: what is wrong with a file is said before a model is built.
  const auto tokenizer = make_tokenizer(recipe_.data.tokenizer);
  if (!context_.device().is_planned()) open_data(*tokenizer);

  manual_seed(static_cast<std::uint64_t>(recipe_.train.seed));
  {
    const DeviceGuard deferred(Device::meta());  // each rank draws its own shard only
    model_ = models::make_language_model(model_configuration(recipe_),
                                         recipe_.model.pretrained.value_or(recipe_.source));
  }
  TESSERA_CHECK(model_->vocabulary() >= tokenizer->vocabulary_size(), ErrorCode::configuration,
                "{}: a vocabulary of {} is too small for the {} tokens of data.tokenizer: {}",
                recipe_.source, model_->vocabulary(), tokenizer->vocabulary_size(),
                recipe_.data.tokenizer);
  TESSERA_CHECK(recipe_.model.seq_len <= model_->positions(), ErrorCode::configuration,
                "{}: model.seq_len {} is more than the {} positions of the model",
                where(recipe_, "model.seq_len"), recipe_.model.seq_len, model_->positions());
  sharded_.emplace(*model_, context_, sharding_options(recipe_, context_, *model_));
  optimizer_ = make_optimizer(recipe_.train, sharded_->parameters());
  if (saves() && recipe_.checkpoint.async) {
    saver_ = std::make_unique<AsyncSaver>(context_, *sharded_, *optimizer_);
  }
}

void TrainingRun::open_data(const Tokenizer& tokenizer) {
  const auto seed = static_cast<std::uint64_t>(recipe_.train.seed);
  samples_ =
      std::make_unique<Samples>(std::make_shared<Corpus>(recipe_.data.train, tokenizer),
                                SampleOptions{recipe_.model.seq_len, recipe_.data.shuffle, seed});
  if (recipe_.data.valid) {
    validation_ =
        std::make_unique<Samples>(std::make_shared<Corpus>(*recipe_.data.valid, tokenizer),
                                  SampleOptions{recipe_.model.seq_len, false, seed});
  }
}

double TrainingRun::forward_backward(std::int64_t micro_batch, std::int64_t accumulated) {
  const std::int64_t world = context_.world_size();
  const std::int64_t first =
      position_.samples + (micro_batch * world + context_.rank()) * batch_size_;
  if (samples_) {
    samples_->fill(first, batch_size_, batch_);
  } else {
    fill_blank(batch_size_, recipe_.model.seq_len, batch_);
  }
  begin_batch(
      {static_cast<std::uint64_t>(position_.micro_batches + micro_batch), first, batch_size_});
  const Device device = context_.device();
  const Tensor loss =
      model_->loss(ids_of(batch_.inputs, batch_, device), ids_of(batch_.targets, batch_, device));
  const double value = loss.item();
  // With several micro-batches the gradient is that of their mean.
  (accumulated == 1 ? loss : loss * (1.0 / static_cast<double>(accumulated))).backward();
  return value;
}

StepMetrics TrainingRun::step() {
  const auto begin = std::chrono::steady_clock::now();
  const CommunicationStatistics before = sharded_->communication();
  const std::int64_t accumulated = recipe_.train.gradient_accumulation_steps;
  model_->train();
  double loss = 0;
  for (std::int64_t micro = 0; micro < accumulated; ++micro) {
    std::optional<ShardedModel::NoSync> local_only;
    if (!recipe_.train.sync_each_batch && micro + 1 < accumulated) {
      local_only.emplace(*sharded_);
    }
    loss += forward_backward(micro, accumulated) / static_cast<double>(accumulated);
  }
  StepMetrics metrics;
  metrics.grad_norm = static_cast<float>(sharded_->clip_grad_norm(recipe_.train.max_grad_norm));
  metrics.lr = schedule_.at(position_.steps);
  agree(metrics, loss);
  TESSERA_CHECK(std::isfinite(metrics.loss) && std::isfinite(metrics.grad_norm), ErrorCode::numeric,
                "step {}: loss {} and gradient norm {} are not finite; lower train.lr, or resume "
                "from the last checkpoint",
                position_.steps + 1, unsigned_nan(metrics.loss), unsigned_nan(metrics.grad_norm));
  optimizer_->set_learning_rate(metrics.lr);
  optimizer_->step();
  optimizer_->zero_grad();
  // What is made at all is made by the first step, so that a plan and a measurement see it.
  if (saver_ && !std::exchange(saver_ready_, true)) saver_->reserve();

  position_.steps += 1;
  position_.micro_batches += accumulated;
  const std::int64_t samples = accumulated * batch_size_ * context_.world_size();
  position_.samples += samples;
  metrics.step = position_.steps;
  metrics.comm_bytes = static_cast<std::int64_t>(sharded_->communication().bytes - before.bytes);
  metrics.exposed_comm_s = sharded_->communication().exposed_seconds - before.exposed_seconds;
  metrics.step_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  metrics.samples_per_s = static_cast<double>(samples) / metrics.step_s;
  metrics.tokens_per_s = metrics.samples_per_s * static_cast<double>(recipe_.model.seq_len);
  return metrics;
}

// Resident memory of the process; on a GPU what it has taken of the arena: pools with what they
// cache, those of side streams too, collective memory, NCCL's scratch and the kernels'.
std::int64_t TrainingRun::peak_bytes() {
  const Device device = context_.device();
  if (device.type == DeviceType::cpu) {
    // The kernel's own figure is off by what its counters have not summed up yet, and may sink.
    return peak_resident_ = std::max(peak_resident_, peak_resident_bytes());
  }
  return static_cast<std::int64_t>(backend_of(device.type).memory_source(device)->taken().peak);
}

std::int64_t TrainingRun::cached_bytes() const {
  const MemoryStats stats = MemoryPool::current(context_.device())->stats();
  return static_cast<std::int64_t>(stats.held - stats.in_use);
}

void TrainingRun::agree(StepMetrics& metrics, double loss) {
  StepReport mine{loss,
                  peak_bytes(),
                  cached_bytes(),
                  InterruptionWatch::signal(),
                  requested_saves(),
                  saver_ && saver_->failed() ? 1 : 0};
  std::string bytes(sizeof mine, '\0');
  std::memcpy(bytes.data(), &mine, sizeof mine);
  double total = 0;
  interruption_ = 0;
  save_requests_before_ = save_requests_;
  bool save_failed = false;
  const comm::Tag tag{static_cast<std::uint64_t>(position_.steps), 0, comm::Phase::metrics};
  for (const std::string& part : context_.communicator().exchange(bytes, tag)) {
    StepReport report;
    std::memcpy(&report, part.data(), sizeof report);
    total += report.loss;
    metrics.peak_bytes = std::max(metrics.peak_bytes, report.peak_bytes);
    metrics.cached_bytes = std::max(metrics.cached_bytes, report.cached_bytes);
    interruption_ = std::max(interruption_, report.interruption);
    save_requests_ = std::max<std::int64_t>(save_requests_, report.save_requests);
    save_failed = save_failed || report.save_failed != 0;
  }
  if (save_failed) (void)saver_->wait();  // throws the same on every rank
  metrics.loss = static_cast<float>(total / context_.world_size());
}

double TrainingRun::evaluate() {
  TESSERA_REQUIRE(validation_ != nullptr, "evaluate() without data.valid");
  const NoGradGuard no_grad;
  model_->eval();
  double total = 0;
  for (std::int64_t i = 0; i < recipe_.train.eval_batches; ++i) {
    const std::int64_t first =
        first_sample_of(i, context_.world_size(), context_.rank(), batch_size_);
    const Batch batch = validation_->batch(first, batch_size_);
    const Device device = context_.device();
    total += model_->loss(ids_of(batch.inputs, batch, device), ids_of(batch.targets, batch, device))
                 .item();
  }
  return context_.mean(total / static_cast<double>(recipe_.train.eval_batches));
}

std::string TrainingRun::describe() const {
  std::int64_t parameters = 0;
  for (const auto& parameter : sharded_->sharded_parameters())
    parameters += parameter.shape.elements();
  return fmt::format(
      "{} parameters, {} over {} ranks, batch {} x {} tokens a rank, {} samples an epoch, on {}",
      parameters, name_of(recipe_.sharding.sharding_strategy), context_.world_size(), batch_size_,
      recipe_.model.seq_len, samples_->samples_per_epoch(),
      describe_choice(recipe_, context_.device()));
}

}  // namespace tessera::cli
