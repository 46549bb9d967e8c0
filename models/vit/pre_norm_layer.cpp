// The pre-norm layer.
#include "models/vit/pre_norm_layer.h"

#include "models/own_call.h"

namespace tessera::models {

PreNormLayerImpl::PreNormLayerImpl(const PreNormOptions& options, const EncoderLayerNames& names)
    : options_(options) {
  const auto& o = options_;
  ModulePlaces places;
  const auto here = [this](const std::string& name, const auto& handle) {
    return register_module(name, handle);
  };
  const auto linear_layer = [&](const std::string& path, std::int64_t in, std::int64_t out,
                                double deviation, bool bias = true) {
    return places.add(
        path, nn::Linear(in, out, nn::LinearOptions{.bias = bias, .deviation = deviation}), here);
  };
  const auto norm = [&](const std::string& path) {
    return places.add(path, nn::LayerNorm(o.width, o.eps), here);
  };
  query_ = linear_layer(names.query, o.width, o.width, o.qkv_deviation, o.qkv_bias);
  key_ = linear_layer(names.key, o.width, o.width, o.qkv_deviation, o.qkv_bias);
  value_ = linear_layer(names.value, o.width, o.width, o.qkv_deviation, o.qkv_bias);
  attention_output_ =
      linear_layer(names.attention_output, o.width, o.width, o.attention_output_deviation);
  attention_norm_ = norm(names.attention_norm);
  intermediate_ = linear_layer(names.intermediate, o.width, o.inner, o.inner_deviation);
  output_ = linear_layer(names.output, o.inner, o.width, o.output_deviation);
  output_norm_ = norm(names.output_norm);
}

Tensor PreNormLayerImpl::feed(const Tensor& x) const {
  if (!is_gelu(options_.activation) || needs_own_call(output_) ||
      intermediate_->has_forward_hooks()) {
    return output_(activate(intermediate_(x), options_.activation));
  }
  const Tensor before_bias = linear(x, intermediate_->weight(), {}, intermediate_->layout());
  return bias_gelu_linear(intermediate_->with_lora(before_bias, x), intermediate_->bias(),
                          output_->weight(), output_->bias(), output_->layout(),
                          options_.activation == Activation::gelu);
}

Tensor PreNormLayerImpl::forward(const Tensor& x) const {
  const double residual = is_training() ? options_.dropout : 0;
  AttentionOptions attended;
  attended.heads = options_.heads;
  attended.causal = options_.causal;
  attended.dropout = is_training() ? options_.attention_dropout : 0;
  const Tensor normed = attention_norm_(x);
  const Tensor context = attention(query_(normed), key_(normed), value_(normed), attended);
  const auto [sum, between] = output_norm_(dropout(attention_output_(context), residual), x);
  return sum + dropout(feed(between), residual);
}

}  // namespace tessera::models
