// Experts whose matrices lie in one tensor.
#include "models/stacked_experts.h"

#include <limits>
#include <string>
#include <vector>

#include "engine/ops.h"
#include "engine/ops/cache.h"
#include "engine/tensor_ops.h"

namespace tessera::models {

StackedExpertsImpl::StackedExpertsImpl(const MixtureOfExpertsOptions& o)
    : gate_(o.stacked.value_or(ClampedGate{})) {
  const auto add = [&](const std::string& name, std::int64_t in, std::int64_t out) {
    register_parameter(name, nn::make_parameter({o.experts, in, out}, nn::normal(0, o.deviation)));
    register_parameter(name + "_bias", nn::make_parameter({o.experts, out}, nn::constant(0)));
  };
  add("gate_up_proj", o.width, 2 * o.inner);
  add("down_proj", o.inner, o.width);
}

Tensor StackedExpertsImpl::activated(const Tensor& gate_up) const {
  constexpr double unlimited = -std::numeric_limits<double>::infinity();
  const Tensor pairs = reshape(gate_up, {gate_up.size(0), gate_up.size(1) / 2, 2});
  const Tensor gate = clamp(select(pairs, -1, 0), unlimited, gate_.limit);
  const Tensor up = clamp(select(pairs, -1, 1), -gate_.limit, gate_.limit);
  return gate * sigmoid(gate * gate_.alpha) * (up + 1.0);
}

Tensor StackedExpertsImpl::forward(const Tensor& x, const Tensor& weights,
                                   const RowGroups& groups) const {
  const Tensor gate_up =
      grouped_linear(dispatch_rows(x, groups), parameter("gate_up_proj"),
                     parameter("gate_up_proj_bias"), groups, WeightLayout::in_out);
  const Tensor out = grouped_linear(activated(gate_up), parameter("down_proj"),
                                    parameter("down_proj_bias"), groups, WeightLayout::in_out);
  return combine_rows(weighted_rows(out, weights, groups), groups);
}

Tensor StackedExpertsImpl::decode_one(std::int64_t expert, const Tensor& rows) const {
  const auto apply = [&](const std::string& name, const Tensor& input) {
    return decode_linear(input, select(parameter(name), 0, expert),
                         select(parameter(name + "_bias"), 0, expert), WeightLayout::in_out);
  };
  return apply("down_proj", activated(apply("gate_up_proj", rows)));
}

}  // namespace tessera::models
