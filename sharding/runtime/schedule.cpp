#include "sharding/runtime/schedule.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "base/error.h"
#include "engine/autograd.h"
#include "sharding/memory/unit_memory.h"
#include "sharding/profiler/step_position.h"

namespace tessera {
namespace {

// Counts a call that begins, unless an exception ends it at once.
class Opening {
 public:
  explicit Opening(int& open) : open_(open) { ++open_; }
  ~Opening() {
    if (!done_) --open_;
  }
  Opening(const Opening&) = delete;
  Opening& operator=(const Opening&) = delete;
  void succeed() { done_ = true; }

 private:
  int& open_;
  bool done_ = false;
};

}  // namespace

Schedule::Schedule(const ShardingOptions& options, const std::vector<std::unique_ptr<Unit>>& units,
                   OpenCalls& calls, ParameterGatherer& gatherer, GradientReducer& reducer,
                   RequiresGradChanges& changes, SideStreams& streams)
    : options_(options),
      row_(row_of(options.strategy)),
      units_(units),
      calls_(calls),
      gatherer_(gatherer),
      reducer_(reducer),
      changes_(changes),
      streams_(streams),
      self_(std::make_shared<Schedule*>(this)) {}

void Schedule::remove_hooks() {
  self_.reset();
  for (nn::Module* module : hooked_) module->set_hooks(nullptr);
  hooked_.clear();
}

void Schedule::add_hooks(nn::Module& module, Unit& unit) {
  // A graph keeps the hooks of its calls, and may live longer than this object.
  const auto hook = [this, &unit](void (Schedule::*method)(Unit&, const ModuleCall&)) {
    return [self = std::weak_ptr<Schedule*>(self_), &unit, method,
            title = unit_title(unit.name())](const ModuleCall& call) {
      const std::shared_ptr<Schedule*> schedule = self.lock();
      TESSERA_REQUIRE(
          schedule, "the graph goes through {}, whose ShardedModel has ended: run backward before",
          title);
      ((*schedule)->*method)(unit, call);
    };
  };
  auto hooks = std::make_shared<ModuleHooks>();
  hooks->owner = hooks_owner;
  hooks->before_forward = hook(&Schedule::before_forward);
  hooks->after_forward = hook(&Schedule::after_forward);
  hooks->abandon_forward = [self = std::weak_ptr<Schedule*>(self_), &unit](const ModuleCall& call) {
    if (const std::shared_ptr<Schedule*> schedule = self.lock()) {
      (*schedule)->abandon_forward(unit, call);
    }
  };
  hooks->expect_backward = hook(&Schedule::expect_backward);
  hooks->before_backward = hook(&Schedule::before_backward);
  hooks->after_backward = hook(&Schedule::after_backward);
  module.set_hooks(std::move(hooks));
  hooked_.push_back(&module);
}

void Schedule::before_forward(Unit& unit, const ModuleCall& call) {
  set_step_position({call.recompute ? comm::Phase::backward : comm::Phase::forward, unit.name()});
  const ComputeScope own(streams_.recorder(), SpanKind::schedule, unit.index());
  Opening opening(calls_.of(unit).forwards);
  gatherer_.begin_use(unit);
  if (call.recompute) {  // not a part of a forward: the backward has its own order
    gatherer_.unshard(unit, comm::Phase::backward);
    if (options_.backward_prefetch == BackwardPrefetch::pre) prefetch_recomputation(call);
  } else {
    order_.begin_call(unit.index(), call.number, grad_enabled());
    gatherer_.check_copy(unit);
    unit.discard_unset_gradient();
    units_.front()->discard_unset_gradient();  // the root's own forward has no hooks
    gatherer_.unshard(unit, comm::Phase::forward);
    if (options_.forward_prefetch) prefetch_forward();
  }
  gatherer_.wait_for_unshard(unit);
  opening.succeed();
  if (Recording* const recording = streams_.recording()) {
    recording->open(
        {call.recompute ? SpanKind::recompute : SpanKind::forward, Exposed::other, unit.index()});
  }
}

void Schedule::after_forward(Unit& unit, const ModuleCall& call) {
  const ComputeScope own(streams_.recorder(), SpanKind::schedule, unit.index());
  if (Recording* const recording = streams_.recording()) {
    recording->close(call.recompute ? SpanKind::recompute : SpanKind::forward, unit.index());
  }
  if (!call.recompute) set_step_position({comm::Phase::forward, {}});
  --calls_.of(unit).forwards;
  if (call.recompute) return;  // its backward comes next, and needs the parameters
  if (!grad_enabled()) {
    if (!gatherer_.stays_between_passes(unit)) gatherer_.reshard_unless_used(unit);
    return;
  }
  // The last unit of a forward is the first of the backward, so it stays.
  const bool frees = gatherer_.gathered_for(unit) == Gathered::per_pass;
  if (frees && !stays_after_forward(unit)) gatherer_.reshard_unless_used(unit);
}

void Schedule::abandon_forward(Unit& unit, const ModuleCall& call) {
  if (Recording* const recording = streams_.recording()) {
    recording->close(call.recompute ? SpanKind::recompute : SpanKind::forward, unit.index());
  }
  --calls_.of(unit).forwards;
  order_.abandon();
}

// Calls take and return memory; the root has no calls and is gathered when it is needed. Only a
// forward needs it: code that only reads uses Storage::require_present().
void Schedule::use_root() {
  Unit& root = *units_.front();
  const ComputeScope own(streams_.recorder(), SpanKind::schedule);
  if (autograd::in_backward()) {
    gatherer_.unshard(root, comm::Phase::backward);
  } else {
    order_.begin_call(root.index(), 0, grad_enabled());
    if (Recording* const recording = streams_.recording()) recording->set_base(SpanKind::forward);
    gatherer_.unshard(root, comm::Phase::forward);
    if (options_.forward_prefetch) prefetch_forward();
  }
  gatherer_.wait_for_unshard(root);
}

void Schedule::expect_backward(Unit& unit, const ModuleCall& call) {
  const ComputeScope own(streams_.recorder(), SpanKind::schedule, unit.index());
  expect_end_of_backward();
  ++calls_.of(unit).awaited_backwards;
  backward_calls_.push_back({unit.index(), call.number});
}

void Schedule::before_backward(Unit& unit, const ModuleCall& /*call*/) {
  set_step_position({comm::Phase::backward, unit.name()});
  const ComputeScope own(streams_.recorder(), SpanKind::schedule, unit.index());
  Opening opening(calls_.of(unit).backwards);
  ++next_backward_;
  gatherer_.unshard(unit, comm::Phase::backward);
  if (options_.backward_prefetch == BackwardPrefetch::pre) prefetch_backward();
  gatherer_.wait_for_unshard(unit);
  attach_gradient(unit);
  opening.succeed();
  if (Recording* const recording = streams_.recording())
    recording->open({SpanKind::backward, Exposed::other, unit.index()});
}

void Schedule::after_backward(Unit& unit, const ModuleCall& /*call*/) {
  set_step_position({comm::Phase::backward, {}});
  const ComputeScope own(streams_.recorder(), SpanKind::schedule, unit.index());
  if (Recording* const recording = streams_.recording())
    recording->close(SpanKind::backward, unit.index());
  OpenCalls::Counts& calls = calls_.of(unit);
  --calls.backwards;
  --calls.awaited_backwards;
  if (options_.backward_prefetch == BackwardPrefetch::post) prefetch_backward();
  const bool again = next_backward_ < backward_calls_.size() &&
                     backward_calls_[next_backward_].unit == unit.index();
  const Gathered gathered = gatherer_.gathered_for(unit);
  if ((gathered == Gathered::per_pass && !again) ||
      (gathered == Gathered::until_backward && calls.awaited_backwards == 0 &&
       !stays_after_backward(unit))) {
    gatherer_.reshard_unless_used(unit);
  }
  // A unit that was called several times is reduced once, under every strategy.
  if (calls.awaited_backwards == 0 && row_.reduce == ReduceAt::unit_backward) reducer_.reduce(unit);
}

void Schedule::expect_end_of_backward() {
  if (end_expected_) return;
  changes_.compare(streams_.pass());
  for (const auto& unit : units_) gatherer_.check_copy(*unit);
  if (Recording* const recording = streams_.recording()) recording->set_base(SpanKind::backward);
  autograd::at_end_of_backward([this] { end_backward(); }, [this] { abandon_backward(); });
  end_expected_ = true;
}

void Schedule::attach_gradient(Unit& unit) {
  TESSERA_REQUIRE(autograd::in_backward(),
                  "gradients of {} are reduced and sharded; read them from the model's parameters",
                  unit_title(unit.name()));
  if (!reducer_.needs_memory(unit)) return;
  expect_end_of_backward();
  reducer_.attach_gradient(unit);
}

void Schedule::end_backward() {
  const ComputeScope own(streams_.recorder(), SpanKind::schedule);
  if (Recording* const recording = streams_.recording()) recording->end_backward();
  set_step_position({comm::Phase::optimizer, {}});
  for (auto it = units_.rbegin(); it != units_.rend(); ++it) {
    reducer_.reduce(**it);
    // Sums of passes that were not reduced wait for the next one that is, whether it used the unit
    // or not.
    if (reducer_.reduces()) reducer_.reduce_earlier_sums(**it);
  }
  reducer_.join();
  for (const auto& unit : units_) {
    if (!stays_after_backward(*unit)) gatherer_.reshard_unless_used(*unit);
  }
  order_.end_backward(backward_calls_);
  end_pass();
}

// An exception ended the pass: gradients that are not reduced yet are dropped. Reduced ones stay.
// The device may have failed, so nothing is put into its queues.
void Schedule::abandon_backward() {
  for (const auto& unit : units_) reducer_.abandon(*unit);
  order_.abandon();
  end_pass();
  if (Recording* const recording = streams_.recording()) recording->abandon_backward();
  // Code that catches the exception may read reduced gradients.
  try {
    reducer_.join();
  } catch (const std::exception&) {
    // A failure of the reductions: it ended the pass, or the next use of the stream reports it.
  }
}

void Schedule::end_pass() {
  end_expected_ = false;
  backward_calls_.clear();
  next_backward_ = 0;
  calls_.end_backward();
  streams_.end_pass();
}

// Looks at the units that are still expected; the root is among them when it is used late, and
// stays once it is gathered.
bool Schedule::stays_after_forward(const Unit& unit) const {
  const auto next = std::find_if(order_.next(), order_.end(), [](int index) { return index != 0; });
  return next == order_.end() ? order_.is_known() : *next == unit.index();
}

// Between the passes of a no_sync() scope no optimizer changes parameters: a unit with its own
// memory is not gathered again.
bool Schedule::stays_after_backward(const Unit& unit) const {
  return gatherer_.stays_between_passes(unit) ||
         (!reducer_.reduces() && gatherer_.is_in_own_memory(unit));
}

void Schedule::prefetch_forward() {
  const auto most = static_cast<std::size_t>(options_.limit_all_gathers - 1);
  std::vector<int> next;
  for (auto call = order_.next(); call != order_.end() && next.size() < most; ++call) {
    const bool is_there = !gatherer_.is_sharded(*units_[static_cast<std::size_t>(*call)]);
    if (*call == 0 && is_there) continue;
    next.push_back(*call);
  }
  gatherer_.prefetch(std::move(next), comm::Phase::forward);
}

void Schedule::prefetch_backward() {
  const auto most = static_cast<std::size_t>(options_.limit_all_gathers - 1);
  std::vector<int> next;
  for (std::size_t i = next_backward_; i < backward_calls_.size() && next.size() < most; ++i)
    next.push_back(backward_calls_[i].unit);
  gatherer_.prefetch(std::move(next), comm::Phase::backward);
}

// For calls that run again: their backward is next, and the units after it are prefetched. Several
// that run again together do so in the forward's order before their backwards.
void Schedule::prefetch_recomputation(const ModuleCall& call) {
  const auto most = static_cast<std::size_t>(options_.limit_all_gathers - 1);
  const auto first = backward_calls_.begin() + static_cast<std::ptrdiff_t>(next_backward_);
  const auto here = std::find_if(first, backward_calls_.end(), [&](const CallOrder::Call& other) {
    return other.number == call.number;
  });
  if (here == backward_calls_.end()) return;
  std::vector<int> next;
  if (here == first) {
    for (auto it = std::next(here); it != backward_calls_.end() && next.size() < most; ++it)
      next.push_back(it->unit);
  } else {
    for (auto it = here; it != first && next.size() < most;) next.push_back((--it)->unit);
  }
  gatherer_.prefetch(std::move(next), comm::Phase::backward);
}

}  // namespace tessera
