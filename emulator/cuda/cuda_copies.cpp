// The cuda* functions that copy and set memory.
#include <cstring>
#include <vector>

#include "emulator/cuda/api.h"

namespace api = tessera::emulator::api;
using tessera::emulator::Access;
using tessera::emulator::Allocation;
using tessera::emulator::MemoryKind;
using tessera::emulator::runtime;
using tessera::emulator::Stream;

namespace {

// Rows of `width` bytes, `pitch` apart.
struct Rows {
  std::byte* first;
  std::size_t pitch;
  std::size_t width;
  std::size_t height;

  [[nodiscard]] std::byte* row(std::size_t i) const { return first + i * pitch; }
  [[nodiscard]] std::size_t span() const { return (height - 1) * pitch + width; }
};

Rows rows(const void* memory, std::size_t pitch, std::size_t width, std::size_t height) {
  return {static_cast<std::byte*>(const_cast<void*>(memory)), pitch, width, height};
}

enum class Place { device, pinned, pageable };

// The place of the rows, which must all lie in one allocation.
Place place_of(const Rows& side, const char* name) {
  api::require(side.first != nullptr, cudaErrorInvalidValue, "the {} is null", name);
  const std::optional<Allocation> touched = runtime().memory().find_any(side.first, side.span());
  if (!touched) return Place::pageable;
  api::require(runtime().memory().find(side.first, side.span()).has_value(), cudaErrorInvalidValue,
               "the {} [{}, +{}) reaches beyond the allocation [{}, +{})", name,
               static_cast<void*>(side.first), side.span(), touched->memory, touched->bytes);
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

void copy_rows(const Rows& destination, const Rows& source) {
  for (std::size_t i = 0; i < source.height; ++i) {
    std::memcpy(destination.row(i), source.row(i), source.width);
  }
}

// Declares the rows to the access checker. Only the host uses pageable memory: the copy has
// finished with it when the call returns.
void add_accesses(std::vector<Access>& accesses, const Rows& side, Place place, bool write) {
  if (place == Place::pageable) return;
  if (side.pitch == side.width) {
    accesses.push_back({side.first, side.span(), write});
    return;
  }
  for (std::size_t i = 0; i < side.height; ++i) {
    accesses.push_back({side.row(i), side.width, write});
  }
}

// A pageable source is read at once into memory that the copy owns. A pageable destination is
// written in the stream's order, and the host does not wait for that.
std::vector<std::byte> stage(const Rows& source) {
  std::vector<std::byte> staged(source.width * source.height);
  copy_rows(rows(staged.data(), source.width, source.width, source.height), source);
  return staged;
}

enum class Call { synchronous, asynchronous };

void copy(const char* what, const Rows& destination, const Rows& source, cudaMemcpyKind kind,
          cudaStream_t handle, Call call) {
  if (source.width == 0 || source.height == 0) return;
  api::require(destination.pitch >= destination.width && source.pitch >= source.width,
               cudaErrorInvalidPitchValue, "rows of {} bytes are {} and {} bytes apart",
               source.width, destination.pitch, source.pitch);
  const Place to = place_of(destination, "destination");
  const Place from = place_of(source, "source");
  require_kind(kind, to, from);
  const std::shared_ptr<Stream> stream = api::stream_of(handle);
  std::vector<Access> accesses;
  add_accesses(accesses, source, from, false);
  add_accesses(accesses, destination, to, true);
  if (from == Place::pageable && call == Call::asynchronous && to != Place::pageable) {
    stream->enqueue(what, accesses, [destination, source, staged = stage(source)] {
      copy_rows(destination, rows(staged.data(), source.width, source.width, source.height));
    });
    return;
  }
  stream->enqueue(what, accesses, [destination, source] { copy_rows(destination, source); });
  // CUDA's cudaMemcpy returns before a copy within a device has finished.
  const bool host_waits =
      to == Place::pageable ||
      (call == Call::synchronous && !(to == Place::device && from == Place::device));
  if (!host_waits) return;
  runtime().wait(stream->record());
  api::require_working_device();
}

// In CUDA the host does not wait for it, not even in cudaMemset, unless the memory is on the host.
void set(const char* what, const Rows& destination, int value, cudaStream_t handle, Call call) {
  if (destination.width == 0 || destination.height == 0) return;
  api::require(destination.pitch >= destination.width, cudaErrorInvalidPitchValue,
               "rows of {} bytes are {} bytes apart", destination.width, destination.pitch);
  const Place place = place_of(destination, "destination");
  api::require(place != Place::pageable, cudaErrorInvalidValue,
               "the destination {} is not in a live allocation",
               static_cast<void*>(destination.first));
  const std::shared_ptr<Stream> stream = api::stream_of(handle);
  std::vector<Access> accesses;
  add_accesses(accesses, destination, place, true);
  stream->enqueue(what, accesses, [destination, value] {
    for (std::size_t i = 0; i < destination.height; ++i) {
      std::memset(destination.row(i), value, destination.width);
    }
  });
  if (call == Call::synchronous && place == Place::pinned) runtime().wait(stream->record());
}

}  // namespace

extern "C" {

cudaError_t cudaMemcpy(void* destination, const void* source, std::size_t bytes,
                       cudaMemcpyKind kind) {
  return api::call("cudaMemcpy", [&] {
    copy("cudaMemcpy", rows(destination, bytes, bytes, 1), rows(source, bytes, bytes, 1), kind,
         nullptr, Call::synchronous);
  });
}

cudaError_t cudaMemcpyAsync(void* destination, const void* source, std::size_t bytes,
                            cudaMemcpyKind kind, cudaStream_t stream) {
  return api::call("cudaMemcpyAsync", [&] {
    copy("cudaMemcpyAsync", rows(destination, bytes, bytes, 1), rows(source, bytes, bytes, 1), kind,
         stream, Call::asynchronous);
  });
}

cudaError_t cudaMemcpyPeerAsync(void* destination, int destination_device, const void* source,
                                int source_device, std::size_t bytes, cudaStream_t stream) {
  return api::call("cudaMemcpyPeerAsync", [&] {
    const auto require_device = [&](const void* memory, int device) {
      const std::optional<Allocation> found = runtime().memory().find(memory, 1);
      api::require(bytes == 0 || (found && found->device == device), cudaErrorInvalidValue,
                   "{} is not memory of device {}", memory, device);
    };
    require_device(destination, destination_device);
    require_device(source, source_device);
    copy("cudaMemcpyPeerAsync", rows(destination, bytes, bytes, 1), rows(source, bytes, bytes, 1),
         cudaMemcpyDeviceToDevice, stream, Call::asynchronous);
  });
}

cudaError_t cudaMemcpy2D(void* destination, std::size_t destination_pitch, const void* source,
                         std::size_t source_pitch, std::size_t width, std::size_t height,
                         cudaMemcpyKind kind) {
  return api::call("cudaMemcpy2D", [&] {
    copy("cudaMemcpy2D", rows(destination, destination_pitch, width, height),
         rows(source, source_pitch, width, height), kind, nullptr, Call::synchronous);
  });
}

cudaError_t cudaMemcpy2DAsync(void* destination, std::size_t destination_pitch, const void* source,
                              std::size_t source_pitch, std::size_t width, std::size_t height,
                              cudaMemcpyKind kind, cudaStream_t stream) {
  return api::call("cudaMemcpy2DAsync", [&] {
    copy("cudaMemcpy2DAsync", rows(destination, destination_pitch, width, height),
         rows(source, source_pitch, width, height), kind, stream, Call::asynchronous);
  });
}

cudaError_t cudaMemset(void* destination, int value, std::size_t bytes) {
  return api::call("cudaMemset", [&] {
    set("cudaMemset", rows(destination, bytes, bytes, 1), value, nullptr, Call::synchronous);
  });
}

cudaError_t cudaMemsetAsync(void* destination, int value, std::size_t bytes, cudaStream_t stream) {
  return api::call("cudaMemsetAsync", [&] {
    set("cudaMemsetAsync", rows(destination, bytes, bytes, 1), value, stream, Call::asynchronous);
  });
}

}  // extern "C"
