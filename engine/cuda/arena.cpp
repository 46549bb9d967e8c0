// The arena of a device.
#include "engine/cuda/arena.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include "engine/cuda/device.h"
#include "engine/cuda/settings.h"
#include "kernels/base/error.h"
#include "kernels/cuda/error.h"

namespace tessera::cuda {
namespace {

constexpr std::size_t alignment = 256;
// Large blocks come in steps that make them fit each other's gaps.
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

// At the end of the program the runtime may be gone, and the memory with it.
Arena::~Arena() {
  (void)cudaFree(base_);
}

std::size_t Arena::granularity(std::size_t bytes) const {
  return bytes >= large_block ? large_unit : alignment;
}

std::byte* Arena::take(std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  const std::optional<std::size_t> offset = free_.take(bytes);
  if (!offset) return nullptr;
  if (in_flight_) {
    bind_thread(device_);
    const cudaError_t error = cudaDeviceSynchronize();
    if (error != cudaSuccess) {
      free_.give_back(*offset, bytes);
      kernels::cuda::fail_call(error, "cudaDeviceSynchronize()", __FILE__, __LINE__);
    }
    in_flight_ = false;
  }
  return base_ + *offset;
}

void Arena::give_back(std::byte* block, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  free_.give_back(static_cast<std::size_t>(block - base_), bytes);
  in_flight_ = true;
}

void Arena::give_back_idle(std::byte* block, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  free_.give_back(static_cast<std::size_t>(block - base_), bytes);
}

std::string Arena::shortage() const {
  const std::lock_guard lock(mutex_);
  return fmt::format(
      ", {} bytes free in the arena of cuda:{} ({} bytes; TESSERA_CUDA_MEMORY sets its size), the "
      "largest part {}",
      free_.free_bytes(), device_, bytes_, free_.largest());
}

}  // namespace tessera::cuda
