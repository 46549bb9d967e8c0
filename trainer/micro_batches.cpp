// A step's micro-batches: their data, and the part of each in the step's loss.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/error.h"
#include "engine/autograd.h"
#include "engine/device/memory.h"
#include "engine/device/queue.h"
#include "engine/ops.h"
#include "engine/random.h"
#include "trainer/trainer.h"

namespace tessera {
namespace {

void check_loss(const Tensor& loss) {
  TESSERA_REQUIRE(loss.defined(),
                  "the task's loss is an undefined tensor; return the mean loss of the batch");
  TESSERA_REQUIRE(loss.elements() == 1,
                  "the task's loss has the shape {}, and a loss is one number; take the mean, as "
                  "ts::mean(loss)",
                  loss.shape().to_string());
  TESSERA_REQUIRE(loss.requires_grad(),
                  "the task's loss does not depend on a parameter that is trained; compute it with "
                  "the module's forward, without detach() or a NoGradGuard");
}

// The host of a GPU is ahead of it. Where the time of the computation decides, the GPU has finished
// what belongs to it before the host reads its clock, and does not work while the host waits for
// something else, which does not count.
void finish_measured_work(const Context& context, const RankShares& shares) {
  const Device device = context.device();
  if (!shares.are_measured() || device.type == DeviceType::cpu || device.is_planned()) return;
  current_queue(device).synchronize();
}

}  // namespace

// A plan is for the largest step.
std::int64_t Trainer::micro_batches() const {
  const StepRamp& ramp = options_.accumulation_ramp;
  const std::int64_t first = options_.gradient_accumulation_steps;
  return context_.device().is_planned() ? ramp.largest(first) : ramp.at(position_.steps + 1, first);
}

void Trainer::prepare_places() {
  const bool other_shape =
      !context_.device().is_planned() && task_->begin_step(position_.steps + 1);
  const std::int64_t batches = micro_batches();
  const std::int64_t before = std::exchange(placed_batches_, batches);
  if (other_shape || (before != 0 && before != batches)) {
    MemoryPool::current(context_.device())->expect_other_steps();
  }
}

std::optional<tasks::PreparedQueue::Share::Deal> Trainer::deal() const {
  if (!options_.deal_by_cost) return std::nullopt;
  const auto parts = static_cast<std::int64_t>(shares_->samples().size());
  return tasks::PreparedQueue::Share::Deal{share(), parts,
                                           options_.batch_size * task_->most_places()};
}

// Samples that are dealt do not follow one another, so each rank draws masks of its own.
BatchPosition Trainer::place_of(const tasks::DataPosition& data, std::int64_t first,
                                std::int64_t samples) const {
  const std::int64_t part = options_.deal_by_cost ? context_.rank()
                            : sequence_           ? sequence_->part()
                                                  : 0;
  return {static_cast<std::uint64_t>(data.batches), first, samples, part};
}

// The next batch of the data; in a planned run, a batch of that size.
tasks::PreparedQueue::Taken Trainer::next_batch(const tasks::DataPosition& data) {
  if (context_.device().is_planned()) {
    return {order_->at(data, shares_->all()), task_->blank(shares_->samples_of(share()))};
  }
  // Another rank may wait longer for this one than ranks wait for one another.
  const comm::OutsideWait reads_data(context_.communicator());
  if (!batches_) {
    const tasks::PreparedQueue::Share own{shares_->first_of(share()), shares_->samples_of(share()),
                                          shares_->all(), deal()};
    batches_.emplace(*task_, *order_, own, data);
  }
  const ComputeScope waits(recorder_.get(), SpanKind::data);
  finish_measured_work(context_, *shares_);
  return batches_->take();
}

// The weights of all micro-batches are needed before the first backward, which may reduce its
// gradients.
Trainer::WeighedBatches Trainer::take_weighed_batches(tasks::DataPosition data) {
  WeighedBatches weighed;
  std::int64_t weight = 0;
  for (std::int64_t micro = 0, all = micro_batches(); micro < all; ++micro) {
    tasks::PreparedQueue::Taken next = next_batch(data);
    order_->advance(data, next.batch);
    const std::int64_t own = next.prepared == nullptr ? 0 : next.prepared->weight;
    TESSERA_REQUIRE(own >= 0, "a batch with the weight {}: Prepared::weight is a number of labels",
                    own);
    weight += own;
    weighed.taken.push_back(std::move(next));
  }
  std::string bytes(sizeof weight, '\0');
  std::memcpy(bytes.data(), &weight, sizeof weight);
  const comm::Tag tag{static_cast<std::uint64_t>(position_.steps), 0, comm::Phase::metrics};
  const ComputeScope exchange(recorder_.get(), SpanKind::exchange);
  std::int64_t all = 0;
  for (const std::string& part : context_.communicator().exchange(bytes, tag)) {
    std::memcpy(&weight, part.data(), sizeof weight);
    all += weight;
  }
  // A step without any label has no loss.
  if (all > 0) weighed.part_of_one = context_.world_size() / static_cast<double>(all);
  return weighed;
}

void Trainer::MicroBatch::add(const MicroBatch& other) {
  loss += other.loss;
  tokens += other.tokens;
  metrics.resize(other.metrics.size());
  for (std::size_t i = 0; i < metrics.size(); ++i) metrics[i] += other.metrics[i];
}

double Trainer::waited_seconds() const {
  return traffic().exposed_seconds + (batches_ ? batches_->waited_seconds() : 0);
}

std::optional<Trainer::MicroBatch> Trainer::take_batches(tasks::DataPosition& data) {
  using Clock = std::chrono::steady_clock;
  const std::int64_t accumulated = micro_batches();
  MicroBatch mine;
  WeighedBatches weighed;
  if (task_->weighs_batches()) weighed = take_weighed_batches(data);
  finish_measured_work(context_, *shares_);
  const auto begin = Clock::now();
  // The clock of the waits is that of a GPU's queue, which reading it waits for.
  const bool timed = measures_imbalance();
  const double waited_before = timed ? waited_seconds() : 0;
  Clock::duration looking{};
  for (std::int64_t micro = 0; micro < accumulated; ++micro) {
    std::optional<ShardedModel::NoSync> local_only;
    const bool last = micro + 1 == accumulated;
    if (options_.sharding.defer_replica_sums) sharded_->set_requires_all_reduce(last);
    if (!options_.sync_each_batch && !last) local_only.emplace(*sharded_);
    mine.add(forward_backward(data, weighed));
    if (last || (micro + 1) % batches_per_check_ != 0) continue;
    finish_measured_work(context_, *shares_);
    const auto asked = Clock::now();
    if (agree_to_stop()) {
      abandon_step();
      return std::nullopt;
    }
    looking += Clock::now() - asked;
  }
  finish_measured_work(context_, *shares_);
  const std::chrono::duration<double> taken = Clock::now() - begin - looking;
  if (timed) mine.compute_s = std::max(taken.count() - (waited_seconds() - waited_before), 0.0);
  return mine;
}

// The ranks' gradients are averaged, and those of micro-batches are added.
double Trainer::part_of(const tasks::Prepared& batch, const WeighedBatches& weighed) const {
  if (task_->weighs_batches()) return static_cast<double>(batch.weight) * weighed.part_of_one;
  const auto accumulated = static_cast<double>(micro_batches());
  if (shares_->are_equal()) return 1.0 / accumulated;
  const auto of_step = static_cast<double>(shares_->all()) * accumulated;
  return static_cast<double>(shares_->samples_of(share())) * context_.world_size() / of_step;
}

// The queue ends with the batch that it is reading, and another rank may wait longer for this one
// than ranks wait for one another.
void Trainer::drop_batches() {
  const comm::OutsideWait reads_data(context_.communicator());
  batches_.reset();
}

void Trainer::rebalance(StepMetrics& metrics) {
  if (!shares_->settle(position_.steps)) return;
  metrics.rebalanced_to = shares_->samples();
  drop_batches();
  MemoryPool::current(context_.device())->expect_other_steps();
}

Trainer::MicroBatch Trainer::forward_backward(tasks::DataPosition& data, WeighedBatches& weighed) {
  const bool weighs = task_->weighs_batches();
  tasks::PreparedQueue::Taken next;
  if (weighs) {
    next = std::move(weighed.taken.front());
    weighed.taken.pop_front();
  } else {
    next = next_batch(data);
  }
  TESSERA_REQUIRE(next.prepared != nullptr,
                  "Task::{}() returned a null pointer; it returns a batch",
                  context_.device().is_planned() ? "blank" : "prepare");
  const std::int64_t first = next.batch.first + shares_->first_of(share());
  begin_batch(place_of(data, first, next.prepared->samples));
  Tensor loss;
  {
    const ComputeScope forward(recorder_.get(), SpanKind::forward);
    loss = task_->loss(*next.prepared, context_);
  }
  check_loss(loss);
  const double value = loss.item();
  std::vector<double> metrics = task_->metrics();
  TESSERA_REQUIRE(metrics.size() == task_->metric_names().size(),
                  "Task::metrics() returned {} numbers for the {} names of metric_names()",
                  metrics.size(), task_->metric_names().size());
  if (std::string fault = task_->after_loss(value); loss_fault_.empty()) {
    loss_fault_ = std::move(fault);
  }
  const double part = part_of(*next.prepared, weighed);
  if (part != 1) loss = loss * part;
  (scaler_ ? scaler_->scale(loss) : loss).backward();
  order_->advance(data, next.batch);
  // Equal parts keep the rounding of a division.
  const bool divides = !weighs && shares_->are_equal();
  const auto accumulated = static_cast<double>(micro_batches());
  const auto in_step = [&](double mean) { return divides ? mean / accumulated : mean * part; };
  for (double& metric : metrics) metric = in_step(metric);
  return {in_step(value), next.prepared->tokens, std::move(metrics)};
}

std::string Trainer::find_fault() {
  const comm::Tag tag{static_cast<std::uint64_t>(position_.steps), 0, comm::Phase::metrics};
  for (std::string& fault : context_.communicator().exchange(loss_fault_, tag)) {
    if (!fault.empty()) return std::move(fault);
  }
  return {};
}

void Trainer::run_forwards(tasks::DataPosition data, std::int64_t batches) {
  const NoGradGuard no_grad;
  nn::Module& module = task_->module();
  module.eval();
  for (std::int64_t i = 0; i < batches; ++i) {
    const auto batch = order_->at(data, shares_->all());
    const std::int64_t offset = shares_->first_of(share());
    const std::int64_t samples = shares_->samples_of(share());
    std::unique_ptr<tasks::Prepared> prepared;
    {
      const comm::OutsideWait reads_data(context_.communicator());
      prepared = task_->prepare(batch.data_set, order_->share(batch, offset, samples));
    }
    begin_batch(place_of(data, batch.first + offset, samples));
    (void)task_->loss(*prepared, context_);
    (void)task_->after_loss(0);
    order_->advance(data, batch);
  }
  module.train();
}

}  // namespace tessera
