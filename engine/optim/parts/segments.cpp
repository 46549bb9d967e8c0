// Groups parameters by storage and position.
#include "engine/optim/parts/segments.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <unordered_map>

namespace tessera::optim {
namespace {

std::int64_t first_element(const Tensor& tensor) {
  return static_cast<std::int64_t>(tensor.impl()->offset / size_of(tensor.dtype()));
}

}  // namespace

std::vector<Segment> find_segments(const std::vector<nn::NamedParameter>& parameters,
                                   const std::vector<bool>& apart) {
  // If a storage does not declare its padding, each of its tensors is a segment of its own.
  std::vector<std::vector<std::size_t>> together;
  std::unordered_map<const Storage*, std::size_t> known;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const Tensor& tensor = parameters[i].tensor;
    const Storage* storage = tensor.storage().get();
    const auto found = known.find(storage);
    if (storage->shard().padded_to == 0 || found == known.end()) {
      known[storage] = together.size();
      together.push_back({i});
    } else {
      together[found->second].push_back(i);
    }
  }
  std::vector<Segment> segments;
  for (std::vector<std::size_t>& members : together) {
    std::stable_sort(members.begin(), members.end(), [&](std::size_t a, std::size_t b) {
      return first_element(parameters[a].tensor) < first_element(parameters[b].tensor);
    });
    const std::size_t of_storage = segments.size();
    for (const std::size_t i : members) {
      const Tensor& tensor = parameters[i].tensor;
      const std::int64_t first = first_element(tensor);
      const bool begins =
          segments.size() == of_storage || segments.back().dtype != tensor.dtype() ||
          (!apart.empty() && apart[i] != apart[segments.back().parameters.back()]) ||
          (tensor.elements() > 0 && first - segments.back().first - segments.back().count >=
                                        tensor.storage()->shard().padded_to);
      if (begins) segments.push_back({tensor.storage(), tensor.dtype(), first, 0, {}, {}});
      Segment& segment = segments.back();
      segment.parameters.push_back(i);
      segment.places.push_back({first - segment.first, tensor.elements()});
      segment.count = std::max(segment.count, first - segment.first + tensor.elements());
    }
  }
  std::stable_sort(segments.begin(), segments.end(), [](const Segment& a, const Segment& b) {
    return *std::min_element(a.parameters.begin(), a.parameters.end()) <
           *std::min_element(b.parameters.begin(), b.parameters.end());
  });
  return segments;
}

}  // namespace tessera::optim
