// Memory from rank to rank over NCCL.
#include "base/error.h"
#include "comm/nccl/communicator.h"

namespace tessera::comm {

// Not announced to the control plane, which compares calls of all ranks of a group: only two ranks
// make this one.
void NcclCommunicator::do_send(const void* memory, std::size_t bytes, int to, Tag tag) {
  const Call call = call_of_message(bytes, to, tag);
  job_->control().check(call);
  if (bytes == 0) return;
  channel_->transfer({{to, static_cast<const std::byte*>(memory), nullptr, bytes}},
                     current_queue(device()));
  job_->expect(call, current_queue(device()).record());
}

void NcclCommunicator::do_receive(void* memory, std::size_t bytes, int from, Tag tag) {
  const Call call = call_of_message(bytes, rank(), tag);
  job_->control().check(call);
  if (bytes == 0) return;
  channel_->transfer({{from, nullptr, static_cast<std::byte*>(memory), bytes}},
                     current_queue(device()));
  job_->expect(call, current_queue(device()).record());
}

void NcclCommunicator::do_all_to_all(Buffer& buffer, std::size_t bytes, void* out, Tag tag) {
  NcclBuffer& mine = own(buffer, Op::all_to_all);
  Call call = call_of(Op::all_to_all, mine, tag);
  call.bytes = bytes;
  mine.publish();
  collective(call, [&] {
    if (bytes == 0) return;
    DeviceQueue& queue = current_queue(device());
    std::vector<NcclChannel::Transfer> transfers;
    for (int peer = 0; peer < size(); ++peer) {
      const std::size_t offset = static_cast<std::size_t>(peer) * bytes;
      std::byte* target = static_cast<std::byte*>(out) + offset;
      if (peer == rank()) {
        queue.copy(target, mine.data() + offset, bytes);
      } else {
        transfers.push_back({peer, mine.data() + offset, nullptr, bytes});
        transfers.push_back({peer, nullptr, target, bytes});
      }
    }
    if (!transfers.empty()) channel_->transfer(transfers, queue);
  });
  mine.release();
}

void NcclCommunicator::do_broadcast(void* memory, std::size_t bytes, int root, Tag tag) {
  Call call(Op::broadcast, tag);
  call.root = root;
  call.bytes = bytes;
  auto* data = static_cast<std::byte*>(memory);
  collective(call, [&] {
    std::vector<NcclChannel::Transfer> transfers;
    for (int other = 0; other < size() && rank() == root; ++other) {
      if (other != root) transfers.push_back({other, data, nullptr, bytes});
    }
    if (rank() != root) transfers.push_back({root, nullptr, data, bytes});
    if (bytes > 0 && !transfers.empty()) channel_->transfer(transfers, current_queue(device()));
  });
}

}  // namespace tessera::comm
