// The experts of gpt-oss: the matrices of all experts of a layer lie in one tensor, with biases.
#pragma once

#include "models/mixture_of_experts.h"

namespace tessera::models {

// `gate_up_proj` [experts, width, 2 inner] has an expert's gate and up projections in columns of
// even and odd number, `down_proj` is [experts, inner, width]; their biases are [experts, 2 inner]
// and [experts, width]. ClampedGate has the activation.
class StackedExpertsImpl : public ExpertsImpl {
 public:
  explicit StackedExpertsImpl(const MixtureOfExpertsOptions& options);
  Tensor forward(const Tensor& x, const Tensor& weights, const RowGroups& groups) const override;

 protected:
  [[nodiscard]] Tensor decode_one(std::int64_t expert, const Tensor& rows) const override;

 private:
  // [rows, 2 inner] -> [rows, inner].
  [[nodiscard]] Tensor activated(const Tensor& gate_up) const;

  ClampedGate gate_;
};

}  // namespace tessera::models
