// The median of measurements.
#pragma once

#include <algorithm>
#include <vector>

namespace tessera::bench {

// The upper of the two middle values, if their number is even.
inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace tessera::bench
