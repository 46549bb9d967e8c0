// The ranks that hold the parts of the same parameters, as an optimizer sees them that needs whole
// ones. Sharding implements it (sharding/units/unit_peers.h) and attaches it to its shards
// (ShardMetadata::peers).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/error.h"
#include "engine/storage/element_range.h"
#include "engine/tensor.h"

namespace tessera::optim {

// Calls are made by the thread of the rank. Each has its counterpart on the other ranks, in one
// order for all of them. On a GPU the memory is the device's, and calls take their places in the
// order of the thread's current queue.
class ShardPeers {
 public:
  virtual ~ShardPeers() = default;
  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int size() const = 0;
  // The elements of a parameter, of which `local` is this rank's part, that each rank holds, in
  // rank order: parts that follow one another and perhaps are empty, or all elements on every rank.
  [[nodiscard]] virtual std::vector<ElementRange> parts_of(const Tensor& local) const = 0;
  // send() may wait for the peer's receive().
  virtual void send(const std::byte* memory, std::size_t bytes, int to) = 0;
  virtual void receive(std::byte* memory, std::size_t bytes, int from) = 0;
  // Copies the root's memory to every rank.
  virtual void broadcast(std::byte* memory, std::size_t bytes, int root) = 0;
  // numbers[i] becomes the sum of all ranks' numbers[i]. Ranks add in an order of their own: the
  // sums have the same bits on every world only if each partial sum is exact, as one of integers
  // below 2^53.
  virtual void sum(double* numbers, std::int64_t count) = 0;
};

// The peers of parameters that no other rank has.
class NoPeers final : public ShardPeers {
 public:
  [[nodiscard]] int rank() const override { return 0; }
  [[nodiscard]] int size() const override { return 1; }
  [[nodiscard]] std::vector<ElementRange> parts_of(const Tensor& local) const override {
    return {{0, local.elements()}};
  }
  void send(const std::byte*, std::size_t, int) override { misuse("there is no other rank"); }
  void receive(std::byte*, std::size_t, int) override { misuse("there is no other rank"); }
  void broadcast(std::byte*, std::size_t, int) override {}
  void sum(double*, std::int64_t) override {}
};

}  // namespace tessera::optim
