// Allocates the buffers of the plan.
#include <algorithm>

#include "base/error.h"
#include "engine/device/memory_kind.h"
#include "sharding/runtime/runtime.h"

namespace tessera {

BufferPlan Runtime::plan(bool no_sync) const {
  std::vector<PlannedUnit> units;
  for (const auto& unit : units_) units.push_back({unit->name(), &unit->layout()});
  const PlannedWorld world{.size = world_size_,
                           .device = device_,
                           .nccl = !gather_group_->one_memory(),
                           .over_hosts = reduce_replicas_->ranks_per_host() > 0,
                           .fixed_order = gather_group_->fixed_order()};
  return buffer_plan(units, options_, world, no_sync, ignored_->bytes());
}

void Runtime::allocate() {
  for (const PlannedBuffer& planned : plan(false).buffers) allocate(planned);
}

void Runtime::stop_synchronising() {
  TESSERA_REQUIRE(!in_no_sync_,
                  "no_sync() inside the scope of another no_sync(): one scope is enough. Leave out "
                  "the inner one, or end the outer one before");
  TESSERA_REQUIRE(synchronise_,
                  "no_sync after set_requires_gradient_sync(false), which does the same: use one "
                  "of them");
  allocate_local_sums();
  synchronise_ = false;
  in_no_sync_ = true;
}

void Runtime::allocate_local_sums() {
  if (has_local_sums_) return;
  for (const PlannedBuffer& planned : plan(true).buffers) {
    const bool is_new = planned.use == BufferUse::local_sum ||
                        planned.use == BufferUse::reduce_scratch ||
                        planned.use == BufferUse::replicas_scratch;
    if (is_new) allocate(planned);
  }
  has_local_sums_ = true;
}

void Runtime::allocate(const PlannedBuffer& planned) {
  const auto index = static_cast<std::size_t>(std::max(planned.unit, 0));
  UnitState& state = states_[index];
  for (int i = 0; i < planned.count; ++i) {
    switch (planned.use) {
      case BufferUse::masters:        // with the unit
      case BufferUse::ignored:        // with their modules
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
        state.own_parameters = allocate_parameters(*whole_.ranks, planned.bytes);
        break;
      case BufferUse::gathered_pool: {
        ParameterPool& pool = planned.ranks == 0 ? whole_ : resharded_.at(planned.ranks);
        pool.bytes = planned.bytes;
        pool.free.push_back(allocate_parameters(*pool.ranks, planned.bytes));
        break;
      }
      case BufferUse::resharded:
        allocate_part(state, planned.bytes);
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
        partial_sums_.emplace_back();
        attempt(*across_stream_, [&] {
          auto& buffer = partial_sums_.back().buffer;
          buffer =
              reduce_replicas_->allocate("partial sums", planned.bytes, comm::Sharing::per_rank);
          reduce_replicas_->acquire(*buffer);
        });
        count_buffer(*partial_sums_.back().buffer);
        break;
      case BufferUse::gather_scratch: {
        ParameterPool& pool = planned.ranks == 0 ? whole_ : resharded_.at(planned.ranks);
        reserve_scratch(*pool.ranks, *gather_stream_, planned.bytes, pool.scratch);
        break;
      }
      case BufferUse::reduce_scratch:
        reserve_scratch(*reduce_group_, *reduce_stream_, planned.bytes, reduce_scratch_);
        break;
      case BufferUse::replicas_scratch:
        reserve_scratch(*reduce_replicas_, across_stream_ ? *across_stream_ : *reduce_stream_,
                        planned.bytes, replicas_scratch_);
        break;
    }
  }
}

std::shared_ptr<comm::Buffer> Runtime::allocate_parameters(comm::Communicator& ranks,
                                                           std::size_t bytes) {
  std::shared_ptr<comm::Buffer> buffer;
  attempt(*gather_stream_,
          [&] { buffer = ranks.allocate("parameters", bytes, comm::Sharing::one_copy); });
  count_buffer(*buffer);
  return buffer;
}

void Runtime::allocate_part(UnitState& state, std::size_t bytes) {
  const MemoryScope kind(MemoryKind::communication);
  state.part = Tensor::empty({static_cast<std::int64_t>(bytes)}, uint8, device_);
  ++statistics_.allocations;
  ++statistics_.buffers;
  statistics_.buffer_bytes += bytes;
}

// The ranks of the first reduction must see the memory.
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

void Runtime::reserve_scratch(comm::Communicator& group, Stream& stream, std::size_t bytes,
                              std::size_t& reserved) {
  // Collective, even when this rank's part does not grow.
  attempt(stream, [&] { group.reserve_scratch(bytes); });
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
