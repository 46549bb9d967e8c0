// Parameters that are adjacent in memory, so that one kernel can run over all of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/nn/module.h"
#include "engine/storage/element_range.h"

namespace tessera::optim {

// A run of parameters in a storage that declares its padding (ShardMetadata::padded_to), or a
// single parameter. Padding between the parameters belongs to none of them; its gradient and state
// are zero.
struct Segment {
  std::shared_ptr<Storage> storage;
  DType dtype = DType::float32;
  std::int64_t first = 0;               // in the storage, in elements
  std::int64_t count = 0;               // to the end of the last parameter
  std::vector<std::size_t> parameters;  // indices in memory order; empty ones too
  std::vector<ElementRange> places;     // in the segment, for each of `parameters`

  [[nodiscard]] std::byte* data() const {
    return storage->data() + static_cast<std::size_t>(first) * size_of(dtype);
  }
};

// Puts every parameter in one segment. Segments are in the order of their first parameters. No
// segment has both parameters with and without a mark in `apart` (by parameter; empty: no marks).
std::vector<Segment> find_segments(const std::vector<nn::NamedParameter>& parameters,
                                   const std::vector<bool>& apart = {});

// A part of a segment whose gradients are adjacent in memory like its parameters.
struct GradientRun {
  ElementRange range;     // in the segment
  std::size_t first = 0;  // index among the segment's parameters: [first, last)
  std::size_t last = 0;
  std::shared_ptr<Storage> storage;  // the gradient's
  std::int64_t at = 0;               // its beginning there, in elements
  DType dtype = DType::float32;

  [[nodiscard]] const std::byte* data() const {
    return storage->data() + static_cast<std::size_t>(at) * size_of(dtype);
  }
  // True if both are parts of the same array, with the same distance in it as in the segment.
  [[nodiscard]] bool lies_as(const GradientRun& other) const {
    return storage == other.storage && dtype == other.dtype &&
           at - other.at == range.first - other.range.first;
  }
};

// Splits the parameters of a segment that have gradients into as few runs as possible. A parameter
// for which same(first index of the run, index) is false starts a new run.
template <class Same>
std::vector<GradientRun> gradient_runs(const std::vector<nn::NamedParameter>& parameters,
                                       const Segment& segment, const Same& same) {
  std::vector<GradientRun> runs;
  bool open = false;
  for (std::size_t i = 0; i < segment.parameters.size(); ++i) {
    const ElementRange place = segment.places[i];
    if (place.count == 0) continue;
    const auto& data = parameters[segment.parameters[i]].tensor.impl();
    if (!data->requires_grad || !data->grad_ready) {
      open = false;
      continue;
    }
    const detail::TensorData& gradient = *data->grad;
    const auto at = static_cast<std::int64_t>(gradient.offset / size_of(gradient.dtype));
    GradientRun run{{place.first, 0}, i, i, gradient.storage, at, gradient.dtype};
    const bool fits = open && run.lies_as(runs.back()) &&
                      same(segment.parameters[runs.back().first], segment.parameters[i]);
    if (!fits) runs.push_back(std::move(run));
    runs.back().range.count = place.end() - runs.back().range.first;
    runs.back().last = i + 1;
    open = true;
  }
  return runs;
}

}  // namespace tessera::optim
