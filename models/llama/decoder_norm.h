// The norm of Llama's build: an RMS norm whose weight is what a file stores plus a number, which is
// 1 for Gemma and 0 for the other families.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "engine/nn/module.h"
#include "models/llama/llama_config.h"

namespace tessera::models {

class DecoderNormImpl : public nn::Module {
 public:
  DecoderNormImpl(std::int64_t dim, const LlamaConfig& config);
  Tensor forward(const Tensor& x) const;
  // (x + residual, normalised sum)
  std::pair<Tensor, Tensor> forward(const Tensor& x, const Tensor& residual) const;
  [[nodiscard]] std::string class_name() const override { return "RmsNorm"; }

 private:
  [[nodiscard]] Tensor scale() const;

  double eps_;
  double offset_;
};
TESSERA_MODULE(DecoderNorm);

}  // namespace tessera::models
