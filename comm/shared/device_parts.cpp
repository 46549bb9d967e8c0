// Memory and points of ranks that share a GPU.
#include "comm/shared/device_parts.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "base/error.h"
#include "base/text/print.h"
#include "comm/shared/arena.h"
#include "engine/device/backend.h"

namespace tessera::comm {
namespace {

// Returns the object of `where` in `objects`, or a new one.
template <class T, class Make>
std::shared_ptr<T> find_or_make(std::map<std::uint64_t, std::weak_ptr<T>>& objects,
                                std::uint64_t where, Make make) {
  std::erase_if(objects, [](const auto& entry) { return entry.second.expired(); });
  if (const auto found = objects.find(where); found != objects.end()) {
    if (std::shared_ptr<T> object = found->second.lock()) return object;
  }
  std::shared_ptr<T> object = make();
  objects[where] = object;
  return object;
}

void wait_for_all(Device device, const std::vector<PointHandle>& points) {
  DeviceQueue& queue = current_queue(device);
  for (const PointHandle& point : points) {
    if (point) queue.wait(point);
  }
}

}  // namespace

RoundPoints::RoundPoints(Device device, int ranks)
    : device_(device), points_(2 * static_cast<std::size_t>(ranks)) {}

void RoundPoints::post(int rank, std::uint64_t round) {
  PointHandle point = current_queue(device_).record();
  const std::lock_guard lock(mutex_);
  points_[2 * static_cast<std::size_t>(rank) + round % 2] = std::move(point);
}

void RoundPoints::await(std::uint64_t round) {
  std::vector<PointHandle> of_round;
  {
    const std::lock_guard lock(mutex_);
    for (std::size_t i = round % 2; i < points_.size(); i += 2) of_round.push_back(points_[i]);
  }
  wait_for_all(device_, of_round);
}

// One region; returns to its source at the end.
class DeviceBuffer::Block {
 public:
  Block(std::shared_ptr<MemorySource> source, std::size_t bytes) : source_(std::move(source)) {
    const std::size_t wanted = std::max<std::size_t>(bytes, 1);
    bytes_ = round_up(wanted, source_->granularity(wanted));
    memory_ = source_->obtain(bytes_);
    TESSERA_CHECK(memory_ != nullptr, ErrorCode::out_of_memory,
                  "cannot get {} bytes of the GPU's memory for collectives; use smaller units or a "
                  "strategy that shards more",
                  bytes_);
  }
  ~Block() { source_->give_back(memory_, bytes_); }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  [[nodiscard]] std::byte* memory() const { return memory_; }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  std::shared_ptr<MemorySource> source_;
  std::size_t bytes_ = 0;
  std::byte* memory_ = nullptr;
};

DeviceBuffer::DeviceBuffer(Device device, int ranks, std::size_t bytes, Sharing sharing)
    : device_(device),
      sharing_(sharing),
      released_(static_cast<std::size_t>(ranks)),
      left_(static_cast<std::size_t>(ranks)) {
  const auto source = backend_of(device.type).memory_source(device);
  DeviceQueue& queue = current_queue(device);
  const int regions = sharing == Sharing::per_rank ? ranks : 1;
  for (int region = 0; region < regions; ++region) {
    blocks_.push_back(std::make_unique<Block>(source, bytes));
    queue.zero(blocks_.back()->memory(), blocks_.back()->bytes());
  }
  queue.synchronize();
}

DeviceBuffer::~DeviceBuffer() {
  try {
    for (const auto* points : {&released_, &left_}) {
      for (const PointHandle& point : *points) {
        if (point) point->synchronize();
      }
    }
  } catch (const std::exception& error) {  // the device is broken: nothing uses the memory
    print_err("giving back memory of {}: {}\n", device_.to_string(), error.what());
  }
}

std::byte* DeviceBuffer::region(int rank) const {
  const std::size_t index = sharing_ == Sharing::per_rank ? static_cast<std::size_t>(rank) : 0;
  return blocks_[index]->memory();
}

void DeviceBuffer::release(int rank) {
  PointHandle point = current_queue(device_).record();
  const std::lock_guard lock(mutex_);
  released_[static_cast<std::size_t>(rank)] = std::move(point);
}

void DeviceBuffer::await_released() {
  std::vector<PointHandle> released;
  {
    const std::lock_guard lock(mutex_);
    released = released_;
  }
  wait_for_all(device_, released);
}

void DeviceBuffer::leave(int rank) noexcept {
  try {
    PointHandle point = current_queue(device_).record();
    const std::lock_guard lock(mutex_);
    left_[static_cast<std::size_t>(rank)] = std::move(point);
  } catch (const std::exception& error) {
    print_err("dropping a collective buffer on {}: {}\n", device_.to_string(), error.what());
  }
}

std::shared_ptr<RoundPoints> DeviceParts::points_of_group(std::uint64_t where, int ranks) {
  const std::lock_guard lock(mutex_);
  return find_or_make(groups_, where,
                      [&] { return std::make_shared<RoundPoints>(device_, ranks); });
}

std::shared_ptr<DeviceBuffer> DeviceParts::buffer(std::uint64_t where, int ranks, std::size_t bytes,
                                                  Sharing sharing) {
  const std::lock_guard lock(mutex_);
  return find_or_make(buffers_, where, [&] {
    return std::make_shared<DeviceBuffer>(device_, ranks, bytes, sharing);
  });
}

}  // namespace tessera::comm
