// The places of a unit's parameters in its flat parameter, and each rank's shard of it. Pure
// arithmetic.
//
// A unit's parameters form segments of equal (compute dtype, master dtype, trainable, apart),
// trainable ones first. Each segment is cut into equal parts, one for each shard, and padded at its
// end so that the parts are multiples of 256 bytes: whichever part of a unit is trainable, its
// state is spread over all ranks. A shard of the unit consists of its parts of the segments. A
// parameter begins at a multiple of 32 elements (64 bytes or more) of its segment, or of a larger
// block that no cut may divide; its place there depends on neither the strategy nor the number of
// shards.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "engine/shape.h"
#include "engine/storage/element_range.h"

namespace tessera {

// A parameter begins at a multiple of this many elements of its segment: a block of
// kernels::SumOfSquares, so that no shard boundary cuts a block and a gradient's norm does not
// depend on the cuts.
inline constexpr std::int64_t parameter_alignment = 32;

struct ParameterSpec {
  std::string name;
  Shape shape;
  DType master_dtype = DType::float32;   // of the optimizer's updates and of checkpoints
  DType compute_dtype = DType::float32;  // of gathers and of the computation
  bool trainable = true;
  bool apart = false;                        // ShardingOptions::apart
  std::int64_t block = parameter_alignment;  // ShardingOptions::block
};

// The unit in messages: "the root unit", whose name is empty, or "unit encoder.layers.0".
std::string unit_title(std::string_view name);

class UnitLayout {
 public:
  struct Segment {
    DType compute_dtype, master_dtype;
    bool trainable, apart;
    std::int64_t block;       // parameters begin at multiples of it, and shards have a multiple
    std::size_t byte_offset;  // in the flat buffer
    std::int64_t elements;    // with the gaps between parameters and the padding at the end
    std::int64_t share;       // elements of each shard
    // Trainable segments only, in elements: in the gradient buffer, and in a shard's gradient.
    std::int64_t gradient_offset, local_gradient_offset;
    [[nodiscard]] std::size_t bytes() const {
      return static_cast<std::size_t>(elements) * size_of(compute_dtype);
    }
    [[nodiscard]] std::size_t master_bytes() const {  // of each shard
      return static_cast<std::size_t>(share) * size_of(master_dtype);
    }
  };
  struct Slot {
    ParameterSpec spec;
    int segment;
    ElementRange range;  // in the segment
  };

  UnitLayout(std::vector<ParameterSpec> parameters, int shards);

  [[nodiscard]] int shards() const { return shards_; }
  [[nodiscard]] const std::vector<Segment>& segments() const { return segments_; }
  [[nodiscard]] const std::vector<Slot>& slots() const { return slots_; }  // in the given order
  [[nodiscard]] std::size_t bytes() const { return bytes_; }  // of the flat buffer, padded
  [[nodiscard]] std::size_t share_bytes() const {  // of a shard, of all segments together
    return bytes_ / static_cast<std::size_t>(shards_);
  }
  [[nodiscard]] std::int64_t gradient_elements() const { return gradient_elements_; }
  // Elements of a shard's reduced gradient, with the gaps between its segments.
  [[nodiscard]] std::int64_t local_gradient_elements() const { return local_gradient_elements_; }
  // A dtype that holds every trainable segment's compute dtype: the widest, fp32 for two 16-bit
  // types.
  [[nodiscard]] DType gradient_dtype() const;

  // The part of a segment that shard `shard` holds; begins at a multiple of 32 elements.
  [[nodiscard]] ElementRange local(int segment, int shard) const;
  // The part of a parameter that the shard holds, in elements of the parameter.
  [[nodiscard]] ElementRange local_of(const Slot& slot, int shard) const;
  // Ranges of the gradient buffer that no parameter covers (alignment and padding), in elements.
  [[nodiscard]] const std::vector<ElementRange>& gradient_gaps() const { return gradient_gaps_; }

 private:
  void find_gaps();

  int shards_;
  std::vector<Segment> segments_;
  std::vector<Slot> slots_;
  std::size_t bytes_ = 0;
  std::int64_t gradient_elements_ = 0, local_gradient_elements_ = 0;
  std::vector<ElementRange> gradient_gaps_;
};

}  // namespace tessera
