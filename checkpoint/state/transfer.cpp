// Moves slices through the staging buffers; equal dtypes in host memory go straight to and from the
// file.
#include "checkpoint/state/transfer.h"

#include <algorithm>

#include "engine/device/backend.h"
#include "engine/storage/state_file.h"
#include "kernels/registry.h"

namespace tessera::checkpoint {
namespace {

bool is_host(Device device) {
  return device.type == DeviceType::cpu;
}

// Elements that fit into a buffer in either dtype.
std::int64_t slice_of(DType from, DType to) {
  return Staging::bytes / static_cast<std::int64_t>(std::max(size_of(from), size_of(to)));
}

std::size_t bytes_of(std::int64_t count, DType dtype) {
  return static_cast<std::size_t>(count) * size_of(dtype);
}

}  // namespace

std::byte* Staging::transfer_buffer(Device device) {
  if (!transfer_ || transfer_type_ != device.type) {
    transfer_ = backend_of(device.type).allocate_pinned(static_cast<std::size_t>(bytes));
    transfer_type_ = device.type;
  }
  return transfer_.get();
}

std::byte* Staging::conversion_buffer() {
  if (!conversion_) {
    conversion_ = backend_of(DeviceType::cpu).allocate_pinned(static_cast<std::size_t>(bytes));
  }
  return conversion_.get();
}

void Staging::store(const std::byte* in, Device device, std::int64_t count, DType from, DType to,
                    const Put& put) {
  if (from == to && is_host(device)) {
    put(0, in, bytes_of(count, to));
    return;
  }
  const std::int64_t slice = slice_of(from, to);
  for (std::int64_t done = 0; done < count; done += slice) {
    const std::int64_t n = std::min(slice, count - done);
    const std::byte* source = in + bytes_of(done, from);
    if (!is_host(device)) {
      std::byte* fetched = transfer_buffer(device);
      current_queue(device).copy_to_host(fetched, source, bytes_of(n, from));
      source = fetched;
    }
    if (from != to) {
      std::byte* converted = conversion_buffer();
      kernels::cpu::cast(
          {.in = source, .out = converted, .n = n, .in_dtype = from, .out_dtype = to});
      source = converted;
    }
    put(static_cast<std::uint64_t>(done) * size_of(to), source, bytes_of(n, to));
  }
}

void Staging::store(const FilePlace& in, std::int64_t count, DType from, DType to, const Put& put) {
  std::byte* const read = transfer_buffer(Device::cpu());
  const std::int64_t slice = slice_of(from, to);
  for (std::int64_t done = 0; done < count; done += slice) {
    const std::int64_t n = std::min(slice, count - done);
    in.file->read(in.offset + bytes_of(done, from), read, bytes_of(n, from));
    store(read, Device::cpu(), n, from, to,
          [&](std::uint64_t offset, const void* data, std::size_t part) {
            put(bytes_of(done, to) + offset, data, part);
          });
  }
}

void Staging::load(std::byte* out, Device device, std::int64_t count, DType from, DType to,
                   const Get& get) {
  if (from == to && is_host(device)) {
    get(0, out, bytes_of(count, to));
    return;
  }
  const std::int64_t slice = slice_of(from, to);
  for (std::int64_t done = 0; done < count; done += slice) {
    const std::int64_t n = std::min(slice, count - done);
    std::byte* target = out + bytes_of(done, to);
    std::byte* sent = is_host(device) ? target : transfer_buffer(device);
    std::byte* read = from == to ? sent : conversion_buffer();
    get(static_cast<std::uint64_t>(done) * size_of(from), read, bytes_of(n, from));
    if (from != to) {
      kernels::cpu::cast({.in = read, .out = sent, .n = n, .in_dtype = from, .out_dtype = to});
    }
    if (!is_host(device)) current_queue(device).copy_from_host(target, sent, bytes_of(n, to));
  }
}

void Staging::load(const FilePlace& out, std::int64_t count, DType from, DType to, const Get& get) {
  std::byte* const loaded = transfer_buffer(Device::cpu());
  const std::int64_t slice = slice_of(from, to);
  for (std::int64_t done = 0; done < count; done += slice) {
    const std::int64_t n = std::min(slice, count - done);
    load(loaded, Device::cpu(), n, from, to,
         [&](std::uint64_t offset, void* data, std::size_t part) {
           get(bytes_of(done, from) + offset, data, part);
         });
    out.file->write(out.offset + bytes_of(done, to), loaded, bytes_of(n, to));
  }
}

}  // namespace tessera::checkpoint
