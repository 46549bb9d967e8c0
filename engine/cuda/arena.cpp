// The arena of a device.
#include "engine/cuda/arena.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "engine/cuda/device.h"
#include "engine/cuda/queue_context.h"
#include "engine/cuda/settings.h"
#include "kernels/cuda/device/error.h"

namespace tessera::cuda {
namespace {

constexpr std::size_t alignment = 256;
// Sizes of large blocks are multiples of large_unit, so that blocks fit into freed gaps.
constexpr std::size_t large_block = std::size_t{1} << 20;
constexpr std::size_t large_unit = 4096;

std::size_t arena_bytes(std::size_t free_bytes) {
  const Settings settings = read_settings();
  const auto wanted = settings.memory_bytes.value_or(
      static_cast<std::size_t>(static_cast<double>(free_bytes) * settings.memory_fraction));
  return wanted / large_unit * large_unit;
}

}  // namespace

Arena::Arena(int device) : device_(device) {
  bind_thread(device);
  std::size_t free_bytes = 0;
  std::size_t total = 0;
  TESSERA_CUDA(cudaMemGetInfo(&free_bytes, &total));
  bytes_ = arena_bytes(free_bytes);
  void* memory = nullptr;
  const cudaError_t error = cudaMalloc(&memory, bytes_);
  if (error != cudaSuccess) (void)cudaGetLastError();
  TESSERA_CHECK(error == cudaSuccess && bytes_ > 0, ErrorCode::out_of_memory,
                "cuda:{} has no room for an arena of {} bytes: {} of {} bytes are free ({}); set "
                "TESSERA_CUDA_MEMORY lower, or end what else uses the GPU",
                device, bytes_, free_bytes, total, cudaGetErrorName(error));
  base_ = static_cast<std::byte*>(memory);
  free_ = FreeRanges(bytes_);
}

// At the end of the program the CUDA runtime and this memory may be gone already.
Arena::~Arena() {
  (void)cudaFree(base_);
}

std::size_t Arena::granularity(std::size_t bytes) const {
  return bytes >= large_block ? large_unit : alignment;
}

// Waits for single points, and without the lock. A wait for the whole device could wait for a
// collective whose peers wait for this rank's next call.
std::byte* Arena::take(std::size_t bytes) {
  for (;;) {
    std::shared_ptr<const Uses> oldest;
    {
      const std::lock_guard lock(mutex_);
      take_back_what_is_idle();
      if (const auto offset = free_.take(bytes)) {
        peak_taken_ = std::max(peak_taken_, bytes_ - free_.free_bytes());
        return base_ + *offset;
      }
      if (in_flight_.empty()) return nullptr;
      oldest = in_flight_.front().uses;
    }
    bind_thread(device_);
    for (const auto& point : *oldest) TESSERA_CUDA(cudaEventSynchronize(point->event()));
  }
}

void Arena::give_back(std::byte* block, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto offset = static_cast<std::size_t>(block - base_);
  try {
    in_flight_.push_back({offset, bytes, uses_now()});
  } catch (const Error&) {
    free_.give_back(offset, bytes);  // the device has failed: no work uses the block any more
  }
}

// The caller holds the mutex.
std::shared_ptr<const Arena::Uses> Arena::uses_now() const {
  auto uses = std::make_shared<Uses>();
  for (const QueueContext* const queue : queues_) uses->push_back(queue->record(false));
  return uses;
}

// The caller holds the mutex.
void Arena::take_back_what_is_idle() {
  for (auto block = in_flight_.begin(); block != in_flight_.end();) {
    const bool idle = std::all_of(block->uses->begin(), block->uses->end(),
                                  [](const auto& point) { return point->reached(); });
    if (idle) free_.give_back(block->offset, block->bytes);
    block = idle ? in_flight_.erase(block) : std::next(block);
  }
}

void Arena::add(const QueueContext& queue) {
  const std::lock_guard lock(mutex_);
  queues_.push_back(&queue);
}

void Arena::remove(const QueueContext& queue) {
  const std::lock_guard lock(mutex_);
  std::erase(queues_, &queue);
}

void Arena::give_back_idle(std::byte* block, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  free_.give_back(static_cast<std::size_t>(block - base_), bytes);
}

MemorySource::Taken Arena::taken() const {
  const std::lock_guard lock(mutex_);
  return {bytes_ - free_.free_bytes(), peak_taken_};
}

std::string Arena::shortage() const {
  const std::lock_guard lock(mutex_);
  std::size_t in_flight = 0;
  for (const InFlight& block : in_flight_) in_flight += block.bytes;
  return fmt::format(
      ", {} bytes free in the arena of cuda:{} ({} bytes; TESSERA_CUDA_MEMORY sets its size), the "
      "largest part {}",
      free_.free_bytes() + in_flight, device_, bytes_, free_.largest());
}

}  // namespace tessera::cuda
