// Models whose sequences lie on several ranks: the mean of the ranks' losses and gradients is that
// of one rank.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "models/model_testing.h"
#include "sharding/context_parallel.h"

namespace tessera {
namespace {

using nlohmann::json;
using Gradients = std::vector<std::vector<double>>;

constexpr std::int64_t divided_rows = 2, divided_length = 12, divided_vocabulary = 11;

Tensor numbered_ids(std::int64_t factor) {
  std::vector<std::int32_t> numbers;
  for (std::int64_t i = 0; i < divided_rows * divided_length; ++i) {
    numbers.push_back(static_cast<std::int32_t>((i * factor + i * i) % divided_vocabulary));
  }
  return Tensor::from(numbers, {divided_rows, divided_length});
}

// Two texts in each row.
models::Documents two_divided_documents() {
  std::vector<std::int32_t> starts, positions;
  for (std::int32_t row = 0; row < divided_rows; ++row) {
    for (std::int32_t i = 0; i < divided_length; ++i) {
      starts.push_back(i < 7 + row ? 0 : 7 + row);
      positions.push_back(i - starts.back());
    }
  }
  return {Tensor::from(starts, {divided_rows, divided_length}),
          Tensor::from(positions, {divided_rows, divided_length})};
}

void expect_model_of_one_rank(int ranks, json config, bool has_documents, bool recomputes = false) {
  config["initializer_range"] = 0.3;
  launch(ranks, [&](Context& context) {
    const testing::OneThread one_thread;
    manual_seed(5);
    const nn::ParameterDTypeGuard fp64(float64);
    const auto model = models::make_language_model(config);
    for (const auto& [name, module] : model->named_modules()) {
      if (recomputes && module->class_name() == model->layer_class()) {
        module->set_recompute(RecomputeOptions{});
      }
    }
    const auto step = [&](const Tensor& inputs, const Tensor& targets,
                          const models::Documents& documents) {
      const Tensor loss = model->packed_loss(inputs, targets, documents);
      loss.backward();
      std::vector<Tensor> results{loss.detach()};
      for (const auto& parameter : model->named_parameters()) {
        results.push_back(parameter.tensor.grad().clone());
        Tensor tensor = parameter.tensor;
        tensor.zero_grad();
      }
      return results;
    };
    models::Documents documents = has_documents ? two_divided_documents() : models::Documents{};
    const std::vector<Tensor> expected = step(numbered_ids(5), numbered_ids(7), documents);
    const auto sequence = std::make_shared<const ContextParallel>(context, ranks);
    documents.ranks = sequence;
    if (has_documents) documents.positions = sequence->part_of(documents.positions);
    const std::vector<Tensor> own =
        step(sequence->part_of(numbered_ids(5)), sequence->part_of(numbered_ids(7)), documents);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const std::vector<double> mean = context.mean(own[i]).to_vector();
      const std::vector<double> one = expected[i].to_vector();
      for (std::size_t j = 0; j < one.size(); ++j) {
        ASSERT_NEAR(mean[j], one[j], 1e-11) << config["model_type"] << " on " << ranks << ", " << i;
      }
    }
  });
}

json divided_gpt2() {
  return {{"model_type", "gpt2"},
          {"vocab_size", divided_vocabulary},
          {"n_positions", divided_length},
          {"n_embd", 16},
          {"n_layer", 2},
          {"n_head", 4},
          {"resid_pdrop", 0.0},
          {"embd_pdrop", 0.0},
          {"attn_pdrop", 0.0}};
}

json divided_decoder(const std::string& type, const json& more = json::object()) {
  json config = {{"model_type", type},       {"vocab_size", divided_vocabulary},
                 {"hidden_size", 16},        {"intermediate_size", 12},
                 {"num_hidden_layers", 2},   {"num_attention_heads", 4},
                 {"num_key_value_heads", 2}, {"max_position_embeddings", divided_length}};
  config.update(more);
  return config;
}

TEST(ModelsOverContextParallel, Gpt2IsThatOfOneRank) {
  for (const int ranks : {2, 3, 4}) expect_model_of_one_rank(ranks, divided_gpt2(), false);
  expect_model_of_one_rank(2, divided_gpt2(), true);
  expect_model_of_one_rank(4, divided_gpt2(), true, true);
}

TEST(ModelsOverContextParallel, LlamaAndItsFamiliesAreThoseOfOneRank) {
  for (const bool documents : {false, true}) {
    expect_model_of_one_rank(4, divided_decoder("llama"), documents, true);
    expect_model_of_one_rank(2, divided_decoder("mistral", {{"sliding_window", 3}}), documents);
    expect_model_of_one_rank(2, divided_decoder("qwen3", {{"head_dim", 8}}), documents);
    expect_model_of_one_rank(2, divided_decoder("smollm3", {{"no_rope_layers", {1, 0}}}),
                             documents);
    expect_model_of_one_rank(2, divided_decoder("phi3", {{"partial_rotary_factor", 0.5}}),
                             documents);
    expect_model_of_one_rank(
        4,
        divided_decoder("gemma3_text", {{"layer_types", {"sliding_attention", "full_attention"}},
                                        {"head_dim", 8},
                                        {"sliding_window", 3}}),
        documents);
    expect_model_of_one_rank(2, divided_decoder("mixtral", {{"num_local_experts", 3}}), documents);
  }
  expect_model_of_one_rank(3, divided_decoder("llama"), false);  // keys are gathered
}

// A sequence on two ranks may have as many positions as the model, and no more.
TEST(ModelsOverContextParallel, LongerSequencesThanTheModelHasAreRefused) {
  launch(2, [&](Context& context) {
    for (const json& config : {divided_gpt2(), divided_decoder("llama")}) {
      const auto model = models::make_language_model(config);
      const models::Documents rows{.ranks = std::make_shared<const ContextParallel>(context, 2)};
      const Tensor part = Tensor::full({1, divided_length / 2 + 1}, 1, int32);
      EXPECT_THROW((void)model->packed_loss(part, part, rows), std::logic_error);
    }
  });
}

}  // namespace
}  // namespace tessera
