// Memory from rank to rank through a range of the arena, which the sender makes and the receiver
// frees.
#include <fmt/format.h>

#include <cstring>

#include "base/error.h"
#include "comm/outcome.h"
#include "comm/shared/communicator.h"
#include "engine/device/queue.h"

namespace tessera::comm {
namespace {

// A range of the arena while it is mapped here.
class MappedRange {
 public:
  MappedRange(Arena& arena, std::uint64_t where, std::size_t bytes)
      : arena_(arena), bytes_(bytes), memory_(arena.map(where, bytes)) {}
  ~MappedRange() { arena_.unmap(memory_, bytes_); }
  MappedRange(const MappedRange&) = delete;
  MappedRange& operator=(const MappedRange&) = delete;

  [[nodiscard]] std::byte* memory() const { return memory_; }

 private:
  Arena& arena_;
  std::size_t bytes_;
  std::byte* memory_;
};

void copy_in(Device device, std::byte* range, const void* memory, std::size_t bytes) {
  if (device.type == DeviceType::cpu) {
    std::memcpy(range, memory, bytes);
  } else {
    current_queue(device).copy_to_host(range, memory, bytes);
  }
}

void copy_out(Device device, void* memory, const std::byte* range, std::size_t bytes) {
  if (device.type == DeviceType::cpu) {
    std::memcpy(memory, range, bytes);
  } else {
    current_queue(device).copy_from_host(memory, range, bytes);
  }
}

// Makes a new range that holds `bytes` of `memory`.
std::uint64_t put_into_range(Arena& arena, Device device, const void* memory, std::size_t bytes) {
  const std::uint64_t where = arena.reserve(round_up(bytes, page_bytes));
  const MappedRange range(arena, where, round_up(bytes, page_bytes));
  arena.commit(where, 0, round_up(bytes, page_bytes));
  copy_in(device, range.memory(), memory, bytes);
  return where;
}

void take_from_range(Arena& arena, Device device, std::uint64_t where, void* memory,
                     std::size_t bytes) {
  const MappedRange range(arena, where, round_up(bytes, page_bytes));
  copy_out(device, memory, range.memory(), bytes);
}

}  // namespace

void SharedCommunicator::do_send(const void* memory, std::size_t bytes, int to, Tag tag) {
  const Call call = call_of_message(bytes, to, tag);
  group_->check(call);
  GroupOutbox& outbox = group_->outbox(rank());
  // Waits for a rank that has not taken the last message.
  const int last = outbox.to.load();
  group_->wait(
      call, [&](int other) { return other == last && outbox.taken.load() < outbox.posted.load(); });
  outbox.where = bytes == 0 ? 0 : put_into_range(*group_->job()->arena(), device(), memory, bytes);
  outbox.call = call;
  outbox.to.store(to);
  outbox.posted.fetch_add(1);
  group_->wake();
}

void SharedCommunicator::do_receive(void* memory, std::size_t bytes, int from, Tag tag) {
  const Call call = call_of_message(bytes, rank(), tag);
  group_->check(call);
  GroupOutbox& outbox = group_->outbox(from);
  group_->wait(call, [&](int other) {
    return other == from &&
           !(outbox.posted.load() > outbox.taken.load() && outbox.to.load() == rank());
  });
  if (outbox.call != call) {
    Job& job = *group_->job();
    job.record_failure(
        fmt::format("{} called {}, and rank {} expected {} of it",
                    job.name_of_rank(group_->members()[static_cast<std::size_t>(from)]),
                    describe(outbox.call), job.number_of_rank(job.rank()), describe(call)));
    throw_failure(job, fmt::format("{} on '{}'", describe(call), group_->name()));
  }
  if (bytes > 0) {
    Arena& arena = *group_->job()->arena();
    take_from_range(arena, device(), outbox.where, memory, bytes);
    arena.discard(outbox.where, round_up(bytes, page_bytes));
  }
  outbox.taken.fetch_add(1);
  group_->wake();
}

void SharedCommunicator::do_broadcast(void* memory, std::size_t bytes, int root, Tag tag) {
  Call call(Op::broadcast, tag);
  call.bytes = bytes;
  call.root = root;
  Arena& arena = *group_->job()->arena();
  std::string outcome;
  if (rank() == root) {
    try {
      outcome = encode_success(bytes == 0 ? 0 : put_into_range(arena, device(), memory, bytes));
    } catch (const Error& error) {
      outcome = encode_error(error);
    }
  }
  const std::uint64_t where =
      decode_result(group_->exchange(call, outcome)[static_cast<std::size_t>(root)]);
  if (bytes > 0 && rank() != root) take_from_range(arena, device(), where, memory, bytes);
  call.part = 1;
  group_->meet(call);  // all ranks have read
  if (bytes > 0 && rank() == root) arena.discard(where, round_up(bytes, page_bytes));
}

}  // namespace tessera::comm
