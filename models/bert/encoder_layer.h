// The layer of BERT and the models of its build: attention and a feed-forward block, each followed
// by the residual's addition and a norm (post-norm). The models differ in their parameters' names.
//
// A layer keeps for backward, in units of [tokens, hidden_size] (intermediate_size = 4
// hidden_size), 11 in all: its input 1, queries, keys and values 3, the attention's output 1, the
// sums before both norms 2 and the feed-forward's pre-activation 4. The first norm's output is
// computed again; the second's is the next layer's input.
#pragma once

#include <string>

#include "engine/nn/layers.h"
#include "models/bert/bert_config.h"
#include "models/module_places.h"

namespace tessera::models {

class EncoderLayerImpl : public nn::Module {
 public:
  EncoderLayerImpl(const BertConfig& config, const EncoderLayerNames& names);
  // x [rows, hidden_size]; relative_bias as sequence_attention() takes it, or undefined.
  Tensor forward(const Tensor& x, const Sequences& sequences, const Tensor& relative_bias) const;
  // The output's product also adds the intermediate bias.
  [[nodiscard]] bool is_indivisible() const override { return true; }

 private:
  [[nodiscard]] Tensor feed(const Tensor& x, const Sequences& sequences) const;

  SequenceAttentionOptions attention_;
  double hidden_dropout_;
  bool attention_output_dropout_;
  bool exact_gelu_;
  nn::Linear query_, key_, value_, attention_output_, intermediate_, output_;
  nn::LayerNorm attention_norm_, output_norm_;
};

// A linear layer of rows [rows, in] that belong to sequences: dropout of its adapter, if it has
// one, is drawn by sequence.
Tensor project_rows(const nn::Linear& layer, const Tensor& x, const Sequences& sequences);

}  // namespace tessera::models
