// The parts that ranks share on their GPU when they are threads of one process: collective memory,
// and the points in their queues after which it may be read and written.
//
// The ranks' threads meet on the host as they do on the CPU. A rank records a point after it has
// put work into its queue, and the queues of the others wait for the point, so that the device's
// order follows the host's without a thread that waits for the device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "comm/communicator.h"
#include "engine/device/memory.h"
#include "engine/device/queue.h"

namespace tessera::comm {

// The points of a group's rounds (group.h): two places for each rank, used alternately like a
// group's posts.
class RoundPoints {
 public:
  RoundPoints(Device device, int ranks);
  // Records the end of the calling thread's current queue: the work of `rank` before the round.
  void post(int rank, std::uint64_t round);
  // After the round: the calling thread's current queue waits for all ranks' points.
  void await(std::uint64_t round);

 private:
  Device device_;
  std::mutex mutex_;
  std::vector<PointHandle> points_;  // of rank r in round n: 2 * r + n % 2
};

// The memory of one collective buffer, zero-filled, and the points of ranks that still use it.
class DeviceBuffer {
 public:
  // Throws Error(out_of_memory). Waits for the zeros.
  DeviceBuffer(Device device, int ranks, std::size_t bytes, Sharing sharing);
  // Waits on the host for the work of all ranks: afterwards the memory may be reused.
  ~DeviceBuffer();
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;

  // The region of a rank; a one_copy buffer has one region.
  [[nodiscard]] std::byte* region(int rank) const;
  // All work of `rank` on the contents is already in the calling thread's current queue.
  void release(int rank);
  // After all ranks have released: the calling thread's current queue waits for their work.
  void await_released();
  // `rank` drops the buffer; the calling thread's current queue may still work on it.
  void leave(int rank) noexcept;

 private:
  class Block;

  Device device_;
  Sharing sharing_;
  std::vector<std::unique_ptr<Block>> blocks_;
  std::mutex mutex_;
  std::vector<PointHandle> released_;  // by rank
  std::vector<PointHandle> left_;      // by rank
};

// All of a job's parts. Thread-safe.
class DeviceParts {
 public:
  explicit DeviceParts(Device device) : device_(device) {}
  [[nodiscard]] Device device() const { return device_; }

  // Ranks that pass the same range of the job's arena get the same object. The first call makes it,
  // and it ends with its last holder.
  std::shared_ptr<RoundPoints> points_of_group(std::uint64_t where, int ranks);
  std::shared_ptr<DeviceBuffer> buffer(std::uint64_t where, int ranks, std::size_t bytes,
                                       Sharing sharing);

 private:
  Device device_;
  std::mutex mutex_;
  std::map<std::uint64_t, std::weak_ptr<RoundPoints>> groups_;
  std::map<std::uint64_t, std::weak_ptr<DeviceBuffer>> buffers_;
};

}  // namespace tessera::comm
