// The post-norm layer.
#include "models/bert/encoder_layer.h"

#include "models/own_call.h"

namespace tessera::models {
namespace {

// Rows are not samples, so the adapter's dropout is drawn by sequence.
Tensor with_lora(const nn::Linear& layer, const Tensor& y, const Tensor& x,
                 const Sequences& sequences) {
  if (!layer->has_lora()) return y;
  return layer->add_lora_product(y, sequence_dropout(x, layer->lora_dropout(), sequences));
}

}  // namespace

Tensor project_rows(const nn::Linear& layer, const Tensor& x, const Sequences& sequences) {
  if (!layer->has_lora()) return layer(x);
  return layer->forward_dropped(x, sequence_dropout(x, layer->lora_dropout(), sequences));
}

EncoderLayerImpl::EncoderLayerImpl(const BertConfig& config, const EncoderLayerNames& names)
    : hidden_dropout_(config.hidden_dropout_prob),
      attention_output_dropout_(config.attention_output_dropout),
      exact_gelu_(config.exact_gelu()) {
  attention_.heads = config.num_attention_heads;
  attention_.dropout = config.attention_probs_dropout_prob;
  ModulePlaces places;
  const auto here = [this](const std::string& name, const auto& handle) {
    return register_module(name, handle);
  };
  const auto linear_layer = [&](const std::string& path, std::int64_t in, std::int64_t out) {
    return places.add(
        path, nn::Linear(in, out, nn::LinearOptions{.deviation = config.initializer_range}), here);
  };
  const auto norm = [&](const std::string& path) {
    return places.add(path, nn::LayerNorm(config.hidden_size, config.layer_norm_eps), here);
  };
  const std::int64_t hidden = config.hidden_size;
  query_ = linear_layer(names.query, hidden, hidden);
  key_ = linear_layer(names.key, hidden, hidden);
  value_ = linear_layer(names.value, hidden, hidden);
  attention_output_ = linear_layer(names.attention_output, hidden, hidden);
  attention_norm_ = norm(names.attention_norm);
  intermediate_ = linear_layer(names.intermediate, hidden, config.intermediate_size);
  output_ = linear_layer(names.output, config.intermediate_size, hidden);
  output_norm_ = norm(names.output_norm);
}

Tensor EncoderLayerImpl::feed(const Tensor& x, const Sequences& sequences) const {
  if (needs_own_call(output_) || intermediate_->has_forward_hooks()) {
    return project_rows(output_, gelu(project_rows(intermediate_, x, sequences), exact_gelu_),
                        sequences);
  }
  return bias_gelu_linear(
      with_lora(intermediate_, linear(x, intermediate_->weight(), {}, intermediate_->layout()), x,
                sequences),
      intermediate_->bias(), output_->weight(), output_->bias(), output_->layout(), exact_gelu_);
}

Tensor EncoderLayerImpl::forward(const Tensor& x, const Sequences& sequences,
                                 const Tensor& relative_bias) const {
  SequenceAttentionOptions attention = attention_;
  attention.relative_bias = relative_bias;
  if (!is_training()) attention.dropout = 0;
  const double dropout = is_training() ? hidden_dropout_ : 0;
  const Tensor context =
      sequence_attention(project_rows(query_, x, sequences), project_rows(key_, x, sequences),
                         project_rows(value_, x, sequences), sequences, attention);
  const Tensor output = project_rows(attention_output_, context, sequences);
  const Tensor attended =
      attention_norm_(sequence_dropout(output, attention_output_dropout_ ? dropout : 0, sequences),
                      x)
          .second;
  const Tensor fed = feed(attended, sequences);
  return output_norm_(sequence_dropout(fed, dropout, sequences), attended).second;
}

}  // namespace tessera::models
