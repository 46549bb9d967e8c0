// The elements whose weights decay (kernels::DecayRanges), part by part.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/optimizer.h"

namespace tessera::kernels {

// Calls body(step, first, last) for each part of [first, last) with uniform decay.
template <class Step, class Body>
void for_decay_ranges(const Step& a, std::int64_t first, std::int64_t last, Body&& body) {
  if (a.decay.edges == nullptr) return body(a, first, last);
  Step without = a;
  without.weight_decay = 0;
  const std::int64_t* const edges = a.decay.edges;
  const std::int64_t* const end = edges + a.decay.count;
  for (const std::int64_t* next = std::upper_bound(edges, end, first); first < last; ++next) {
    const std::int64_t until = next == end ? last : std::min(last, *next);
    if (until > first) body((next - edges) % 2 == 1 ? a : without, first, until);
    first = until;
    if (next == end) break;
  }
}

}  // namespace tessera::kernels
