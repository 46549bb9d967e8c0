// The cuda* functions that copy and set memory.
#include <cstring>
#include <span>
#include <vector>

#include "emulator/cuda/api.h"

namespace api = tessera::emulator::api;
using tessera::emulator::Access;
using tessera::emulator::Allocation;
using tessera::emulator::MemoryKind;
using tessera::emulator::runtime;
using tessera::emulator::Stream;

namespace {

using Bytes = std::span<std::byte>;

Bytes bytes_at(const void* memory, std::size_t bytes) {
  return {static_cast<std::byte*>(const_cast<void*>(memory)), bytes};
}

enum class Place { device, pinned, pageable };

// The place of the bytes, which must all lie in one allocation.
Place place_of(Bytes side, const char* name) {
  api::require(side.data() != nullptr, cudaErrorInvalidValue, "the {} is null", name);
  const std::optional<Allocation> touched = runtime().memory().find_any(side.data(), side.size());
  if (!touched) return Place::pageable;
  api::require(runtime().memory().find(side.data(), side.size()).has_value(), cudaErrorInvalidValue,
               "the {} [{}, +{}) reaches beyond the allocation [{}, +{})", name,
               static_cast<void*>(side.data()), side.size(), touched->memory, touched->bytes);
  return touched->kind == MemoryKind::device ? Place::device : Place::pinned;
}

void require_kind(cudaMemcpyKind kind, Place destination, Place source) {
  if (kind == cudaMemcpyDefault) return;
  const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  api::require(to_device == (destination == Place::device), cudaErrorInvalidValue,
               "the destination is {} memory of a device, which is not what the copy's kind says",
               destination == Place::device ? "" : "no");
  api::require(from_device == (source == Place::device), cudaErrorInvalidValue,
               "the source is {} memory of a device, which is not what the copy's kind says",
               source == Place::device ? "" : "no");
}

enum class Call { synchronous, asynchronous };

void copy(const char* what, void* to_memory, const void* from_memory, std::size_t bytes,
          cudaMemcpyKind kind, cudaStream_t handle, Call call) {
  if (bytes == 0) return;
  const Bytes destination = bytes_at(to_memory, bytes);
  const Bytes source = bytes_at(from_memory, bytes);
  const Place to = place_of(destination, "destination");
  const Place from = place_of(source, "source");
  require_kind(kind, to, from);
  const std::shared_ptr<Stream> stream = api::stream_of(handle);
  // Only the host uses pageable memory: the copy has finished with it when the call returns, so
  // the access checker does not need it.
  std::vector<Access> accesses;
  if (from != Place::pageable) accesses.push_back({source.data(), bytes, false});
  if (to != Place::pageable) accesses.push_back({destination.data(), bytes, true});
  if (from == Place::pageable && call == Call::asynchronous && to != Place::pageable) {
    // The source is read at once into memory that the copy owns.
    stream->enqueue(what, accesses,
                    [destination, staged = std::vector(source.begin(), source.end())] {
                      std::memcpy(destination.data(), staged.data(), staged.size());
                    });
    return;
  }
  stream->enqueue(what, accesses, [destination, source] {
    std::memcpy(destination.data(), source.data(), source.size());
  });
  // CUDA's cudaMemcpy returns before a copy within a device has finished.
  const bool host_waits =
      to == Place::pageable ||
      (call == Call::synchronous && !(to == Place::device && from == Place::device));
  if (!host_waits) return;
  runtime().wait(stream->record());
  api::require_working_device();
}

// In CUDA the host does not wait for it, not even in cudaMemset, unless the memory is on the host.
void set(const char* what, void* memory, int value, std::size_t bytes, cudaStream_t handle,
         Call call) {
  if (bytes == 0) return;
  const Bytes destination = bytes_at(memory, bytes);
  const Place place = place_of(destination, "destination");
  api::require(place != Place::pageable, cudaErrorInvalidValue,
               "the destination {} is not in a live allocation", memory);
  const std::shared_ptr<Stream> stream = api::stream_of(handle);
  const Access written{memory, bytes, true};
  stream->enqueue(what, {&written, 1}, [destination, value] {
    std::memset(destination.data(), value, destination.size());
  });
  if (call == Call::synchronous && place == Place::pinned) runtime().wait(stream->record());
}

}  // namespace

extern "C" {

cudaError_t cudaMemcpy(void* destination, const void* source, std::size_t bytes,
                       cudaMemcpyKind kind) {
  return api::call("cudaMemcpy", [&] {
    copy("cudaMemcpy", destination, source, bytes, kind, nullptr, Call::synchronous);
  });
}

cudaError_t cudaMemcpyAsync(void* destination, const void* source, std::size_t bytes,
                            cudaMemcpyKind kind, cudaStream_t stream) {
  return api::call("cudaMemcpyAsync", [&] {
    copy("cudaMemcpyAsync", destination, source, bytes, kind, stream, Call::asynchronous);
  });
}

cudaError_t cudaMemset(void* destination, int value, std::size_t bytes) {
  return api::call("cudaMemset", [&] {
    set("cudaMemset", destination, value, bytes, nullptr, Call::synchronous);
  });
}

cudaError_t cudaMemsetAsync(void* destination, int value, std::size_t bytes, cudaStream_t stream) {
  return api::call("cudaMemsetAsync", [&] {
    set("cudaMemsetAsync", destination, value, bytes, stream, Call::asynchronous);
  });
}

}  // extern "C"
