// Copies of masters and reduced gradients that lie on the host of a GPU: up before a gather and
// down after a reduction.
//
// Each class belongs to the thread of one side stream and has its own queue next to that stream's,
// so that copies overlap with collectives. Points order the copies; no thread waits.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/dtype.h"
#include "engine/device/memory_kind.h"
#include "engine/device/queue.h"
#include "engine/storage/storage.h"

namespace tessera {

// Copies elements in memory of the device, cast, in the calling thread's current queue.
void copy_cast(Device device, const std::byte* in, std::int64_t count, DType dtype, std::byte* out,
               DType out_dtype);

// Belongs to the gather stream.
class ParameterUploads {
 public:
  // `follow`: a queue writes the masters, not the CPU, so each upload follows the earlier work of
  // the current queue.
  ParameterUploads(Device device, std::size_t piece_bytes, std::size_t largest, bool follow);

  // Copies elements from the host's memory, cast, to memory of the GPU, in the order of the current
  // queue. The copies pass through pieces on the GPU, which are sent ahead of that queue.
  void upload(const std::byte* from, std::int64_t count, DType dtype, std::byte* to,
              DType to_dtype);
  // All uploads so far have read the host's memory.
  [[nodiscard]] PointHandle read() { return queue_->record(); }

  static std::size_t bytes(std::size_t piece_bytes, std::size_t largest);

 private:
  static constexpr std::size_t pieces = 2;
  static std::size_t bytes_of_piece(std::size_t piece_bytes, std::size_t largest);

  Device device_;
  std::size_t piece_bytes_;
  bool follow_;
  std::shared_ptr<Storage> memory_;
  std::array<PointHandle, pieces> writable_;
  std::size_t next_ = 0;
  std::unique_ptr<DeviceQueue> queue_;  // destroyed, after a wait, before memory_
};

// Belongs to the reduce stream. A unit's gradient is summed in memory of the GPU, while the
// previous unit's gradient is copied down.
class GradientDownloads {
 public:
  GradientDownloads(Device device, std::size_t largest);

  // The memory in which the current queue's next work sums the gradient. It holds the host's
  // gradient first, if one is set.
  [[nodiscard]] std::byte* open(const std::byte* host, std::size_t bytes, bool is_set);
  // Copies the current queue's sum to the host. Returns the point at which the copy is complete.
  PointHandle close(std::byte* host, std::size_t bytes);

  static constexpr std::size_t buffers = 2;

 private:
  Device device_;
  std::array<std::shared_ptr<Storage>, buffers> memory_;
  std::array<PointHandle, buffers> writable_;
  std::size_t next_ = 0;
  std::unique_ptr<DeviceQueue> queue_;
};

}  // namespace tessera
