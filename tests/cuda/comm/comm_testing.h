// Shared by the tests of communicators on a device: collectives whose results must be the same with
// any backend and on the CPU, and memory of a rank's device for outputs.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "comm/shared/collective_cases.h"
#include "engine/device/memory.h"
#include "engine/device/queue.h"

namespace tessera::testing {

using comm::cases::Ranks;
using Bytes = std::vector<std::byte>;

inline Bytes download(Device device, const void* memory, std::size_t bytes) {
  Bytes host(bytes);
  if (bytes > 0) current_queue(device).copy_to_host(host.data(), memory, bytes);
  return host;
}

inline void upload(Device device, void* memory, const Bytes& host) {
  if (!host.empty()) current_queue(device).copy_from_host(memory, host.data(), host.size());
}

// The elements of rank `rank`, which any rank can compute.
inline Bytes elements_of(int rank, std::int64_t count, DType dtype, std::uint64_t seed) {
  Bytes host(static_cast<std::size_t>(count) * size_of(dtype));
  for (std::int64_t i = 0; i < count; ++i) {
    comm::cases::put(host.data(), i, dtype, comm::cases::value_of(seed, rank, i));
  }
  return host;
}

// Memory of a rank's device for outputs.
class Output {
 public:
  Output(Device device, const Bytes& contents)
      : device_(device),
        bytes_(contents.size()),
        memory_(MemoryPool::current(device)->allocate(contents.size())) {
    upload(device, memory_.get(), contents);
  }
  [[nodiscard]] std::byte* data() const { return memory_.get(); }
  [[nodiscard]] Bytes read() const { return download(device_, memory_.get(), bytes_); }

 private:
  Device device_;
  std::size_t bytes_;
  std::shared_ptr<std::byte> memory_;
};

// The results of each rank, in its own order.
using Results = std::map<int, std::vector<Bytes>>;
using Program = std::function<void(const Ranks&, std::vector<Bytes>& seen)>;

// A pooled buffer, larger than the gathered data, which is written again while other ranks still
// read.
inline void gather_several_times(const Ranks& ranks, std::vector<Bytes>& seen) {
  const Device device = ranks->device();
  const auto size = static_cast<std::size_t>(ranks->size());
  constexpr std::size_t share = 320;
  const auto buffer = ranks->allocate("pooled", share * size + 4096, comm::Sharing::one_copy);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer->data()) % 256, 0u);
  seen.push_back(download(device, buffer->data(), buffer->bytes()));  // zeros
  ranks->barrier();
  for (int round = 0; round < 4; ++round) {
    ranks->acquire(*buffer);
    upload(device, buffer->data() + share * static_cast<std::size_t>(ranks->rank()),
           elements_of(ranks->rank(), share / 4, float32, static_cast<std::uint64_t>(round)));
    ranks->all_gather(*buffer, share * size, {.step = static_cast<std::uint64_t>(round)});
    seen.push_back(download(device, buffer->data(), share * size));
    buffer->release();
  }
}

// Two ranges, and then only the second one; each begins at an odd place.
inline void gather_ranges(const Ranks& ranks, std::vector<Bytes>& seen) {
  const Device device = ranks->device();
  const auto size = static_cast<std::size_t>(ranks->size());
  const auto own = static_cast<std::size_t>(ranks->rank());
  const std::vector<comm::GatheredRange> parts{{256, 1024 * size},
                                               {4096 + 1024 * size, 256 * size}};
  const auto buffer = ranks->allocate("ranges", 8192 + 1280 * size, comm::Sharing::one_copy);
  for (int round = 0; round < 2; ++round) {
    ranks->acquire(*buffer);
    std::vector<comm::GatheredRange> gathered = parts;
    if (round == 1) gathered.erase(gathered.begin());
    for (const comm::GatheredRange& part : gathered) {
      const std::size_t share = part.bytes / size;
      upload(device, buffer->data() + part.first + own * share,
             elements_of(ranks->rank(), static_cast<std::int64_t>(share / 4), float32,
                         part.first + static_cast<std::uint64_t>(round)));
    }
    ranks->all_gather(*buffer, gathered, {.step = static_cast<std::uint64_t>(round)});
    seen.push_back(download(device, buffer->data(), buffer->bytes()));
    buffer->release();
  }
}

// A reduce_scatter of two uneven ranges per rank, which start at any element, and an all_reduce.
inline void reduce(const Ranks& ranks, std::int64_t count, const comm::Reduction& reduction,
                   std::vector<Bytes>& seen) {
  const Device device = ranks->device();
  const auto buffer =
      ranks->allocate("gradients", static_cast<std::size_t>(count) * size_of(reduction.in_dtype),
                      comm::Sharing::per_rank);
  const Bytes mine = elements_of(ranks->rank(), count, reduction.in_dtype, 3);
  const Bytes before = elements_of(0, count, reduction.out_dtype, 4);
  const std::int64_t first = count * ranks->rank() / ranks->size();
  const std::int64_t last = count * (ranks->rank() + 1) / ranks->size();
  const std::int64_t middle = first + (last - first) / 3;
  const Output scattered(device, before);
  const Output reduced(device, before);
  const auto at = [&](std::int64_t index) {
    return scattered.data() + index * static_cast<std::int64_t>(size_of(reduction.out_dtype));
  };
  ranks->acquire(*buffer);
  upload(device, buffer->data(), mine);
  ranks->reduce_scatter(*buffer,
                        {{.first = first, .count = middle - first, .out = at(first)},
                         {.first = middle, .count = last - middle, .out = at(middle)}},
                        reduction, {.phase = comm::Phase::reduce});
  ranks->acquire(*buffer);
  upload(device, buffer->data(), mine);
  ranks->all_reduce(*buffer, count, reduced.data(), reduction, {.phase = comm::Phase::reduce});
  seen.push_back(scattered.read());
  seen.push_back(reduced.read());
}

}  // namespace tessera::testing
