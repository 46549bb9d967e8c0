// Masters and reduced gradients that lie on the host of a GPU: their way up before a gather and
// down after a reduction.
//
// Each belongs to one side stream's thread and has a queue of its own beside that stream's, so that
// copies run while collectives do. Who needs what is ordered by points; no thread waits.
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

// Of the gather stream.
class ParameterUploads {
 public:
  // `follow`: masters are written by a queue and not by the CPU, so what the current queue has done
  // comes before each upload.
  ParameterUploads(Device device, std::size_t piece_bytes, std::size_t largest, bool follow);

  // Elements of the host's memory, cast, to memory of the GPU: in the current queue's order there,
  // by way of pieces on the GPU that are sent ahead of it.
  void upload(const std::byte* from, std::int64_t count, DType dtype, std::byte* to,
              DType to_dtype);
  // Everything so far has been read from the host.
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
  std::unique_ptr<DeviceQueue> queue_;  // ends, and is waited for, before what it copies to
};

// Of the reduce stream. A unit's gradient is summed in memory of the GPU, while that of the unit
// before goes down.
class GradientDownloads {
 public:
  GradientDownloads(Device device, std::size_t largest);

  // Where the next gradient is summed, from the current queue's next work on; with what the host
  // has of it, when there is something.
  [[nodiscard]] std::byte* open(const std::byte* host, std::size_t bytes, bool is_set);
  // What the current queue has summed there goes to the host. The point at which it is there.
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
