// Gathering and freeing parameters around forwards and backwards.
#include <algorithm>

#include "engine/autograd.h"
#include "kernels/base/error.h"
#include "sharding/runtime.h"

namespace tessera {
namespace {

// One that is computed with, one that is gathered, one that the slowest rank still reads.
constexpr std::size_t minimum_parameter_buffers = 3;

}  // namespace

void Runtime::before_forward(Unit& unit) {
  if (!unit.is_root()) {
    // A unit that comes again begins a new forward (evaluation has no backward that would say so).
    if (std::find(current_order_.begin(), current_order_.end(), &unit) != current_order_.end()) {
      forward_order_ = std::move(current_order_);
      current_order_.clear();
    }
    current_order_.push_back(&unit);
  }
  gather(unit, comm::Phase::forward);
  if (options_.forward_prefetch) prefetch_forward(unit);
  await_gather(unit);
}

void Runtime::after_forward(Unit& unit) {
  if (!grad_enabled()) {
    if (row_.unsharded != Unsharded::until_step) reshard(unit);
    return;
  }
  ++unit.pending_backwards;
  // The last unit of a forward is the first of the backward: it stays.
  if (row_.unsharded == Unsharded::per_pass && !is_last_in_forward(unit)) reshard(unit);
}

void Runtime::before_backward(Unit& unit) {
  expect_end_of_backward();
  gather(unit, comm::Phase::backward);
  if (options_.backward_prefetch == BackwardPrefetch::pre) prefetch_backward(unit);
  await_gather(unit);
}

void Runtime::after_backward(Unit& unit) {
  if (options_.backward_prefetch == BackwardPrefetch::post) prefetch_backward(unit);
  unit.pending_backwards = std::max(0, unit.pending_backwards - 1);
  if (row_.unsharded == Unsharded::per_pass ||
      (row_.unsharded == Unsharded::until_backward && unit.pending_backwards == 0)) {
    reshard(unit);
  }
  // A unit that was called several times is reduced once, under every strategy.
  if (unit.pending_backwards == 0 && row_.reduce == ReduceAt::unit_backward) reduce(unit);
}

void Runtime::gather(Unit& unit, comm::Phase phase) {
  if (unit.state != ParameterState::sharded || unit.layout().slots().empty()) return;
  std::shared_ptr<comm::Buffer> buffer;
  if (shares_pool(unit) && !free_parameter_buffers_.empty()) {
    buffer = std::move(free_parameter_buffers_.back());
    free_parameter_buffers_.pop_back();
  } else if (!shares_pool(unit) && unit.own_parameter_buffer) {
    buffer = unit.own_parameter_buffer;
  } else {
    const std::size_t bytes = shares_pool(unit) ? pool_parameter_bytes_ : unit.layout().bytes();
    run(*gather_stream_,
        [&] { buffer = gather_group_->allocate("parameters", bytes, comm::Sharing::one_copy); });
    count_buffer(*buffer);
    if (shares_pool(unit)) {
      ++parameter_buffers_;
    } else {
      unit.own_parameter_buffer = buffer;
    }
  }
  unit.parameter_buffer = buffer;
  unit.state = ParameterState::gathering;
  const comm::Tag tag{pass_, static_cast<std::uint32_t>(unit.index()), phase};
  unit.gathered = enqueue(*gather_stream_, [this, &unit, buffer, tag] {
    gather_group_->acquire(*buffer);
    unit.write_share(buffer->data() +
                     static_cast<std::size_t>(unit.shard()) * unit.layout().share_bytes());
    gather_group_->all_gather(*buffer, unit.layout().bytes(), tag);
  });
  if (shards_ == 1) return;  // a cast of this rank's own
  ++statistics_.collectives;
  statistics_.bytes += unit.layout().bytes() - unit.layout().share_bytes();
}

void Runtime::await_gather(Unit& unit) {
  if (unit.state != ParameterState::gathering) return;
  join(unit.gathered);
  unit.parameter_storage()->attach(unit.parameter_buffer->data());
  unit.state = ParameterState::unsharded;
}

void Runtime::reshard(Unit& unit) {
  if (unit.computes_on_master() || unit.pinned > 0 || unit.state == ParameterState::sharded) return;
  await_gather(unit);
  unit.parameter_storage()->detach();
  unit.parameter_buffer->release();
  if (shares_pool(unit)) free_parameter_buffers_.push_back(std::move(unit.parameter_buffer));
  unit.parameter_buffer.reset();
  unit.state = ParameterState::sharded;
}

bool Runtime::is_last_in_forward(const Unit& unit) const {
  return !forward_order_.empty() && forward_order_.back() == &unit;
}

void Runtime::prefetch_forward(const Unit& unit) {
  if (forward_order_.empty()) return;
  auto next = forward_order_.begin();
  if (!unit.is_root()) {
    next = std::find(forward_order_.begin(), forward_order_.end(), &unit);
    if (next == forward_order_.end()) return;
    ++next;
  }
  if (next != forward_order_.end()) gather(**next, comm::Phase::forward);
}

void Runtime::prefetch_backward(const Unit& unit) {
  const auto here = std::find(current_order_.begin(), current_order_.end(), &unit);
  if (here == current_order_.end() || here == current_order_.begin()) return;
  gather(**std::prev(here), comm::Phase::backward);
}

void Runtime::pin() {
  if (units_.front()->pinned == 0) buffers_before_pin_ = parameter_buffers_;
  for (const auto& unit : units_) gather(*unit, comm::Phase::other);
  for (const auto& unit : units_) {
    await_gather(*unit);
    ++unit->pinned;
  }
}

void Runtime::unpin() {
  for (const auto& unit : units_) {
    TESSERA_REQUIRE(unit->pinned > 0, "unpin() without pin()");
    --unit->pinned;
    if (row_.unsharded != Unsharded::until_step) reshard(*unit);
  }
  if (units_.front()->pinned > 0) return;
  // What training does not need goes back: the pool stays sized by the largest units.
  const std::size_t wanted = std::max(buffers_before_pin_, minimum_parameter_buffers);
  while (parameter_buffers_ > wanted && !free_parameter_buffers_.empty()) {
    free_parameter_buffers_.pop_back();
    --parameter_buffers_;
    --statistics_.buffers;
    statistics_.buffer_bytes -= pool_parameter_bytes_;
  }
}

void Runtime::invalidate() {
  for (const auto& unit : units_) {
    TESSERA_REQUIRE(unit->pinned == 0, "parameters cannot change inside an unsharded(model) scope");
    reshard(*unit);
  }
}

}  // namespace tessera
