// Muon: orthogonalised updates for matrices, AdamW for the rest.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/optim/optimizer.h"
#include "engine/optim/settings.h"

namespace tessera::optim {

// The factor of a matrix's learning rate, by its rows r and columns c as they are stored.
enum class MuonRate : std::uint8_t {
  original,         // sqrt(max(1, r / c)): Keller Jordan's
  match_rms_adamw,  // 0.2 * sqrt(max(r, c)): updates as large as AdamW's, whose rate can be kept
};

class Muon;
struct MuonOptions {
  using Made = Muon;
  double lr = 1e-3;  // of the matrices
  double momentum = 0.95;
  bool nesterov = true;
  int ns_steps = 5;  // at most 99
  std::array<double, 3> ns_coefficients = {3.4445, -4.7750, 2.0315};
  double eps = 1e-7;  // the least norm that a matrix is divided by
  MuonRate adjust_lr = MuonRate::original;
  // The dtype of the products of the iteration, and of what ranks send: bfloat16 (as
  // torch.optim.Muon) or float32.
  DType products = DType::bfloat16;
  double weight_decay = 0.1;  // decoupled: times lr, without the factor of adjust_lr
  // Which of the parameters with two dimensions are matrices; empty: all of them. The others, and
  // parameters with another number of dimensions, are AdamW's.
  ParameterFilter matrices = {};
  std::optional<double> adamw_lr = {};  // of AdamW's parameters; unset: lr
  double beta1 = 0.9;                   // AdamW's
  double beta2 = 0.999;
  double adamw_eps = 1e-8;
  ParameterFilter decay = {};  // which parameters decay, of both kinds; empty: all
  std::vector<ParameterGroup> groups = {};
};

// The usual MuonOptions::matrices, for a module that is sharded or not: all parameters with two
// dimensions, except the tables of Embedding modules, which heads may be tied to, and the weights
// of output heads (engine/nn/output_head.h).
ParameterFilter hidden_matrices(nn::Module& module);

// Which parameters are matrices under these options. Give it to ShardingOptions::apart, so that
// every rank has an equal part of the matrices and of the rest, whose moments differ in size. (A
// Trainer does it.)
ParameterFilter matrices_of(const MuonOptions& options);

Settings settings_of(const MuonOptions& options);
ShardNeeds needs_of(const MuonOptions& options);

// The elements of a matrix that Muon works on at a time while it adds to the momentum.
inline constexpr std::int64_t muon_piece = std::int64_t{1} << 22;

// Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/), with the conventions of
// torch.optim.Muon. For a matrix p of shape [r, c] with gradient g:
//   m = momentum * m + (1 - momentum) * g
//   u = nesterov ? momentum * m + (1 - momentum) * g : m
//   x = u / max(|u|, eps), |u| the Frobenius norm
//   ns_steps times, with the smaller of x x^T and x^T x as a (here the first):
//     x = c0 * x + (c1 * a + c2 * a a) x
//   p = p - lr * weight_decay * p - lr * factor(adjust_lr) * x
// Other parameters take AdamW's step.
//
// Under sharding every matrix has an owner among the ranks that hold its parts: they send it their
// parts of u, it computes x, and sends their parts of x back. Ranks that hold whole copies
// (NO_SHARD) share the matrices and broadcast x. Owners follow from the shapes, their parts and the
// number of ranks (matrix_owners.h), and a matrix has the same bits on whichever rank: the bits are
// the same under every strategy. step() is then collective; the same parameters have gradients on
// every rank.
//
// The state is a "momentum" for each matrix, half of AdamW's, and AdamW's for the rest. A step also
// needs, until it ends, memory on each rank for the largest matrix [r, c] of all: 2 * r * c + 2 *
// min(r, c)^2 elements of `products`, and the fp32 of at most muon_piece of its elements.
class Muon : public Optimizer {
 public:
  // Error(configuration) if no trained parameter is a matrix, or if masters, gradients or state are
  // offloaded to files or to a GPU's host.
  Muon(std::vector<nn::NamedParameter> parameters, const MuonOptions& options);
  void step() override;
  void step(std::size_t segment) override;
  // AdamW's; a matrix has others.
  [[nodiscard]] std::vector<std::string> state_names() const override {
    return {"exp_avg", "exp_avg_sq"};
  }
  [[nodiscard]] std::vector<std::string> state_names_of(std::size_t parameter) const override;

 protected:
  void update(const Update& update) override;

 private:
  class Matrices;
  [[nodiscard]] bool is_matrix(std::size_t parameter) const;
  void check_parameters() const;
  // Begins a step of a segment of matrices, and adds those with a gradient to the list. False: the
  // segment has AdamW's parameters.
  bool begin_matrices(std::size_t segment, std::vector<std::size_t>& matrices);
  void step_matrices(std::vector<std::size_t> matrices);

  MuonOptions options_;
  ParameterFilter is_chosen_;
  double adamw_factor_ = 1;  // of AdamW's rate, relative to the matrices'
};

}  // namespace tessera::optim
