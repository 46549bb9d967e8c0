// The router, the experts and their load-balancing loss.
#include "models/mixture_of_experts.h"

#include <algorithm>

#include <memory>

#include "base/error.h"
#include "engine/ops.h"
#include "engine/ops/cache.h"
#include "engine/tensor_ops.h"
#include "models/stacked_experts.h"

namespace tessera::models {

ExpertProjectionImpl::ExpertProjectionImpl(std::int64_t in, std::int64_t out, double deviation) {
  register_parameter("weight", nn::make_parameter({out, in}, nn::normal(0, deviation)));
}

ExpertImpl::ExpertImpl(const MixtureOfExpertsOptions& o) {
  gate = register_module(o.gate, ExpertProjection(o.width, o.inner, o.deviation));
  up = register_module(o.up, ExpertProjection(o.width, o.inner, o.deviation));
  down = register_module(o.down, ExpertProjection(o.inner, o.width, o.deviation));
}

Tensor ExpertsImpl::weighted_rows(const Tensor& rows, const Tensor& weights,
                                  const RowGroups& groups) {
  const Tensor sorted = index_select(reshape(weights, {-1}), 0, groups.places);
  return rows * cast(reshape(sorted, {-1, 1}), rows.dtype());
}

Tensor ExpertsImpl::decode(const Tensor& x, const Tensor& weights, const RowGroups& groups) const {
  const Tensor rows = dispatch_rows(x, groups);
  std::vector<Tensor> parts;
  for (std::int64_t e = 0; e < groups.count(); ++e) {
    if (groups.rows_of(e) == 0) continue;
    const std::int64_t first = groups.starts[static_cast<std::size_t>(e)];
    parts.push_back(decode_one(e, narrow(rows, 0, first, groups.rows_of(e))));
  }
  return combine_rows(weighted_rows(concatenate(parts), weights, groups), groups);
}

SeparateExpertsImpl::SeparateExpertsImpl(const MixtureOfExpertsOptions& options) {
  for (std::int64_t i = 0; i < options.experts; ++i) {
    experts_.push_back(register_module(std::to_string(i), Expert(options)));
  }
}

std::vector<Tensor> SeparateExpertsImpl::weights_of(
    ExpertProjection ExpertImpl::*projection) const {
  std::vector<Tensor> weights;
  weights.reserve(experts_.size());
  for (const Expert& expert : experts_) weights.push_back(((*expert).*projection)->weight());
  return weights;
}

Tensor SeparateExpertsImpl::forward(const Tensor& x, const Tensor& weights,
                                    const RowGroups& groups) const {
  const Tensor rows = dispatch_rows(x, groups);
  const Tensor gates = grouped_linear(rows, weights_of(&ExpertImpl::gate), groups);
  const Tensor ups = grouped_linear(rows, weights_of(&ExpertImpl::up), groups);
  const Tensor out = grouped_swiglu_linear(gates, ups, weights_of(&ExpertImpl::down), groups);
  return combine_rows(weighted_rows(out, weights, groups), groups);
}

Tensor SeparateExpertsImpl::decode_one(std::int64_t expert, const Tensor& rows) const {
  const auto apply = [](const ExpertProjection& projection, const Tensor& input) {
    return decode_linear(input, projection->weight(), {}, WeightLayout::out_in);
  };
  const Expert& own = experts_[static_cast<std::size_t>(expert)];
  return apply(own->down, silu(apply(own->gate, rows)) * apply(own->up, rows));
}

ExpertRouterImpl::ExpertRouterImpl(const MixtureOfExpertsOptions& options)
    : has_bias_(options.router_bias) {
  register_parameter("weight", nn::make_parameter({options.experts, options.width},
                                                  nn::normal(0, options.deviation)));
  if (!options.router_bias) return;
  register_parameter("bias",
                     nn::make_parameter({options.experts}, nn::normal(0, options.deviation)));
}

Tensor ExpertRouterImpl::forward(const Tensor& x) const {
  return linear(x, parameter("weight"), has_bias_ ? parameter("bias") : Tensor());
}

namespace {

Experts make_experts(const MixtureOfExpertsOptions& options) {
  if (options.stacked) return Experts(std::make_shared<StackedExpertsImpl>(options));
  return Experts(std::make_shared<SeparateExpertsImpl>(options));
}

}  // namespace

MixtureOfExpertsImpl::MixtureOfExpertsImpl(const MixtureOfExpertsOptions& options)
    : width_(options.width),
      count_(options.experts),
      per_token_(options.per_token),
      normalized_(options.normalized) {
  TESSERA_REQUIRE(options.width > 0 && options.inner > 0 && options.experts > 0 &&
                      options.per_token > 0 && options.per_token <= options.experts,
                  "MixtureOfExperts of width {}, {} experts of width {}, {} for each token; sizes "
                  "must be positive, and a token has at most all experts",
                  options.width, options.experts, options.inner, options.per_token);
  gate_ = register_module(options.router, ExpertRouter(options));
  experts_ = register_module("experts", make_experts(options));
}

Tensor MixtureOfExpertsImpl::rows_of_tokens(const Tensor& x) const {
  TESSERA_REQUIRE(x.dimensions() > 0 && x.size(-1) == width_,
                  "MixtureOfExperts: x of shape {}; its last dimension must be {}",
                  x.shape().to_string(), width_);
  return reshape(x, {-1, width_});
}

MixtureOfExpertsImpl::Routed MixtureOfExpertsImpl::route(const Tensor& rows) const {
  const Tensor logits = gate_(rows);
  const Tensor probabilities = softmax(cast(logits, logits.dtype() == float64 ? float64 : float32));
  const Sorted chosen = topk(probabilities, per_token_);
  Tensor weights = chosen.values;
  if (normalized_) weights = weights / sum(weights, -1, true);
  return {probabilities, weights, group_rows(chosen.places, count_)};
}

Tensor MixtureOfExpertsImpl::forward(const Tensor& x) const {
  const Tensor rows = rows_of_tokens(x);
  const Routed routed = route(rows);
  return reshape(experts_(rows, routed.weights, routed.groups), x.shape());
}

std::pair<Tensor, Tensor> MixtureOfExpertsImpl::forward(const Tensor& x,
                                                        const Tensor& routing) const {
  const Tensor rows = rows_of_tokens(x);
  const Routed routed = route(rows);
  std::vector<double> tokens;
  for (std::int64_t e = 0; e < count_; ++e) {
    tokens.push_back(static_cast<double>(routed.groups.rows_of(e)));
  }
  const Tensor of_experts = Tensor::from(tokens, {1, count_}).to(x.device());
  const Tensor probabilities = cast(sum(routed.probabilities, 0, true), float64);
  return {reshape(experts_(rows, routed.weights, routed.groups), x.shape()),
          routing + concatenate({of_experts, probabilities})};
}

Tensor MixtureOfExpertsImpl::decode(const Tensor& x) const {
  const Tensor rows = rows_of_tokens(x);
  const Routed routed = route(rows);
  const Tensor out = experts_.call([&](const ExpertsImpl& experts) {
    return experts.decode(rows, routed.weights, routed.groups);
  });
  return reshape(out, x.shape());
}

Tensor no_routing(std::int64_t experts, Device device) {
  return Tensor::zeros({2, experts}, float64, device);
}

Tensor load_balance_loss(const Tensor& routing, std::int64_t tokens) {
  TESSERA_REQUIRE(
      routing.dimensions() == 2 && routing.size(0) == 2 && routing.dtype() == float64 && tokens > 0,
      "load_balance_loss: routing of {} {} of {} tokens; [2, experts] of float64 and at least one "
      "token are required",
      name_of(routing.dtype()), routing.shape().to_string(), tokens);
  const auto count = static_cast<double>(tokens);
  const auto experts = static_cast<double>(routing.size(1));
  return sum(select(routing, 0, 0) * select(routing, 0, 1)) * (experts / (count * count));
}

namespace {

template <class Part>
bool has_part(nn::Module& module) {
  const auto parts = module.named_modules();
  return std::any_of(parts.begin(), parts.end(), [](const auto& part) {
    return dynamic_cast<const Part*>(part.second) != nullptr;
  });
}

}  // namespace

bool has_experts(nn::Module& module) {
  return has_part<MixtureOfExpertsImpl>(module);
}

bool trains_stacked_experts(nn::Module& module) {
  for (const auto& [name, part] : module.named_modules()) {
    if (dynamic_cast<StackedExpertsImpl*>(part) == nullptr) continue;
    for (const auto& [parameter, tensor] : part->own_parameters()) {
      if (tensor.requires_grad()) return true;
    }
  }
  return false;
}

}  // namespace tessera::models
