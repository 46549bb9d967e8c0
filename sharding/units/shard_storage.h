// The place of a shard between its uses: memory of the device, memory of its host, or a file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "engine/device/queue.h"
#include "engine/storage/element_range.h"
#include "engine/tensor.h"
#include "sharding/memory/layout.h"
#include "sharding/memory/offload_files.h"
#include "sharding/policy/options.h"

namespace tessera {

// A unit's masters, a tensor for each segment, or its reduced gradient, one tensor.
class ShardStorage {
 public:
  // `memory` holds all tensors; null: they are in a file.
  ShardStorage(const OffloadFiles& files, std::shared_ptr<Storage> memory,
               std::vector<Tensor> tensors)
      : files_(files), memory_(std::move(memory)), tensors_(std::move(tensors)) {}
  virtual ~ShardStorage() = default;
  ShardStorage(const ShardStorage&) = delete;
  ShardStorage& operator=(const ShardStorage&) = delete;

  [[nodiscard]] virtual Placement placement() const = 0;
  [[nodiscard]] const std::vector<Tensor>& tensors() const { return tensors_; }
  // Bytes of the device's memory.
  [[nodiscard]] std::size_t device_bytes() const {
    return placement() == Placement::device ? memory_->bytes() : 0;
  }

  // Masters: sets a tensor's first values. `write` gets each range once, with zeroed memory for it.
  using Write = std::function<void(ElementRange range, std::byte* out, Device device)>;
  virtual void fill(std::size_t index, const Write& write);
  // Writes a tensor, cast, to memory of the device, in the calling thread's current queue.
  virtual void read(std::size_t index, std::byte* out, DType out_dtype) const = 0;
  // The point from which on the shard may be written again after read(); null: now.
  [[nodiscard]] virtual PointHandle reads_done() const { return nullptr; }

  // Gradients: what a reduction adds to. Made before it, by the thread that owns the unit.
  struct Carried {
    bool is_set = false;
    float factor = 1.0f;
    std::vector<ElementRange> dropped;
  };
  // Takes the pending factor and the ranges to zero: applies them now, or leaves them to open().
  [[nodiscard]] virtual Carried carry(std::vector<ElementRange> dropped);
  // Around a reduction, by the thread that does it: open() returns memory of the device for the
  // sums, close() completes them, and returns the point at which they are on the host.
  [[nodiscard]] virtual std::byte* open(const Carried& carried) const = 0;
  virtual PointHandle close() const { return nullptr; }

 protected:
  [[nodiscard]] const Tensor& gradient() const { return tensors_[0]; }
  void apply(const Carried& carried, std::byte* values) const;

  const OffloadFiles& files_;

 private:
  std::shared_ptr<Storage> memory_;
  std::vector<Tensor> tensors_;
};

// Zeros in the places that `files` has for them; `files` must outlive the result.
std::unique_ptr<ShardStorage> make_masters(const OffloadFiles& files, const UnitLayout& layout);
std::unique_ptr<ShardStorage> make_gradient(const OffloadFiles& files, std::int64_t elements,
                                            DType dtype);

}  // namespace tessera
