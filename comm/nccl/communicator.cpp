// Collectives by NCCL: setup, gathers, small messages. Reductions are in reductions.cpp.
#include "comm/nccl/communicator.h"

#include <algorithm>

#include "base/error.h"
#include "base/home_process.h"
#include "comm/outcome.h"
#include "engine/device/backend.h"

namespace tessera::comm {

NcclCommunicator::NcclCommunicator(std::shared_ptr<NcclJob> job, control::HubGroup group,
                                   std::shared_ptr<NcclChannel> channel, bool fixed_order)
    : job_(std::move(job)),
      group_(std::move(group)),
      channel_(std::move(channel)),
      fixed_order_(fixed_order) {
  job_->watch(channel_);
}

NcclBuffer& NcclCommunicator::own(Buffer& buffer, Op op) const {
  auto* mine = dynamic_cast<NcclBuffer*>(&buffer);
  TESSERA_REQUIRE(mine != nullptr && mine->owner() == this,
                  "{} on '{}': the buffer comes from another communicator", name_of(op),
                  group_.name());
  return *mine;
}

Call NcclCommunicator::call_of(Op op, const NcclBuffer& buffer, Tag tag) const {
  Call call(op, tag);
  call.bytes = buffer.bytes();
  call.buffer = buffer.number();
  call.sharing = buffer.sharing();
  call.set_name(buffer.name());
  return call;
}

std::shared_ptr<Buffer> NcclCommunicator::allocate(std::string_view name, std::size_t bytes,
                                                   Sharing sharing) {
  Call call(Op::allocate, {.phase = Phase::setup});
  call.bytes = bytes;
  call.buffer = ++buffers_;
  call.sharing = sharing;
  call.set_name(name);
  std::shared_ptr<NcclBuffer> buffer;
  agree_on_memory(call, [&] {
    buffer = make_shared_at_home<NcclBuffer>(this, device(), name, bytes, sharing, buffers_,
                                             job_->held_memory());
  });
  return buffer;
}

// Either all ranks get the memory or none does: a rank without memory must not leave the others
// waiting.
void NcclCommunicator::agree_on_memory(const Call& call, const std::function<void()>& take) {
  std::string outcome = encode_success(0);
  try {
    take();
  } catch (const Error& error) {
    outcome = encode_error(error);
  }
  for (const std::string& result : group_.exchange(call, outcome)) (void)decode_result(result);
}

void NcclCommunicator::acquire(Buffer& buffer, Tag tag) {
  NcclBuffer& mine = own(buffer, Op::acquire);
  job_->control().check(call_of(Op::acquire, mine, tag));
  mine.acquire();
}

void NcclCommunicator::do_all_gather(Buffer& buffer, const std::vector<GatheredRange>& ranges,
                                     Tag tag) {
  NcclBuffer& mine = own(buffer, Op::all_gather);
  Call call = call_of(Op::all_gather, mine, tag);
  call.bytes = total_bytes(ranges);
  std::vector<NcclChannel::Gathered> parts;
  for (const GatheredRange& range : ranges) {
    parts.push_back({mine.data() + range.first, range.bytes / static_cast<std::size_t>(size())});
  }
  mine.publish();
  const bool plain = std::all_of(ranges.begin(), ranges.end(), [](const GatheredRange& range) {
    return range.wire == WireFormat::same;
  });
  collective(call, [&] {
    if (plain) {
      channel_->all_gather(parts, current_queue(device()));
    } else {
      gather_as_wire(mine, ranges);
    }
  });
}

std::shared_ptr<Communicator> NcclCommunicator::split(int color, int key, std::string_view name) {
  control::HubGroup group = group_.split(color, key, name);
  std::shared_ptr<NcclChannel> channel = channel_->split(color, key, group.rank());
  return make_shared_at_home<NcclCommunicator>(job_, std::move(group), std::move(channel),
                                               fixed_order_);
}

std::shared_ptr<Communicator> NcclCommunicator::duplicate(std::string_view name) {
  return split(0, rank(), name);
}

}  // namespace tessera::comm
