// Moves elements between memory of any device and files, and converts their dtype, through bounded
// staging buffers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "base/dtype.h"
#include "engine/device/device.h"
#include "engine/storage/file_place.h"

namespace tessera::checkpoint {

// True if elements stored as one dtype may be loaded as another: any two floating dtypes, or equal
// dtypes.
constexpr bool can_convert(DType from, DType to) {
  return from == to || (is_floating(from) && is_floating(to));
}

// Used by one thread. The host converts, so the bytes are the same from every device.
class Staging {
 public:
  static constexpr std::int64_t bytes = std::int64_t{4} << 20;  // of each of its two buffers

  // Calls put(offset, data, bytes) with the elements at `in` on `device`, in `to`; offsets rise
  // from 0 without holes.
  using Put = std::function<void(std::uint64_t offset, const void* data, std::size_t bytes)>;
  void store(const std::byte* in, Device device, std::int64_t count, DType from, DType to,
             const Put& put);

  // The same with elements in a file of offloaded state.
  void store(const FilePlace& in, std::int64_t count, DType from, DType to, const Put& put);

  // Calls get(offset, data, bytes) for the elements in `from`, and writes them in `to` at `out` on
  // `device`.
  using Get = std::function<void(std::uint64_t offset, void* data, std::size_t bytes)>;
  void load(std::byte* out, Device device, std::int64_t count, DType from, DType to,
            const Get& get);
  void load(const FilePlace& out, std::int64_t count, DType from, DType to, const Get& get);

 private:
  // Allocated on first use.
  std::byte* transfer_buffer(Device device);
  std::byte* conversion_buffer();

  std::shared_ptr<std::byte> transfer_;  // elements as they are on a device, page-locked
  DeviceType transfer_type_ = DeviceType::cpu;
  std::shared_ptr<std::byte> conversion_;  // elements as they are in the file
};

}  // namespace tessera::checkpoint
