// The cuda* functions that allocate and free memory and report how much is free.
#include "emulator/cuda/api.h"
#include "emulator/runtime/settings.h"

namespace api = tessera::emulator::api;
using tessera::emulator::Access;
using tessera::emulator::Allocation;
using tessera::emulator::MemoryKind;
using tessera::emulator::runtime;
using tessera::emulator::Stream;

namespace {

void allocate(void** memory, std::size_t bytes, MemoryKind kind) {
  api::require(memory != nullptr, cudaErrorInvalidValue, "null");
  *memory = nullptr;
  if (bytes == 0) return;
  const int device = api::this_thread().device;
  void* allocated = runtime().memory().allocate(kind, device, bytes);
  if (allocated == nullptr) {
    // Frees that are pending in streams may make enough room.
    runtime().synchronize(device);
    allocated = runtime().memory().allocate(kind, device, bytes);
  }
  if (allocated == nullptr) throw api::Failure{cudaErrorMemoryAllocation};
  runtime().checker().forget(allocated, bytes);
  *memory = allocated;
}

Allocation start_of(const void* memory, MemoryKind kind, const char* kind_name) {
  const std::optional<Allocation> found = runtime().memory().find_start(memory);
  api::require(found && found->kind == kind, cudaErrorInvalidValue,
               "{} is not the start of live {} memory", memory, kind_name);
  return *found;
}

// Frees memory at once, after all work of its device has ended.
void release(void* memory, MemoryKind kind, const char* kind_name) {
  if (memory == nullptr) return;
  const Allocation allocation = start_of(memory, kind, kind_name);
  runtime().synchronize(allocation.device);
  runtime().checker().forget(allocation.memory, allocation.bytes);
  runtime().memory().release(memory);
  api::require_working_device();  // earlier work may have failed
}

}  // namespace

extern "C" {

cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
  return api::call("cudaMalloc", [&] { allocate(memory, bytes, MemoryKind::device); });
}

cudaError_t cudaFree(void* memory) {
  return api::call("cudaFree", [&] { release(memory, MemoryKind::device, "device"); });
}

// For the checker the stream writes the memory: later users must be ordered after it.
cudaError_t cudaMallocAsync(void** memory, std::size_t bytes, cudaStream_t handle) {
  return api::call("cudaMallocAsync", [&] {
    const std::shared_ptr<Stream> stream = api::stream_of(handle);
    allocate(memory, bytes, MemoryKind::device);
    if (bytes == 0) return;
    const Access allocated{*memory, bytes, true};
    stream->enqueue("cudaMallocAsync", {&allocated, 1}, {});
  });
}

cudaError_t cudaFreeAsync(void* memory, cudaStream_t handle) {
  return api::call("cudaFreeAsync", [&] {
    if (memory == nullptr) return;
    const std::shared_ptr<Stream> stream = api::stream_of(handle);
    const Allocation allocation = start_of(memory, MemoryKind::device, "device");
    const Access freed{allocation.memory, allocation.bytes, true};
    auto& pending = runtime().memory().release_later(memory);
    stream->enqueue("cudaFreeAsync", {&freed, 1}, [&pending] { pending(); });
  });
}

cudaError_t cudaMallocHost(void** memory, std::size_t bytes) {
  return api::call("cudaMallocHost", [&] { allocate(memory, bytes, MemoryKind::pinned); });
}

cudaError_t cudaHostAlloc(void** memory, std::size_t bytes, unsigned flags) {
  return api::call("cudaHostAlloc", [&] {
    constexpr unsigned known =
        cudaHostAllocPortable | cudaHostAllocMapped | cudaHostAllocWriteCombined;
    api::require((flags & ~known) == 0, cudaErrorInvalidValue, "flags {:#x}", flags);
    allocate(memory, bytes, MemoryKind::pinned);
  });
}

cudaError_t cudaFreeHost(void* memory) {
  return api::call("cudaFreeHost", [&] { release(memory, MemoryKind::pinned, "pinned"); });
}

cudaError_t cudaMemGetInfo(std::size_t* free_bytes, std::size_t* total) {
  return api::call("cudaMemGetInfo", [&] {
    const std::size_t limit = runtime().memory().limit();
    *total = limit;
    *free_bytes = limit - runtime().memory().used(api::this_thread().device);
  });
}

}  // extern "C"
