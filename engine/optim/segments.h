// Parameters that lie one behind the other in memory, so that one kernel may run over all of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/nn/module.h"
#include "engine/storage/element_range.h"

namespace tessera::optim {

// A run of parameters in a storage that says what may lie between them (Storage::padded_to), or one
// parameter by itself. Between its parameters lies padding, which belongs to nobody, and whose
// gradient and state are zero.
struct Segment {
  std::shared_ptr<Storage> storage;
  DType dtype = DType::float32;
  std::int64_t first = 0;               // in the storage, in elements
  std::int64_t count = 0;               // to the end of the last parameter
  std::vector<std::size_t> parameters;  // their indices, in the order of memory; empty ones too
  std::vector<ElementRange> places;     // in the segment, of each of `parameters`

  [[nodiscard]] std::byte* data() const {
    return storage->data() + static_cast<std::size_t>(first) * size_of(dtype);
  }
};

// Every parameter is in one segment; in the order of each one's first parameter.
std::vector<Segment> find_segments(const std::vector<nn::NamedParameter>& parameters);

// A part of a segment whose parameters have gradients that lie one behind the other as they do.
struct GradientRun {
  ElementRange range;     // in the segment
  std::size_t first = 0;  // of the segment's parameters: [first, last)
  std::size_t last = 0;
  std::shared_ptr<Storage> storage;  // the gradient's
  std::int64_t at = 0;               // where it begins there, in elements
  DType dtype = DType::float32;

  [[nodiscard]] const std::byte* data() const {
    return storage->data() + static_cast<std::size_t>(at) * size_of(dtype);
  }
  // Whether both are parts of the same array, each as far from its beginning as in the segment.
  [[nodiscard]] bool lies_as(const GradientRun& other) const {
    return storage == other.storage && dtype == other.dtype &&
           at - other.at == range.first - other.range.first;
  }
};

// The parameters of a segment that have gradients, in as few runs as there can be. Neighbours for
// which same(index, index) is false are not in one run.
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
