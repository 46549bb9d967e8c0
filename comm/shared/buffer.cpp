// Allocation of collective memory, and its acquire and release.
#include "comm/shared/buffer.h"

#include <limits>
#include <new>
#include <optional>

#include "base/error.h"
#include "base/home_process.h"
#include "comm/outcome.h"

namespace tessera::comm {
namespace {

struct alignas(64) Released {
  std::atomic<std::uint64_t> generation{0};
};

struct alignas(64) BufferHeader : SegmentHeader {};

// The contents of a buffer's range: the header, a counter for each rank, then the regions (empty
// when they lie on a GPU).
struct Layout {
  std::size_t header_bytes;
  std::size_t region_bytes;
  std::size_t total_bytes;

  Layout(int ranks, std::size_t bytes, Sharing sharing)
      : header_bytes(round_up(
            sizeof(BufferHeader) + sizeof(Released) * static_cast<std::size_t>(ranks), page_bytes)),
        region_bytes(round_up(bytes, page_bytes)),
        total_bytes(header_bytes +
                    region_bytes *
                        (sharing == Sharing::per_rank ? static_cast<std::size_t>(ranks) : 1)) {}
};

// The part of the range that `rank` commits, so that its memory is near the rank that will write
// it.
struct Part {
  std::size_t offset, bytes;
};
Part part_of(const Layout& layout, Sharing sharing, int rank, int ranks) {
  if (sharing == Sharing::per_rank) {
    return {layout.header_bytes + layout.region_bytes * static_cast<std::size_t>(rank),
            layout.region_bytes};
  }
  const std::size_t pages = layout.region_bytes / page_bytes;
  const auto boundary = [&](int index) {
    return pages * static_cast<std::size_t>(index) / static_cast<std::size_t>(ranks) * page_bytes;
  };
  return {layout.header_bytes + boundary(rank), boundary(rank + 1) - boundary(rank)};
}

// The first rank makes the range and sends its place to the others.
std::uint64_t agree_on_range(Group& group, const Call& call, const Layout& layout) {
  std::string message;
  if (group.rank() == 0) {
    Arena& arena = *group.job()->arena();
    try {
      const std::uint64_t where = arena.reserve(layout.total_bytes);
      std::byte* memory = arena.map(where, layout.header_bytes);
      arena.commit(where, 0, layout.header_bytes);
      auto* header = new (memory) BufferHeader;
      header->holders.store(static_cast<std::uint32_t>(group.size()), std::memory_order_relaxed);
      auto* released = reinterpret_cast<Released*>(header + 1);
      for (int rank = 0; rank < group.size(); ++rank) new (&released[rank]) Released;
      arena.unmap(memory, layout.header_bytes);
      message = encode_success(where);
    } catch (const Error& error) {
      message = encode_error(error);
    }
  }
  return decode_result(group.exchange(call, message).front());
}

}  // namespace

std::shared_ptr<SharedBuffer> SharedBuffer::allocate(const std::shared_ptr<Group>& group,
                                                     std::string_view name, std::size_t bytes,
                                                     Sharing sharing, std::uint64_t number) {
  TESSERA_REQUIRE(
      bytes < std::numeric_limits<std::size_t>::max() / 2 / static_cast<std::size_t>(group->size()),
      "allocate '{}': {} bytes is too much", name, bytes);
  Call call(Op::allocate, {.phase = Phase::setup});
  call.bytes = bytes;
  call.buffer = number;
  call.sharing = sharing;
  call.set_name(name);

  const std::shared_ptr<DeviceParts>& parts = group->job()->device_parts();
  const Layout layout(group->size(), parts ? 0 : bytes, sharing);
  const std::shared_ptr<Arena>& arena = group->job()->arena();
  const std::uint64_t where = agree_on_range(*group, call, layout);
  std::unique_ptr<Segment> segment;
  std::shared_ptr<DeviceBuffer> on_device;
  std::string outcome = encode_success(where);
  try {
    segment = std::make_unique<Segment>(arena, where, layout.total_bytes,
                                        arena->map(where, layout.total_bytes));
    const Part part = part_of(layout, sharing, group->rank(), group->size());
    arena->commit(where, part.offset, part.bytes);
    if (parts) on_device = parts->buffer(where, group->size(), bytes, sharing);
  } catch (const Error& error) {
    outcome = encode_error(error);
  }
  // Either all ranks get the buffer or none does: a rank without memory must not leave the others
  // waiting.
  for (const std::string& result : group->exchange(call, outcome)) decode_result(result);
  // A rank reads only parts of the other ranks' regions, whose owners have already faulted in the
  // pages: mapping all of them here would count each rank's buffers as memory of every rank.
  const Part used = sharing == Sharing::per_rank
                        ? part_of(layout, sharing, group->rank(), group->size())
                        : Part{0, layout.total_bytes};
  arena->prefault(segment->memory() + used.offset, used.bytes);
  return make_shared_at_home<SharedBuffer>(group, std::move(segment), std::move(on_device),
                                           std::string(name), bytes, sharing, number);
}

SharedBuffer::SharedBuffer(std::shared_ptr<Group> group, std::unique_ptr<Segment> segment,
                           std::shared_ptr<DeviceBuffer> on_device, std::string name,
                           std::size_t bytes, Sharing sharing, std::uint64_t number)
    : group_(std::move(group)),
      segment_(std::move(segment)),
      on_device_(std::move(on_device)),
      name_(std::move(name)),
      bytes_(bytes),
      sharing_(sharing),
      held_(group_->job()->held_memory(), share_of_buffer(bytes, sharing, group_->size())) {
  call_.bytes = bytes;
  call_.buffer = number;
  call_.sharing = sharing;
  call_.set_name(name_);
}

SharedBuffer::~SharedBuffer() {
  // This thread's queue may still use contents that were not released.
  if (on_device_ && state_.load() != State::released) on_device_->leave(group_->rank());
  // A rank that has dropped the buffer does not read it any more.
  released_by(group_->rank()).store(std::numeric_limits<std::uint64_t>::max());
  group_->wake();
}

std::byte* SharedBuffer::region(int rank) const {
  if (on_device_) return on_device_->region(rank);
  const Layout layout(group_->size(), bytes_, sharing_);
  const std::size_t index = sharing_ == Sharing::per_rank ? static_cast<std::size_t>(rank) : 0;
  return segment_->memory() + layout.header_bytes + layout.region_bytes * index;
}

std::byte* SharedBuffer::data() const {
  return region(group_->rank());
}

std::atomic<std::uint64_t>& SharedBuffer::released_by(int rank) const {
  auto* header = reinterpret_cast<BufferHeader*>(segment_->memory());
  return reinterpret_cast<Released*>(header + 1)[rank].generation;
}

Call SharedBuffer::call(Op op, Tag tag) const {
  Call call = call_;
  call.op = op;
  call.set_tag(tag);
  return call;
}

void SharedBuffer::acquire(Tag tag) {
  const State state = state_.load(std::memory_order_acquire);
  if (state == State::acquired) return;
  TESSERA_REQUIRE(
      state == State::released,
      "acquire of '{}': this rank has not released its contents, and would wait for itself", name_);
  const Call waiting = call(Op::acquire, tag);
  group_->check(waiting);
  group_->wait(waiting, [this](int rank) { return released_by(rank).load() < generation_; });
  if (on_device_) on_device_->await_released();
  state_.store(State::acquired, std::memory_order_relaxed);
}

void SharedBuffer::publish(Op op) {
  TESSERA_REQUIRE(state_.load(std::memory_order_relaxed) == State::acquired,
                  "{} of '{}': acquire() has to come first", name_of(op), name_);
  ++generation_;
  state_.store(State::published, std::memory_order_release);
}

void SharedBuffer::release() {
  if (group_->job()->home().left()) return;
  State expected = State::published;
  TESSERA_REQUIRE(
      state_.compare_exchange_strong(expected, State::released, std::memory_order_acq_rel),
      "release of '{}': it holds no contents that this rank has not released", name_);
  if (on_device_) on_device_->release(group_->rank());
  released_by(group_->rank()).store(generation_);
  group_->wake();
}

}  // namespace tessera::comm
