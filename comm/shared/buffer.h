// Collective memory that all ranks of a group map, with counters that show which ranks still read
// it.
//
// Contents are counted. Every collective that publishes the buffer begins generation n; a rank that
// has finished reading stores n as released. The buffer may be written again when every rank has
// released the last generation. On a GPU the counters are the same and lie in host memory, the
// regions are a DeviceBuffer, and points in the ranks' queues carry the same order to the device.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "comm/communicator.h"
#include "comm/held_memory.h"
#include "comm/shared/device_parts.h"
#include "comm/shared/group.h"

namespace tessera::comm {

class SharedBuffer final : public Buffer {
 public:
  // Collective. `number` counts the buffers of the group.
  static std::shared_ptr<SharedBuffer> allocate(const std::shared_ptr<Group>& group,
                                                std::string_view name, std::size_t bytes,
                                                Sharing sharing, std::uint64_t number);

  SharedBuffer(std::shared_ptr<Group> group, std::unique_ptr<Segment> segment,
               std::shared_ptr<DeviceBuffer> on_device, std::string name, std::size_t bytes,
               Sharing sharing, std::uint64_t number);
  ~SharedBuffer() override;
  SharedBuffer(const SharedBuffer&) = delete;
  SharedBuffer& operator=(const SharedBuffer&) = delete;

  [[nodiscard]] const std::string& name() const override { return name_; }
  [[nodiscard]] std::byte* data() const override;
  [[nodiscard]] std::size_t bytes() const override { return bytes_; }
  [[nodiscard]] Sharing sharing() const override { return sharing_; }
  void release() override;

  [[nodiscard]] const Group& group() const { return *group_; }
  // The region of a rank; a one_copy buffer has one region.
  [[nodiscard]] std::byte* region(int rank) const;
  // A call on this buffer, for the ranks to compare.
  [[nodiscard]] Call call(Op op, Tag tag) const;

  void acquire(Tag tag);
  // The writer has finished: the contents become the next generation. A logic_error without
  // acquire().
  void publish(Op op);

 private:
  enum class State : std::uint8_t { released, acquired, published };

  [[nodiscard]] std::atomic<std::uint64_t>& released_by(int rank) const;

  std::shared_ptr<Group> group_;
  std::unique_ptr<Segment> segment_;
  std::shared_ptr<DeviceBuffer> on_device_;  // null on the CPU; destroyed before the segment
  std::string name_;
  std::size_t bytes_;
  Sharing sharing_;
  Call call_;  // the fields that all calls on this buffer share
  std::uint64_t generation_ = 0;
  std::atomic<State> state_{State::released};  // release() may come from another thread
  HeldBlock held_;
};

}  // namespace tessera::comm
