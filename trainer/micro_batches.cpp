// A step's micro-batches: their data, and the part of each in the step's loss.
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "base/error.h"
#include "engine/autograd.h"
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

}  // namespace

// The next batch of the data; in a planned run, a batch of that size.
tasks::PreparedQueue::Taken Trainer::next_batch(const tasks::DataPosition& data) {
  if (context_.device().is_planned()) {
    return {order_->at(data, options_.batch_size * context_.world_size()),
            task_->blank(options_.batch_size)};
  }
  // Another rank may wait longer for this one than ranks wait for one another.
  const comm::OutsideWait reads_data(context_.communicator());
  if (!batches_) {
    const tasks::PreparedQueue::Share share{context_.rank(), context_.world_size(),
                                            options_.batch_size};
    batches_.emplace(*task_, *order_, share, data);
  }
  const ComputeScope waits(recorder_.get(), SpanKind::data);
  return batches_->take();
}

// The weights of all micro-batches are needed before the first backward, which may reduce its
// gradients.
Trainer::WeighedBatches Trainer::take_weighed_batches(tasks::DataPosition data) {
  WeighedBatches weighed;
  std::int64_t weight = 0;
  for (std::int64_t micro = 0; micro < options_.gradient_accumulation_steps; ++micro) {
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

Trainer::MicroBatch Trainer::forward_backward(tasks::DataPosition& data, WeighedBatches& weighed) {
  const auto accumulated = static_cast<double>(options_.gradient_accumulation_steps);
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
  const std::int64_t first = next.batch.first + context_.rank() * options_.batch_size;
  begin_batch({static_cast<std::uint64_t>(data.batches), first, options_.batch_size});
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
  // The ranks' gradients are averaged, and those of micro-batches are added.
  const double part =
      weighs ? static_cast<double>(next.prepared->weight) * weighed.part_of_one : 1.0 / accumulated;
  if (part != 1) loss = loss * part;
  (scaler_ ? scaler_->scale(loss) : loss).backward();
  order_->advance(data, next.batch);
  for (double& metric : metrics) metric = weighs ? metric * part : metric / accumulated;
  return {weighs ? value * part : value / accumulated, next.prepared->tokens, std::move(metrics)};
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
    const auto batch = order_->at(data, options_.batch_size * context_.world_size());
    const std::int64_t offset = context_.rank() * options_.batch_size;
    std::unique_ptr<tasks::Prepared> prepared;
    {
      const comm::OutsideWait reads_data(context_.communicator());
      prepared = task_->prepare(batch.data_set, order_->share(batch, offset, options_.batch_size));
    }
    begin_batch(
        {static_cast<std::uint64_t>(data.batches), batch.first + offset, options_.batch_size});
    (void)task_->loss(*prepared, context_);
    (void)task_->after_loss(0);
    order_->advance(data, batch);
  }
  module.train();
}

}  // namespace tessera
