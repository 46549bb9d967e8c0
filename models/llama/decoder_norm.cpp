// The norm of Llama's build.
#include "models/llama/decoder_norm.h"

#include "engine/ops.h"

namespace tessera::models {

DecoderNormImpl::DecoderNormImpl(std::int64_t dim, const LlamaConfig& config)
    : eps_(config.rms_norm_eps), offset_(config.family->norm_offset) {
  register_parameter("weight", nn::make_parameter({dim}, nn::constant(1 - offset_)));
}

// As transformers does, the sum is computed in fp32 at least. The norm takes it in x's dtype.
Tensor DecoderNormImpl::scale() const {
  const Tensor& weight = parameter("weight");
  if (offset_ == 0) return weight;
  const DType dtype = weight.dtype();
  if (dtype == float64 || dtype == float32) return weight + offset_;
  return cast(cast(weight, float32) + offset_, dtype);
}

Tensor DecoderNormImpl::forward(const Tensor& x) const {
  return rms_norm(cast(x, parameter("weight").dtype()), scale(), eps_);
}

std::pair<Tensor, Tensor> DecoderNormImpl::forward(const Tensor& x, const Tensor& residual) const {
  return add_rms_norm(x, residual, scale(), eps_);
}

}  // namespace tessera::models
