#include "sharding/runtime/side_streams.h"

#include <algorithm>

namespace tessera {

SideStreams::SideStreams(Device device, const ProcessGroups& groups)
    : device_(device),
      groups_(groups),
      stalls_(device),
      gather_(std::make_unique<Stream>("gather", device)),
      reduce_(std::make_unique<Stream>("reduce", device)) {
  if (groups.sums_in_two_levels()) across_ = std::make_unique<Stream>("all-reduce", device);
}

void SideStreams::end() {
  gather_.reset();
  reduce_.reset();  // it may wait for the gather stream
  across_.reset();
}

void SideStreams::join(const Event& event, Exposed what, const Unit& unit) {
  // On other devices, join() must also inform the queue and the log of a plan.
  if (device_.type == DeviceType::cpu && event.succeeded()) return;
  const comm::RankWaits waits(groups_.control());
  const ComputeScope wait(recorder(), SpanKind::wait, unit.index(), what);
  stalls_.join(event);
}

std::shared_ptr<comm::Buffer> SideStreams::allocate(Stream& stream, comm::Communicator& group,
                                                    std::string_view name, std::size_t bytes,
                                                    comm::Sharing sharing) {
  std::shared_ptr<comm::Buffer> buffer;
  const comm::RankWaits waits(groups_.control());
  stream.attempt(for_worker([&] {
    buffer = group.allocate(name, bytes, sharing);
    if (sharing == comm::Sharing::per_rank) group.acquire(*buffer);
  }));
  count_buffer(buffer->bytes());
  return buffer;
}

void SideStreams::reserve_scratch(Stream& stream, comm::Communicator& group, std::size_t bytes,
                                  std::size_t& reserved) {
  const comm::RankWaits waits(groups_.control());
  stream.attempt(for_worker([&] { group.reserve_scratch(bytes); }));
  if (bytes <= reserved) return;
  ++statistics_.allocations;
  statistics_.buffers += reserved == 0 ? 1 : 0;
  statistics_.buffer_bytes += bytes - reserved;
  reserved = bytes;
}

void SideStreams::count_buffer(std::size_t bytes) {
  ++statistics_.allocations;
  ++statistics_.buffers;
  statistics_.buffer_bytes += bytes;
}

void SideStreams::drop(std::shared_ptr<comm::Buffer>& buffer) {
  --statistics_.buffers;
  statistics_.buffer_bytes -= buffer->bytes();
  buffer.reset();
}

void SideStreams::count_collective(std::uint64_t bytes) {
  ++statistics_.collectives;
  statistics_.bytes += bytes;
}

CommunicationStatistics SideStreams::statistics() const {
  CommunicationStatistics result = statistics_;
  result.exposed_seconds = stalls_.seconds();
  result.busy_seconds = gather_->busy_seconds() + reduce_->busy_seconds();
  if (across_) result.busy_seconds += across_->busy_seconds();
  // A group inside a node sends nothing to other nodes; a group that spans nodes counts for all.
  result.bytes_between_hosts =
      std::max(groups_.gather().bytes_between_hosts(), groups_.across().bytes_between_hosts());
  return result;
}

const std::shared_ptr<StepRecorder>& SideStreams::record(std::vector<std::string> names) {
  if (recorder_) return recorder_;
  // Work that is still in side streams reads recorder_.
  for (const auto* stream : {&gather_, &reduce_, &across_}) {
    if (*stream) (*stream)->synchronize();
  }
  return recorder_ = std::make_shared<StepRecorder>(std::move(names), device_);
}

}  // namespace tessera
