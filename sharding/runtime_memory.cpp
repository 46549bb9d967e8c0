// Allocating what the plan says.
#include <algorithm>

#include "kernels/base/error.h"
#include "sharding/runtime.h"

namespace tessera {

BufferPlan Runtime::plan(bool no_sync) const {
  std::vector<PlannedUnit> units;
  for (const auto& unit : units_) units.push_back({unit->name(), &unit->layout()});
  const PlannedWorld world{.size = world_size_,
                           .device = device_,
                           .nccl = !gather_group_->one_memory(),
                           .fixed_order = gather_group_->fixed_order()};
  return buffer_plan(units, options_, world, no_sync);
}

void Runtime::allocate() {
  for (const PlannedBuffer& planned : plan(false).buffers) allocate(planned);
}

void Runtime::stop_synchronising() {
  TESSERA_REQUIRE(synchronise_, "no_sync inside no_sync");
  if (!has_local_sums_) {
    for (const PlannedBuffer& planned : plan(true).buffers) {
      const bool is_new = planned.use == BufferUse::local_sum ||
                          planned.use == BufferUse::reduce_scratch ||
                          planned.use == BufferUse::replicas_scratch;
      if (is_new) allocate(planned);
    }
    has_local_sums_ = true;
  }
  synchronise_ = false;
}

void Runtime::allocate(const PlannedBuffer& planned) {
  const auto index = static_cast<std::size_t>(std::max(planned.unit, 0));
  UnitState& state = states_[index];
  for (int i = 0; i < planned.count; ++i) {
    switch (planned.use) {
      case BufferUse::masters:        // with the unit
      case BufferUse::master_window:  // with the files
      case BufferUse::gradient_window:
      case BufferUse::reduced_gradient:
      case BufferUse::upload_window:
        break;
      case BufferUse::gradient_shard:
        (void)units_[index]->gradient_shard();
        units_[index]->discard_unset_gradient();
        break;
      case BufferUse::gathered:
        state.own_parameters = allocate_parameters(planned.bytes);
        break;
      case BufferUse::gathered_pool:
        pool_parameter_bytes_ = planned.bytes;
        free_parameter_buffers_.push_back(allocate_parameters(planned.bytes));
        break;
      case BufferUse::gradient:
        state.own_gradient.buffer =
            allocate_gradient(planned.unit == 0 ? "root gradients" : "gradients", planned.bytes);
        break;
      case BufferUse::gradient_pool:
        pool_gradient_bytes_ = planned.bytes;
        free_gradient_buffers_.push_back({allocate_gradient("gradients", planned.bytes), {}});
        break;
      case BufferUse::local_sum:
        if (!state.local_sum.buffer)
          state.local_sum.buffer = allocate_gradient("no_sync sums", planned.bytes);
        break;
      case BufferUse::partial_sums:
        attempt(*reduce_stream_, [&] {
          partial_sums_ =
              reduce_replicas_->allocate("partial sums", planned.bytes, comm::Sharing::per_rank);
        });
        count_buffer(*partial_sums_);
        break;
      case BufferUse::reduce_scratch:
        reserve_scratch(*reduce_group_, planned.bytes);
        break;
      case BufferUse::replicas_scratch:
        reserve_scratch(*reduce_replicas_, planned.bytes);
        break;
    }
  }
}

std::shared_ptr<comm::Buffer> Runtime::allocate_parameters(std::size_t bytes) {
  std::shared_ptr<comm::Buffer> buffer;
  attempt(*gather_stream_,
          [&] { buffer = gather_group_->allocate("parameters", bytes, comm::Sharing::one_copy); });
  count_buffer(*buffer);
  return buffer;
}

// The ranks that are summed first are those that must see the memory.
std::shared_ptr<comm::Buffer> Runtime::allocate_gradient(std::string_view name, std::size_t bytes) {
  comm::Communicator& group = first_reduction_group();
  std::shared_ptr<comm::Buffer> buffer;
  attempt(*reduce_stream_, [&] {
    buffer = group.allocate(name, bytes, comm::Sharing::per_rank);
    group.acquire(*buffer);
  });
  count_buffer(*buffer);
  return buffer;
}

void Runtime::reserve_scratch(comm::Communicator& group, std::size_t bytes) {
  std::size_t& reserved = &group == reduce_group_.get() ? reduce_scratch_ : replicas_scratch_;
  // Collective, also where this rank's part does not grow.
  attempt(*reduce_stream_, [&] { group.reserve_scratch(bytes); });
  if (bytes <= reserved) return;
  ++statistics_.allocations;
  statistics_.buffers += reserved == 0 ? 1 : 0;
  statistics_.buffer_bytes += bytes - reserved;
  reserved = bytes;
}

void Runtime::count_buffer(const comm::Buffer& buffer) {
  ++statistics_.allocations;
  ++statistics_.buffers;
  statistics_.buffer_bytes += buffer.bytes();
}

void Runtime::drop(std::shared_ptr<comm::Buffer>& buffer) {
  --statistics_.buffers;
  statistics_.buffer_bytes -= buffer->bytes();
  buffer.reset();
}

}  // namespace tessera
