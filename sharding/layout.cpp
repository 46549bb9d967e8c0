// Segments, slots, shares.
#include "sharding/layout.h"

#include <algorithm>
#include <optional>

#include "kernels/base/error.h"

namespace tessera {
namespace {

constexpr std::size_t segment_alignment = 256;  // bytes; also a share's granule

template <class T>
T round_up(T value, T unit) {
  return (value + unit - 1) / unit * unit;
}

}  // namespace

UnitLayout::UnitLayout(std::vector<ParameterSpec> parameters, int shards) : shards_(shards) {
  TESSERA_REQUIRE(shards > 0, "a unit is cut into {} shards", shards);
  slots_.resize(parameters.size());
  for (const bool trainable : {true, false}) {
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      ParameterSpec& spec = parameters[i];
      if (spec.trainable != trainable) continue;
      auto found = std::find_if(segments_.begin(), segments_.end(), [&](const Segment& segment) {
        return segment.compute_dtype == spec.compute_dtype &&
               segment.master_dtype == spec.master_dtype && segment.trainable == spec.trainable;
      });
      if (found == segments_.end()) {
        segments_.push_back({spec.compute_dtype, spec.master_dtype, trainable, 0, 0, 0});
        found = std::prev(segments_.end());
      }
      const std::int64_t first = round_up(found->elements, parameter_alignment);
      const std::int64_t count = spec.shape.elements();
      found->elements = first + count;
      slots_[i] = {std::move(spec), static_cast<int>(found - segments_.begin()), {first, count}};
    }
  }
  std::size_t offset = 0;
  for (Segment& segment : segments_) {
    segment.byte_offset = offset;
    offset = round_up(
        offset + static_cast<std::size_t>(segment.elements) * size_of(segment.compute_dtype),
        segment_alignment);
  }
  bytes_ = std::max(segment_alignment, offset);
  bytes_ = round_up(bytes_, segment_alignment * static_cast<std::size_t>(shards));
  for (std::size_t i = 0; i < segments_.size();
       ++i) {  // a segment reaches to the next one, the last to the end
    const std::size_t end = i + 1 < segments_.size() ? segments_[i + 1].byte_offset : bytes_;
    segments_[i].elements = static_cast<std::int64_t>((end - segments_[i].byte_offset) /
                                                      size_of(segments_[i].compute_dtype));
  }
  for (Segment& segment : segments_) {
    if (!segment.trainable) continue;
    segment.gradient_offset = gradient_elements_;
    gradient_elements_ += round_up(segment.elements, gradient_alignment);
  }
  find_gaps();
}

ElementRange UnitLayout::local(int segment, int shard) const {
  const Segment& s = segments_[static_cast<std::size_t>(segment)];
  const auto size = static_cast<std::int64_t>(size_of(s.compute_dtype));
  const auto share = static_cast<std::int64_t>(share_bytes());
  const auto offset = static_cast<std::int64_t>(s.byte_offset);
  const std::int64_t first = std::max<std::int64_t>(0, shard * share - offset);
  const std::int64_t end = std::max<std::int64_t>(first, (shard + 1) * share - offset);
  return intersect({first / size, (end - first) / size}, {0, s.elements});
}

ElementRange UnitLayout::local_of(const Slot& slot, int shard) const {
  ElementRange range = intersect(local(slot.segment, shard), slot.range);
  range.first = range.count == 0 ? 0 : range.first - slot.range.first;
  return range;
}

DType UnitLayout::gradient_dtype() const {
  std::optional<DType> widest;
  for (const Segment& segment : segments_) {
    if (!segment.trainable || segment.compute_dtype == widest) continue;
    if (widest && size_of(*widest) == size_of(segment.compute_dtype)) {
      widest = float32;
    } else if (!widest || size_of(*widest) < size_of(segment.compute_dtype)) {
      widest = segment.compute_dtype;
    }
  }
  return widest.value_or(float32);
}

void UnitLayout::find_gaps() {
  std::vector<ElementRange> covered;
  for (const Slot& slot : slots_) {
    const Segment& segment = segments_[static_cast<std::size_t>(slot.segment)];
    if (segment.trainable)
      covered.push_back({segment.gradient_offset + slot.range.first, slot.range.count});
  }
  std::sort(covered.begin(), covered.end(),
            [](const ElementRange& a, const ElementRange& b) { return a.first < b.first; });
  std::int64_t position = 0;
  for (const ElementRange& range : covered) {
    if (range.first > position) gradient_gaps_.push_back({position, range.first - position});
    position = std::max(position, range.end());
  }
  if (position < gradient_elements_)
    gradient_gaps_.push_back({position, gradient_elements_ - position});
}

}  // namespace tessera
