// The encoder of T5 with Hugging Face's module tree and parameter names: norms without means before
// attention and feed-forward, attention without a scale and with a bias by distance, whose table
// the first block owns and all blocks use. The decoder is ignored when weights are read.
//
// A block keeps for backward, in units of [tokens, d_model] with heads * d_kv = d_model and d_ff =
// 4 d_model, 16 in all: its input 1, both norms' outputs 2, queries, keys and values 3, the
// attention's output 1, the sum 1, the feed-forward's pre-activation 4 and activation 4.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "engine/nn/layers.h"
#include "engine/nn/module_list.h"
#include "models/t5/t5_config.h"
#include "models/text_encoder.h"

namespace tessera::models {

class T5AttentionImpl : public nn::Module {
 public:
  T5AttentionImpl(const T5Config& config, bool has_table);
  // `bias` as sequence_attention() takes it.
  Tensor forward(const Tensor& x, const Sequences& sequences, const Tensor& bias) const;
  // For the next row of each sequence, x [batch, d_model], after those whose keys and values
  // [batch, heads, rows, d_kv] are in `past`, which it is added to. bias [heads, 1, rows]. Without
  // a gradient.
  struct Past {
    Tensor keys, values;
  };
  Tensor decode(const Tensor& x, const Tensor& bias, Past& past) const;
  // The first block has it: [buckets, heads].
  [[nodiscard]] const Tensor& distance_table() const { return distances_->stored_weight(); }

 private:
  SequenceAttentionOptions options_;
  nn::Linear q_, k_, v_, o_;
  nn::Embedding distances_;  // empty except in the first block
};
TESSERA_MODULE(T5Attention);

// The linear layers of T5's stacks have no biases, and initial deviations of their own.
nn::Linear t5_projection(const T5Config& config, std::int64_t in, std::int64_t out, double inverse);
nn::RmsNorm t5_norm(const T5Config& config);

class T5FeedForwardImpl : public nn::Module {
 public:
  explicit T5FeedForwardImpl(const T5Config& config);
  Tensor forward(const Tensor& x, const Sequences& sequences) const;

 private:
  bool gated_;
  double dropout_;
  nn::Linear in_, linear_, out_;  // `linear_` if it is gated
};
TESSERA_MODULE(T5FeedForward);

class T5BlockImpl : public nn::Module {
 public:
  T5BlockImpl(const T5Config& config, bool is_first);
  Tensor forward(const Tensor& x, const Sequences& sequences, const Tensor& bias) const;
  [[nodiscard]] const Tensor& distance_table() const { return attention_->distance_table(); }
  // The class's name in transformers.
  [[nodiscard]] std::string class_name() const override { return "T5Block"; }

 private:
  double dropout_;
  T5Attention attention_;
  T5FeedForward feed_forward_;
  nn::RmsNorm attention_norm_, feed_forward_norm_;
};
TESSERA_MODULE(T5Block);

class T5StackImpl : public nn::Module {
 public:
  explicit T5StackImpl(const T5Config& config);
  Tensor forward(const Tensor& x, const Sequences& sequences) const;

 private:
  // The table's rows for the distances 1 - longest .. longest - 1.
  [[nodiscard]] Tensor distance_bias(std::int64_t longest, Device device) const;

  std::int64_t buckets_, furthest_;
  double dropout_;
  nn::ModuleList<T5Block> block_;
  nn::RmsNorm norm_;
};
TESSERA_MODULE(T5Stack);

class T5Encoder : public TextEncoder {
 public:
  explicit T5Encoder(T5Config config);
  using TextEncoder::forward;
  Tensor forward(const TokenRows& tokens) override;
  [[nodiscard]] TokenRows rows_of(const TokenBatch& tokens) const override;
  [[nodiscard]] std::int64_t vocabulary() const override { return config_.vocab_size; }
  [[nodiscard]] std::int64_t positions() const override { return config_.n_positions; }
  [[nodiscard]] std::int64_t width() const override { return config_.d_model; }
  [[nodiscard]] nlohmann::json config(DType weights = float32) const override {
    return config_.to_json(weights);
  }
  [[nodiscard]] HuggingFaceNames hugging_face_names() const override;
  [[nodiscard]] std::string layer_class() const override { return "T5Block"; }

 private:
  T5Config config_;
  nn::Embedding shared_;
  T5Stack encoder_;
};

}  // namespace tessera::models
