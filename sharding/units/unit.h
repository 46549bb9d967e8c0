// One unit: its master shard, the views that the module computes with, and the gradients. The
// schedule decides which memory the views point into, and when (sharding/runtime/schedule.h).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "engine/nn/module.h"
#include "engine/optim/parts/segments.h"
#include "sharding/memory/layout.h"
#include "sharding/memory/offload_files.h"
#include "sharding/policy/module_tree.h"
#include "sharding/units/shard_storage.h"

namespace tessera {

class Unit {
 public:
  // Takes the modules' parameters: fills the master shard with this shard's part of their values
  // (or draws it, for `meta` parameters) and replaces them by views of a lent storage. Master shard
  // and views lie on `device`, whatever the parameters' device was. Offloaded state lies in
  // `files`, which must outlive the unit.
  Unit(std::string name, int index, const std::vector<OwnedParameter>& parameters,
       const std::vector<ParameterSpec>& specs, int shards, int shard, const OffloadFiles& files);
  Unit(const Unit&) = delete;
  Unit& operator=(const Unit&) = delete;

  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] int index() const { return index_; }
  // The rate of the last optimizer step over the unit's parameters; 0 before the first one.
  [[nodiscard]] double learning_rate() const { return learning_rate_; }
  void set_learning_rate(double value) { learning_rate_ = value; }
  [[nodiscard]] const UnitLayout& layout() const { return layout_; }
  [[nodiscard]] int shard() const { return shard_; }
  [[nodiscard]] bool is_root() const { return index_ == 0; }
  [[nodiscard]] bool has_gradient() const { return layout_.gradient_elements() > 0; }

  // This rank's parameters (fp32; frozen ones in their own dtype) and gradients, a tensor for each
  // parameter (perhaps empty), for optimizers.
  [[nodiscard]] const std::vector<nn::NamedParameter>& local_parameters() const { return local_; }
  // The same as runs of memory.
  [[nodiscard]] const std::vector<optim::Segment>& optimizer_segments() const {
    return optimizer_segments_;
  }
  [[nodiscard]] const std::vector<Tensor>& views() const { return views_; }
  // Bytes of memory.
  [[nodiscard]] std::size_t master_bytes() const { return masters_->device_bytes(); }
  [[nodiscard]] std::size_t gradient_bytes() const {
    return gradient_ ? gradient_->device_bytes() : 0;
  }

  // True when the master shard itself serves as the gathered parameters and is never gathered.
  [[nodiscard]] bool computes_on_master() const { return computes_on_master_; }
  // The segments of a gather: all, or those that optimizers change.
  enum class Part : std::uint8_t { whole, trainable };
  // Writes this shard's part of each of these segments into the flat parameter, cast to the compute
  // dtype, in the calling thread's current queue. Returns the point from which on masters on the
  // host may be written again; null: now.
  PointHandle write_share(std::byte* buffer, Part part) const;

  // The lent storage behind the views.
  [[nodiscard]] const std::shared_ptr<Storage>& parameter_storage() const { return parameters_; }

  // Gradients of the whole unit, in `dtype`, written by backward into memory lent by the runtime.
  void create_gradient_views(DType dtype);
  [[nodiscard]] const std::shared_ptr<Storage>& gradient_storage() const { return gradients_; }
  [[nodiscard]] DType gradient_dtype() const { return gradient_dtype_; }
  [[nodiscard]] std::size_t gradient_buffer_bytes() const {
    return static_cast<std::size_t>(layout_.gradient_elements()) * size_of(gradient_dtype_);
  }
  // Zeroes the elements that no parameter covers.
  void zero_gradient_gaps();
  // True when backward has written a gradient since the last forget_gradient().
  [[nodiscard]] bool received_gradient() const;
  // True when every parameter got a gradient.
  [[nodiscard]] bool gradient_is_complete() const;
  // Zeroes parameters that got no gradient.
  void complete_gradient();
  // Marks the views as without gradient; touches no memory.
  void forget_gradient();
  // The destinations of this shard's sums.
  [[nodiscard]] std::vector<comm::ReducedRange> reduced_ranges(std::byte* out) const;
  [[nodiscard]] const Tensor& gradient_shard();  // fp32 (fp64), made by the first call
  // True when the shard holds gradients since the last zero_grad.
  [[nodiscard]] bool gradient_is_set() const;
  // Frees the shard's memory while it holds no gradients, if the device supports that: a forward
  // allocates its activations while no gradients exist, and the backward frees them while gradients
  // arrive.
  void discard_unset_gradient();
  void mark_gradient_set();
  // Called before more is added, by the thread that owns the unit: zeroes the gradients of single
  // parameters that zero_grad has dropped, and multiplies a factor into the present gradients that
  // must not apply to later ones. For a shard elsewhere, open_gradient() does both.
  using Carried = ShardStorage::Carried;
  [[nodiscard]] Carried prepare_to_accumulate();
  // Around a reduction, by the thread that does it: open_gradient() returns the memory of the
  // shard's sums, close_gradient() completes them. For a shard on the host it returns the point at
  // which they are there.
  [[nodiscard]] std::byte* open_gradient(const Carried& carried) const {
    return gradient_->open(carried);
  }
  PointHandle close_gradient() const { return gradient_->close(); }
  [[nodiscard]] bool gradient_is_on_host() const {
    return gradient_->placement() == Placement::host;
  }
  // On the host or in a file: close_gradient() copies.
  [[nodiscard]] bool gradient_shard_is_elsewhere() const {
    return gradient_->placement() != Placement::device;
  }
  // Clipping: multiplies the shard's gradients when they are read.
  void scale_gradient(float factor);
  // The same with the reciprocal of a loss scale, only once until other gradients arrive.
  void unscale_gradient(float factor);
  // The checksum of this rank's present masters.
  [[nodiscard]] std::uint64_t checksum_of_masters() const;
  // This rank's masters of a segment.
  [[nodiscard]] const Tensor& masters(int segment) const {
    return masters_->tensors()[static_cast<std::size_t>(segment)];
  }
  // The number of elements of the local gradient, and the part of each trainable segment in it.
  [[nodiscard]] std::int64_t local_gradient_elements() const {
    return layout_.local_gradient_elements();
  }
  struct LocalSegment {
    int segment;
    ElementRange range;   // in the segment
    std::int64_t offset;  // in the local gradient
  };
  [[nodiscard]] const std::vector<LocalSegment>& local_segments() const { return local_segments_; }

 private:
  void create_masters(const std::vector<OwnedParameter>& parameters);
  void fill_range(const std::vector<OwnedParameter>& parameters, int segment, ElementRange range,
                  std::byte* out, Device device) const;
  void create_local_tensors();

  std::string name_;
  int index_;
  UnitLayout layout_;
  int shard_;
  const OffloadFiles& files_;
  Device device_;
  bool computes_on_master_ = false;
  double learning_rate_ = 0;
  std::unique_ptr<ShardStorage> masters_;
  std::shared_ptr<Storage> parameters_;
  std::vector<Tensor> views_;
  std::vector<nn::NamedParameter> local_;
  std::vector<optim::Segment> optimizer_segments_;
  std::shared_ptr<Storage> gradients_;
  DType gradient_dtype_ = DType::float32;
  std::vector<Tensor> gradient_views_;
  std::unique_ptr<ShardStorage> gradient_;  // made by the first gradient_shard()
  bool gradient_is_discarded_ = false;
  bool gradient_is_unscaled_ = false;
  std::vector<LocalSegment> local_segments_;
};

}  // namespace tessera
