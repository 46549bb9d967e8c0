// Shared by the tests of text encoders: small configurations, batches of sequences of many lengths,
// and a module with a loss around an encoder.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "engine/random.h"
#include "models/registry/registry.h"
#include "models/sentence_encoder/sentence_encoder.h"
#include "support/gradient_check.h"

namespace tessera::testing {

inline nlohmann::json tiny_encoder(const std::string& type) {
  if (type == "distilbert") {
    return {{"model_type", type},
            {"vocab_size", 29},
            {"dim", 12},
            {"n_layers", 2},
            {"n_heads", 3},
            {"hidden_dim", 20},
            {"max_position_embeddings", 16},
            {"initializer_range", 0.3}};
  }
  if (type == "t5") {
    return {{"model_type", type}, {"vocab_size", 29}, {"d_model", 12}, {"num_layers", 2},
            {"num_heads", 3},     {"d_kv", 5},        {"d_ff", 20},    {"n_positions", 16}};
  }
  if (type == "modernbert") {  // the second layer has a window
    return {{"model_type", type},
            {"vocab_size", 29},
            {"hidden_size", 12},
            {"num_hidden_layers", 2},
            {"num_attention_heads", 3},
            {"intermediate_size", 20},
            {"max_position_embeddings", 16},
            {"local_attention", 4},
            {"attention_dropout", 0.1},
            {"embedding_dropout", 0.1},
            {"initializer_range", 0.3}};
  }
  // Both have positions for padding.
  const bool shifted = type != "bert";
  nlohmann::json config = {{"model_type", type},
                           {"vocab_size", 29},
                           {"hidden_size", 12},
                           {"num_hidden_layers", 2},
                           {"num_attention_heads", 3},
                           {"intermediate_size", 20},
                           {"max_position_embeddings", shifted ? 18 : 16},
                           {"initializer_range", 0.3}};
  return config;
}

// "name [sizes]" of the parameters of a tiny_encoder() of one layer with BERT's names.
inline std::vector<std::string> bert_names_and_shapes(int positions) {
  return {
      "embeddings.word_embeddings.weight [29, 12]",
      "embeddings.position_embeddings.weight [" + std::to_string(positions) + ", 12]",
      "embeddings.token_type_embeddings.weight [2, 12]",
      "embeddings.LayerNorm.weight [12]",
      "embeddings.LayerNorm.bias [12]",
      "encoder.layer.0.attention.self.query.weight [12, 12]",
      "encoder.layer.0.attention.self.query.bias [12]",
      "encoder.layer.0.attention.self.key.weight [12, 12]",
      "encoder.layer.0.attention.self.key.bias [12]",
      "encoder.layer.0.attention.self.value.weight [12, 12]",
      "encoder.layer.0.attention.self.value.bias [12]",
      "encoder.layer.0.attention.output.dense.weight [12, 12]",
      "encoder.layer.0.attention.output.dense.bias [12]",
      "encoder.layer.0.attention.output.LayerNorm.weight [12]",
      "encoder.layer.0.attention.output.LayerNorm.bias [12]",
      "encoder.layer.0.intermediate.dense.weight [20, 12]",
      "encoder.layer.0.intermediate.dense.bias [20]",
      "encoder.layer.0.output.dense.weight [12, 20]",
      "encoder.layer.0.output.dense.bias [12]",
      "encoder.layer.0.output.LayerNorm.weight [12]",
      "encoder.layer.0.output.LayerNorm.bias [12]",
  };
}

inline void set_dropout(nlohmann::json& config, double dropout) {
  if (config.at("model_type") == "t5") {
    config["dropout_rate"] = dropout;
    return;
  }
  if (config.at("model_type") == "modernbert") {
    for (const char* place : {"embedding_dropout", "attention_dropout", "mlp_dropout"}) {
      config[place] = dropout;
    }
    return;
  }
  const bool distilbert = config.at("model_type") == "distilbert";
  config[distilbert ? "dropout" : "hidden_dropout_prob"] = dropout;
  config[distilbert ? "attention_dropout" : "attention_probs_dropout_prob"] = dropout;
}

// Sequences of these lengths padded to `length`, with ids from 3 to 28 that depend on the
// sequence's number in `numbers`.
inline models::TokenBatch encoder_batch(const std::vector<std::int32_t>& lengths,
                                        std::int64_t length, std::vector<unsigned> numbers = {}) {
  std::vector<std::int32_t> ids;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    std::mt19937 random(numbers.empty() ? static_cast<unsigned>(i) : numbers[i]);
    for (std::int64_t t = 0; t < length; ++t) {
      ids.push_back(t < lengths[i] ? static_cast<std::int32_t>(3 + random() % 26) : 0);
    }
  }
  const auto batch = static_cast<std::int64_t>(lengths.size());
  return {Tensor::from(ids, {batch, length}), Tensor::from(lengths, {batch})};
}

// The values of one sequence's rows of padded hidden states, or of its embedding.
inline std::vector<double> of_sequence(const Tensor& states, std::int64_t sequence,
                                       std::int64_t rows = 1) {
  const std::vector<double> all = states.to_vector();
  const std::int64_t stride = states.elements() / states.size(0);
  const auto first = all.begin() + sequence * stride;
  return {first, first + rows * states.size(-1)};
}

// A user of an encoder: loss(ids, targets) over sequences whose lengths depend only on their row,
// because steps of one shape must take the same memory.
class EncoderNet : public nn::Module {
 public:
  explicit EncoderNet(const nlohmann::json& config)
      : encoder_(models::make_mean_pooling_encoder(config, "test")) {
    register_children_of(*encoder_);
  }
  Tensor loss(const Tensor& ids, const Tensor& /*targets*/) {
    std::vector<std::int32_t> lengths;
    for (std::int64_t i = 0; i < ids.size(0); ++i) {
      lengths.push_back(static_cast<std::int32_t>(ids.size(1) - i % 3));
    }
    const models::TokenBatch batch{ids, Tensor::from(lengths, {ids.size(0)}).to(ids.device())};
    return mean(square(encoder_->forward(batch) + (-0.5)));
  }

 private:
  std::unique_ptr<models::SentenceEncoder> encoder_;
};

// Compares the tape with central differences for every parameter of an fp64 encoder, dropout
// included.
inline void check_encoder_gradients(const nlohmann::json& config) {
  manual_seed(7);
  const nn::ParameterDTypeGuard fp64(float64);
  const auto model = models::make_mean_pooling_encoder(config, "test");
  const models::TokenBatch batch = encoder_batch({4, 1, 6}, 7);
  std::vector<Tensor> leaves;
  for (const auto& parameter : model->named_parameters()) leaves.push_back(parameter.tensor);
  const auto loss = [&] {
    begin_batch({.step = 3, .first_sample = 0, .samples = 3});
    return weighted_sum(model->forward(batch));
  };
  check_gradients(loss, leaves, {.step = 1e-5, .tolerance = 5e-8, .max_elements = 12});
}

}  // namespace tessera::testing
