// Copies between a GPU and its host, in parallel with the side streams.
#include "sharding/memory/host_transfers.h"

#include <algorithm>

#include "engine/device/backend.h"
#include "engine/device/launch.h"

namespace tessera {

void copy_cast(Device device, const std::byte* in, std::int64_t count, DType dtype, std::byte* out,
               DType out_dtype) {
  if (dtype == out_dtype) {
    current_queue(device).copy(out, in, static_cast<std::size_t>(count) * size_of(dtype));
  } else {
    TESSERA_LAUNCH(device, cast, {in, out, count, dtype, out_dtype, 1.0f, false});
  }
}

std::size_t ParameterUploads::bytes_of_piece(std::size_t piece_bytes, std::size_t largest) {
  constexpr std::size_t unit = 256;
  return std::min(piece_bytes, (largest + unit - 1) / unit * unit);
}

std::size_t ParameterUploads::bytes(std::size_t piece_bytes, std::size_t largest) {
  return pieces * bytes_of_piece(piece_bytes, largest);
}

ParameterUploads::ParameterUploads(Device device, std::size_t piece_bytes, std::size_t largest,
                                   bool follow)
    : device_(device), piece_bytes_(bytes_of_piece(piece_bytes, largest)), follow_(follow) {
  const MemoryScope kind(MemoryKind::parameters);
  memory_ = Storage::allocate(pieces * piece_bytes_, device);
  // The memory may be reused; its last use is in the thread's queue.
  writable_.fill(current_queue(device).record());
  queue_ = backend_of(device.type).make_queue(device, "parameters up", QueuePriority::normal);
}

void ParameterUploads::upload(const std::byte* from, std::int64_t count, DType dtype, std::byte* to,
                              DType to_dtype) {
  DeviceQueue& current = current_queue(device_);
  if (follow_) queue_->wait(current.record());
  const auto step = static_cast<std::int64_t>(piece_bytes_ / size_of(dtype));
  for (std::int64_t done = 0; done < count; done += step) {
    const std::int64_t part = std::min(step, count - done);
    const std::size_t piece = next_++ % pieces;
    std::byte* const staged = memory_->data() + piece * piece_bytes_;
    std::byte* const out = to + static_cast<std::size_t>(done) * size_of(to_dtype);
    const std::size_t bytes = static_cast<std::size_t>(part) * size_of(dtype);
    queue_->wait(writable_[piece]);
    queue_->enqueue_copy_from_pinned(staged, from + static_cast<std::size_t>(done) * size_of(dtype),
                                     bytes);
    current.wait(queue_->record());
    copy_cast(device_, staged, part, dtype, out, to_dtype);
    writable_[piece] = current.record();
  }
}

GradientDownloads::GradientDownloads(Device device, std::size_t largest) : device_(device) {
  const MemoryScope kind(MemoryKind::gradients);
  for (auto& memory : memory_) memory = Storage::allocate(largest, device);
  queue_ = backend_of(device.type).make_queue(device, "gradients down", QueuePriority::normal);
}

std::byte* GradientDownloads::open(const std::byte* host, std::size_t bytes, bool is_set) {
  DeviceQueue& current = current_queue(device_);
  const std::size_t buffer = next_ % buffers;
  std::byte* const sums = memory_[buffer]->data();
  if (is_set) {
    // Comes after all earlier copies down, from this memory and to the host's. (It need not wait
    // for work of the current queue, which has not touched the memory since the last copy down.)
    queue_->wait(writable_[buffer] ? nullptr : current.record());
    queue_->enqueue_copy_from_pinned(sums, host, bytes);
    writable_[buffer] = queue_->record();
  }
  current.wait(writable_[buffer]);
  return sums;
}

PointHandle GradientDownloads::close(std::byte* host, std::size_t bytes) {
  const std::size_t buffer = next_++ % buffers;
  queue_->wait(current_queue(device_).record());
  queue_->enqueue_copy_to_pinned(host, memory_[buffer]->data(), bytes);
  writable_[buffer] = queue_->record();
  return writable_[buffer];
}

}  // namespace tessera
