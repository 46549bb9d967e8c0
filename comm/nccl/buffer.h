// Collective memory of a rank whose peers have separate memories.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "comm/communicator.h"
#include "comm/held_memory.h"
#include "engine/device/queue.h"

namespace tessera::comm {

// Device memory from the arena, zero-filled; freed when the work in the queue that last used it is
// done.
class NcclMemory {
 public:
  NcclMemory() = default;
  NcclMemory(Device device, std::size_t bytes, std::string_view what,
             const std::shared_ptr<HeldMemory>& held);
  [[nodiscard]] std::byte* data() const { return memory_.get(); }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  std::shared_ptr<std::byte> memory_;
  std::size_t bytes_ = 0;
  HeldBlock held_;
};

class NcclBuffer final : public Buffer {
 public:
  NcclBuffer(const void* owner, Device device, std::string_view name, std::size_t bytes,
             Sharing sharing, std::uint64_t number, const std::shared_ptr<HeldMemory>& held);
  ~NcclBuffer() override;

  [[nodiscard]] const std::string& name() const override { return name_; }
  [[nodiscard]] std::byte* data() const override { return memory_.data(); }
  [[nodiscard]] std::size_t bytes() const override { return memory_.bytes(); }
  [[nodiscard]] Sharing sharing() const override { return sharing_; }
  void release() override;

  [[nodiscard]] const void* owner() const { return owner_; }
  [[nodiscard]] std::uint64_t number() const { return number_; }

  // The calling thread's current queue may write when the readers of the last contents are done.
  void acquire();
  void publish();

 private:
  enum class State : std::uint8_t { released, acquired, published };

  const void* owner_;  // the communicator that made it
  Device device_;
  std::string name_;
  NcclMemory memory_;
  Sharing sharing_;
  std::uint64_t number_;
  std::mutex mutex_;  // release() may come from another thread
  State state_ = State::released;
  PointHandle released_;
};

}  // namespace tessera::comm
