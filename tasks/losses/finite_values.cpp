// By the largest and the smallest value, which are NaN if one is.
#include "tasks/losses/finite_values.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "engine/autograd.h"
#include "engine/tensor_ops.h"

namespace tessera::tasks {

bool all_finite(const Tensor& x) {
  if (x.elements() == 0) return true;
  const NoGradGuard no_grad;
  return std::isfinite(max(x).item()) && std::isfinite(min(x).item());
}

std::string first_not_finite(const Tensor& x) {
  const NoGradGuard no_grad;
  const Tensor on_host = cast(x.to(Device::cpu()), float32);
  const auto* const values = on_host.data_as<float>();
  const auto* const end = values + on_host.elements();
  const auto* const found =
      std::find_if(values, end, [](float one) { return !std::isfinite(one); });
  if (found == end) return {};
  std::int64_t rest = found - values;
  std::vector<std::int64_t> place(static_cast<std::size_t>(x.dimensions()));
  for (int i = x.dimensions() - 1; i >= 0; --i) {
    place[static_cast<std::size_t>(i)] = rest % x.size(i);
    rest /= x.size(i);
  }
  const float value =
      std::isnan(*found) ? std::abs(*found) : *found;  // the sign of a NaN has no meaning
  return fmt::format("{} at [{}] of {}", value, fmt::join(place, ", "), x.shape().to_string());
}

}  // namespace tessera::tasks
