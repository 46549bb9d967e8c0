// Buffers of NCCL communicators.
#include "comm/nccl/buffer.h"

#include <algorithm>

#include "base/error.h"
#include "engine/device/backend.h"

namespace tessera::comm {

NcclMemory::NcclMemory(Device device, std::size_t bytes, std::string_view what,
                       const std::shared_ptr<HeldMemory>& held)
    : bytes_(bytes) {
  const std::shared_ptr<MemorySource> source = backend_of(device.type).memory_source(device);
  const std::size_t unit = source->granularity(bytes);
  const std::size_t rounded = std::max(unit, (bytes + unit - 1) / unit * unit);
  std::byte* block = source->obtain(rounded);
  TESSERA_CHECK(block != nullptr, ErrorCode::out_of_memory,
                "out of memory on {}: {} bytes for '{}'; use a smaller batch, a sharding strategy "
                "that holds less, or more ranks",
                device.to_string(), bytes, what);
  memory_ = std::shared_ptr<std::byte>(
      block, [source, rounded](std::byte* freed) { source->give_back(freed, rounded); });
  held_ = HeldBlock(held, bytes);
  current_queue(device).zero(block, bytes);
}

NcclBuffer::NcclBuffer(const void* owner, Device device, std::string_view name, std::size_t bytes,
                       Sharing sharing, std::uint64_t number,
                       const std::shared_ptr<HeldMemory>& held)
    : owner_(owner),
      device_(device),
      name_(name),
      memory_(device, bytes, name, held),
      sharing_(sharing),
      number_(number) {
  // The first writer may use another queue than the zeroing.
  released_ = current_queue(device_).record();
}

NcclBuffer::~NcclBuffer() {
  const std::lock_guard lock(mutex_);
  try {
    if (released_) released_->synchronize();
  } catch (const std::exception&) {
    // The device has failed: nothing reads the memory any more, and code that waits for the device
    // gets the error.
  }
}

void NcclBuffer::acquire() {
  const std::lock_guard lock(mutex_);
  TESSERA_REQUIRE(state_ != State::published,
                  "acquire of '{}': this rank has not released the last contents", name_);
  current_queue(device_).wait(released_);
  state_ = State::acquired;
}

void NcclBuffer::publish() {
  const std::lock_guard lock(mutex_);
  TESSERA_REQUIRE(state_ == State::acquired, "'{}' is published without acquire()", name_);
  state_ = State::published;
}

void NcclBuffer::release() {
  const std::lock_guard lock(mutex_);
  TESSERA_REQUIRE(state_ == State::published, "release of '{}', which is not published", name_);
  released_ = current_queue(device_).record();
  state_ = State::released;
}

}  // namespace tessera::comm
