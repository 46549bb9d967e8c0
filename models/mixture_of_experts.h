// A mixture of experts: a router sends each token to a few of many feed-forward layers. No token is
// dropped.
//
//   models::MixtureOfExperts mixture({.width = 512, .inner = 1024, .experts = 8, .per_token = 2});
//   Tensor y = mixture(x);                                              // [.., 512]
//
// Or with the loss that keeps the experts in equal use:
//
//   auto [y, routing] = mixture(x, models::no_routing(8, x.device()));
//   loss = loss + 0.01 * models::load_balance_loss(routing, tokens);
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/nn/module.h"
#include "engine/ops/products/grouped.h"
#include "engine/tensor.h"

namespace tessera::models {

// gpt-oss's gate: with g = min(gate(x), limit) and u = up(x) between -limit and limit, an expert
// computes down(g * sigmoid(alpha * g) * (u + 1)).
struct ClampedGate {
  double alpha = 1.702;
  double limit = 7;
};

struct MixtureOfExpertsOptions {
  std::int64_t width = 0;  // of a token
  std::int64_t inner = 0;  // of an expert
  std::int64_t experts = 0;
  std::int64_t per_token = 2;  // experts of a token
  // The weights of a token's experts are divided by their sum.
  bool normalized = true;
  double deviation = 0.02;  // of the initial weights
  // Names of an expert's three matrices: Qwen's; Mixtral has w1, w3, w2.
  std::string gate = "gate_proj", up = "up_proj", down = "down_proj";
  std::string router = "gate";  // its name
  bool router_bias = false;
  // The experts are gpt-oss's (models/stacked_experts.h), which do not have these three names.
  std::optional<ClampedGate> stacked = {};
};

// A matrix [out, in] that the products of all experts read.
class ExpertProjectionImpl : public nn::Module {
 public:
  ExpertProjectionImpl(std::int64_t in, std::int64_t out, double deviation);
  [[nodiscard]] const Tensor& weight() const { return parameter("weight"); }
};
TESSERA_MODULE(ExpertProjection);

// The three matrices of one expert: down(silu(gate(x)) * up(x)).
class ExpertImpl : public nn::Module {
 public:
  explicit ExpertImpl(const MixtureOfExpertsOptions& options);
  ExpertProjection gate, up, down;
};
TESSERA_MODULE(Expert);

// All experts of a mixture. A wrap policy may make it a unit, and does not split it.
class ExpertsImpl : public nn::Module {
 public:
  // x [tokens, width] and a weight for each id of the groups, [tokens, per_token] -> [tokens,
  // width]: the sum of a token's experts, each times its weight.
  virtual Tensor forward(const Tensor& x, const Tensor& weights, const RowGroups& groups) const = 0;
  // The same for a few tokens and without a gradient, at the rate at which weights are read.
  [[nodiscard]] Tensor decode(const Tensor& x, const Tensor& weights,
                              const RowGroups& groups) const;
  [[nodiscard]] bool is_indivisible() const override { return true; }
  [[nodiscard]] std::string class_name() const override { return "Experts"; }

 protected:
  // The results of one expert for its rows, by decode_linear().
  [[nodiscard]] virtual Tensor decode_one(std::int64_t expert, const Tensor& rows) const = 0;
  // Each row times its own weight, which stands at its place among the ids.
  static Tensor weighted_rows(const Tensor& rows, const Tensor& weights, const RowGroups& groups);
};
TESSERA_MODULE(Experts);

// Each expert with matrices of its own, as children "0", "1", ...
class SeparateExpertsImpl : public ExpertsImpl {
 public:
  explicit SeparateExpertsImpl(const MixtureOfExpertsOptions& options);
  Tensor forward(const Tensor& x, const Tensor& weights, const RowGroups& groups) const override;

 protected:
  [[nodiscard]] Tensor decode_one(std::int64_t expert, const Tensor& rows) const override;

 private:
  [[nodiscard]] std::vector<Tensor> weights_of(ExpertProjection ExpertImpl::*projection) const;

  std::vector<Expert> experts_;
};

// A linear layer whose results are the experts' logits.
class ExpertRouterImpl : public nn::Module {
 public:
  explicit ExpertRouterImpl(const MixtureOfExpertsOptions& options);
  Tensor forward(const Tensor& x) const;  // [.., width] -> [.., experts]

 private:
  bool has_bias_;
};
TESSERA_MODULE(ExpertRouter);

// The router `gate` and the layers `experts`, with Hugging Face's names and order of computation:
// a softmax over all experts in fp32 (fp64 for fp64), the per_token largest of it (the lower number
// at a tie), and their division by their sum if `normalized`. With that, it is also the softmax of
// the chosen experts' logits alone.
class MixtureOfExpertsImpl : public nn::Module {
 public:
  // A std::logic_error unless all sizes are positive and per_token is at most `experts`.
  explicit MixtureOfExpertsImpl(const MixtureOfExpertsOptions& options);
  // x [.., width] -> [.., width].
  Tensor forward(const Tensor& x) const;
  // The same, and `routing` with this mixture's part added: see load_balance_loss().
  std::pair<Tensor, Tensor> forward(const Tensor& x, const Tensor& routing) const;
  // forward() for a few tokens and without a gradient.
  [[nodiscard]] Tensor decode(const Tensor& x) const;

 private:
  struct Routed {
    Tensor probabilities;  // [tokens, experts]
    Tensor weights;        // [tokens, per_token]
    RowGroups groups;
  };
  [[nodiscard]] Routed route(const Tensor& rows) const;
  [[nodiscard]] Tensor rows_of_tokens(const Tensor& x) const;

  std::int64_t width_, count_, per_token_;
  bool normalized_;
  ExpertRouter gate_;
  Experts experts_;
};
TESSERA_MODULE(MixtureOfExperts);

// True if a part of the module is a mixture of experts.
bool has_experts(nn::Module& module);
// True if the matrices of all experts of such a part lie in one tensor that is trained.
bool trains_stacked_experts(nn::Module& module);

// The counts of several mixtures for load_balance_loss(), added up: [2, experts] in fp64, which no
// sharded module's precision rounds. Row 0 has the number of tokens that each expert got, row 1 the
// sum of its probabilities. This is the beginning, all zeros.
Tensor no_routing(std::int64_t experts, Device device = default_device());

// The load-balancing loss of Switch Transformers (Fedus et al. 2021, equations 4 to 6) over several
// mixtures together, as transformers computes it:
// experts * sum over e of (tokens of e / tokens) * (sum of e's probabilities / tokens). `tokens` is
// the number of tokens times the number of mixtures. It is per_token if all experts have equal use.
// fp64, one element. On several ranks it is the loss of each rank's own tokens.
Tensor load_balance_loss(const Tensor& routing, std::int64_t tokens);

}  // namespace tessera::models
