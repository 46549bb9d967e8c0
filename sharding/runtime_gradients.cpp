// Memory for gradients, their reduction, and the end of a backward.
#include "engine/autograd.h"
#include "engine/launch.h"
#include "kernels/base/error.h"
#include "sharding/runtime.h"

namespace tessera {
namespace {

DType sum_dtype(DType gradient) {
  return gradient == float64 ? float64 : float32;
}

}  // namespace

void Runtime::expect_end_of_backward() {
  if (end_expected_) return;
  autograd::at_end_of_backward([this] { at_end_of_backward(); }, [this] { abandon_backward(); });
  end_expected_ = true;
}

// An exception ended the pass: gradients that are not reduced yet are dropped. What was reduced
// stays.
void Runtime::abandon_backward() {
  end_expected_ = false;
  for (const auto& unit : units_) {
    unit->pending_backwards = 0;
    if (!unit->has_gradient() || !unit->gradient_storage()->present()) continue;
    unit->complete_gradient();
    unit->gradient_storage()->detach();
    if (unit->gradient_buffer != unit->own_gradient_buffer) {
      free_gradient_buffers_.push_back({unit->gradient_buffer, {}});  // read by nobody
    } else {
      unit->gradient_writable = {};
    }
    unit->gradient_buffer.reset();
  }
}

std::shared_ptr<comm::Buffer> Runtime::allocate_gradient(const Unit& unit, std::size_t bytes) {
  // The ranks that are summed first are those that must see the memory.
  comm::Communicator& group = shards_ == 1 ? *reduce_replicas_ : *reduce_group_;
  std::shared_ptr<comm::Buffer> buffer;
  run(*reduce_stream_, [&] {
    buffer = group.allocate(unit.is_root() ? "root gradients" : "gradients", bytes,
                            comm::Sharing::per_rank);
    group.acquire(*buffer);
  });
  count_buffer(*buffer);
  return buffer;
}

// The first gradient of a pass arrived: lend the unit a buffer.
void Runtime::provide_gradient(Unit& unit) {
  TESSERA_REQUIRE(autograd::in_backward(),
                  "gradients of {} are reduced and sharded; read them from the model's parameters",
                  unit.name().empty() ? "the root unit" : unit.name());
  expect_end_of_backward();
  const bool own = unit.is_root() || row_.reduce == ReduceAt::end_of_backward;
  Event writable;
  if (own && unit.own_gradient_buffer) {
    unit.gradient_buffer = unit.own_gradient_buffer;
    writable = unit.gradient_writable;
  } else if (!own && free_gradient_buffers_.size() >
                         1) {  // two buffers: one is filled while the other is summed
    unit.gradient_buffer = free_gradient_buffers_.front().buffer;
    writable = free_gradient_buffers_.front().writable;
    free_gradient_buffers_.erase(free_gradient_buffers_.begin());
  } else {
    unit.gradient_buffer =
        allocate_gradient(unit, own ? unit.gradient_buffer_bytes() : pool_gradient_bytes_);
    if (own) unit.own_gradient_buffer = unit.gradient_buffer;
  }
  join(writable);
  unit.gradient_storage()->attach(unit.gradient_buffer->data());
  unit.zero_gradient_gaps();
}

void Runtime::reduce(Unit& unit) {
  if (!unit.has_gradient() || !unit.gradient_storage()->present()) return;
  unit.complete_gradient();
  if (!synchronise_ || unit.unsynchronised_is_set) add_to_unsynchronised(unit);
  unit.gradient_storage()->detach();
  const std::shared_ptr<comm::Buffer> buffer = std::move(unit.gradient_buffer);
  unit.gradient_buffer.reset();
  const bool own = buffer == unit.own_gradient_buffer;
  if (unit.unsynchronised_is_set) {  // the sums hold this pass; its buffer was read by nobody and
                                     // stays writable
    if (!own) free_gradient_buffers_.push_back({buffer, {}});
    if (!synchronise_) return;
    reduce_unsynchronised(unit);
    return;
  }
  enqueue_reduction(unit, buffer, unit.gradient_dtype());
  if (own) {
    unit.gradient_writable = writable_again_;
  } else {
    free_gradient_buffers_.push_back({buffer, writable_again_});
  }
}

void Runtime::reduce_unsynchronised(Unit& unit) {
  enqueue_reduction(unit, unit.unsynchronised, sum_dtype(unit.gradient_dtype()));
  unit.unsynchronised_is_set = false;
}

void Runtime::add_to_unsynchronised(Unit& unit) {
  const DType dtype = sum_dtype(unit.gradient_dtype());
  const std::int64_t count = unit.layout().gradient_elements();
  if (!unit.unsynchronised) {
    unit.unsynchronised = allocate_gradient(unit, static_cast<std::size_t>(count) * size_of(dtype));
  }
  join(unit.unsynchronised_writable);
  TESSERA_LAUNCH(device_, cast,
                 {unit.gradient_storage()->data(), unit.unsynchronised->data(), count,
                  unit.gradient_dtype(), dtype, 1.0f, unit.unsynchronised_is_set});
  unit.unsynchronised_is_set = true;
}

void Runtime::enqueue_reduction(Unit& unit, const std::shared_ptr<comm::Buffer>& buffer,
                                DType dtype) {
  Tensor& out = unit.gradient_shard();
  unit.prepare_to_accumulate();
  const comm::Tag tag{pass_, static_cast<std::uint32_t>(unit.index()), comm::Phase::reduce};
  comm::Reduction last{dtype, out.dtype(), reduction_group_, 1.0f / static_cast<float>(world_size_),
                       unit.gradient_is_set()};
  const std::int64_t count = unit.local_gradient_elements();
  std::function<void()> work;
  if (shards_ == 1) {
    work = [this, &unit, buffer, last, tag] {
      reduce_replicas_->all_reduce(*buffer, unit.layout().gradient_elements(),
                                   unit.gradient_shard().data(), last, tag);
    };
  } else if (replicas() == 1) {
    work = [this, &unit, buffer, last, tag] {
      reduce_group_->reduce_scatter(*buffer, unit.reduced_ranges(unit.gradient_shard().data()),
                                    last, tag);
    };
  } else {  // sums of the group first, unscaled and in fp32; then the sums of the groups
    comm::Reduction first{dtype, out.dtype(), reduction_group_ < shards_ ? reduction_group_ : 0,
                          1.0f, false};
    allocate_partial_sums();
    last.in_dtype = out.dtype();
    last.group = reduction_group_ > shards_ ? reduction_group_ / shards_ : 0;
    work = [this, &unit, buffer, first, last, tag, count] {
      reduce_replicas_->acquire(*partial_sums_);
      reduce_group_->reduce_scatter(*buffer, unit.reduced_ranges(partial_sums_->data()), first,
                                    tag);
      reduce_replicas_->all_reduce(*partial_sums_, count, unit.gradient_shard().data(), last, tag);
    };
  }
  last_reduction_ = enqueue(*reduce_stream_, std::move(work));
  comm::Communicator& group = shards_ == 1 ? *reduce_replicas_ : *reduce_group_;
  writable_again_ = enqueue(*reduce_stream_, [&group, buffer] { group.acquire(*buffer); });
  if (buffer == unit.unsynchronised) unit.unsynchronised_writable = writable_again_;
  unit.mark_gradient_set();

  count_reduction(unit, dtype, out.dtype());
}

// Once, for the largest unit.
void Runtime::allocate_partial_sums() {
  if (partial_sums_) return;
  std::size_t largest = 0;
  for (const auto& unit : units_) {
    largest = std::max(largest,
                       static_cast<std::size_t>(unit->local_gradient_elements()) * sizeof(double));
  }
  run(*reduce_stream_, [&] {
    partial_sums_ = reduce_replicas_->allocate("partial sums", largest, comm::Sharing::per_rank);
  });
  count_buffer(*partial_sums_);
}

void Runtime::count_reduction(const Unit& unit, DType wire, DType sums) {
  const auto others = static_cast<std::uint64_t>(shards_ - 1);
  const auto copies = static_cast<std::uint64_t>(replicas());
  if (shards_ > 1) {
    std::uint64_t elements = 0;
    for (const auto& local : unit.local_segments()) {
      elements += static_cast<std::uint64_t>(local.range.count);
    }
    statistics_.bytes += others * elements * size_of(wire);
    ++statistics_.collectives;
  }
  if (copies > 1) {  // an all-reduce moves its data twice
    const std::uint64_t bytes =
        shards_ == 1 ? static_cast<std::uint64_t>(unit.layout().gradient_elements()) * size_of(wire)
                     : static_cast<std::uint64_t>(unit.local_gradient_elements()) * size_of(sums);
    statistics_.bytes += 2 * bytes * (copies - 1) / copies;
    ++statistics_.collectives;
  }
}

void Runtime::at_end_of_backward() {
  end_expected_ = false;
  for (auto it = units_.rbegin(); it != units_.rend(); ++it) {
    reduce(**it);
    // Sums of no_sync passes wait for the next pass that synchronises, whether it used the unit or
    // not.
    if (synchronise_ && (*it)->unsynchronised_is_set) reduce_unsynchronised(**it);
    (*it)->pending_backwards = 0;
  }
  join(last_reduction_);
  if (row_.unsharded != Unsharded::until_step) {
    for (const auto& unit : units_) reshard(*unit);
  }
  if (!current_order_.empty()) {
    forward_order_ = std::move(current_order_);
    current_order_.clear();
  }
  ++pass_;
}

}  // namespace tessera
