// Several texts in a row: loss and gradients are those of the texts by themselves, for every kind
// of layer and position.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "models/model_testing.h"

namespace tessera {
namespace {

using nlohmann::json;

constexpr std::int32_t no_target = -100;

struct TextRows {
  std::vector<std::int32_t> ids, targets, starts;
  std::int64_t rows = 0, length = 0;
};

// Two rows of ten: texts of 4 and 5 tokens and a rest of 1; texts of 1, 7 and 2 tokens.
TextRows packed_rows() {
  TextRows rows{{}, {}, {}, 2, 10};
  for (const std::vector<std::int32_t>& lengths :
       {std::vector<std::int32_t>{4, 5, 1}, std::vector<std::int32_t>{1, 7, 2}}) {
    std::int32_t at = 0;
    for (const std::int32_t length : lengths) {
      for (std::int32_t i = 0; i < length; ++i) {
        const auto number = static_cast<std::int32_t>(rows.ids.size());
        rows.ids.push_back((number * 5 + i * i) % 11);
        rows.targets.push_back(number % 3 == 1 ? no_target : (number * 7 + 2) % 11);
        rows.starts.push_back(at);
      }
      at += length;
    }
  }
  return rows;
}

models::Documents documents_in(const TextRows& rows) {
  std::vector<std::int32_t> positions;
  for (std::size_t i = 0; i < rows.starts.size(); ++i) {
    positions.push_back(static_cast<std::int32_t>(i) % static_cast<std::int32_t>(rows.length) -
                        rows.starts[i]);
  }
  return {Tensor::from(rows.starts, {rows.rows, rows.length}),
          Tensor::from(positions, {rows.rows, rows.length})};
}

using Gradients = std::vector<std::vector<double>>;

Gradients gradients_of(models::LanguageModel& model) {
  Gradients all;
  for (const auto& parameter : model.named_parameters()) {
    all.push_back(parameter.tensor.grad().to_vector());
    Tensor tensor = parameter.tensor;
    tensor.zero_grad();
  }
  return all;
}

void expect_texts_by_themselves(json config) {
  config["initializer_range"] = 0.3;
  const testing::OneThread one_thread;
  manual_seed(5);
  const nn::ParameterDTypeGuard fp64(float64);
  const auto model = models::make_language_model(config);
  const TextRows rows = packed_rows();
  const Shape shape{rows.rows, rows.length};
  const Tensor loss = model->packed_loss(Tensor::from(rows.ids, shape),
                                         Tensor::from(rows.targets, shape), documents_in(rows));
  loss.backward();
  const Gradients packed = gradients_of(*model);

  double sum = 0;
  std::int64_t counted = 0, all = 0;
  for (const std::int32_t target : rows.targets) all += target == no_target ? 0 : 1;
  for (std::size_t begin = 0, end = 0; begin < rows.ids.size(); begin = end) {
    while (end < rows.ids.size() && rows.starts[end] == rows.starts[begin]) ++end;
    const auto part = [&](const std::vector<std::int32_t>& values) {
      return std::vector<std::int32_t>(values.begin() + static_cast<std::ptrdiff_t>(begin),
                                       values.begin() + static_cast<std::ptrdiff_t>(end));
    };
    const std::vector<std::int32_t> targets = part(rows.targets);
    std::int64_t own = 0;
    for (const std::int32_t target : targets) own += target == no_target ? 0 : 1;
    if (own == 0) continue;
    const Shape one{1, static_cast<std::int64_t>(end - begin)};
    const Tensor alone = model->loss(Tensor::from(part(rows.ids), one), Tensor::from(targets, one));
    (alone * (static_cast<double>(own) / static_cast<double>(all))).backward();
    sum += alone.item() * static_cast<double>(own);
    counted += own;
  }
  ASSERT_EQ(counted, all);
  EXPECT_NEAR(loss.item(), sum / static_cast<double>(all), 1e-10) << config["model_type"];
  const Gradients expected = gradients_of(*model);
  ASSERT_EQ(packed.size(), expected.size());
  for (std::size_t i = 0; i < packed.size(); ++i) {
    for (std::size_t j = 0; j < packed[i].size(); ++j) {
      ASSERT_NEAR(packed[i][j], expected[i][j], 1e-10) << config["model_type"] << ", " << i;
    }
  }
}

json decoder(const std::string& type, const json& more = json::object()) {
  json config = {{"model_type", type},       {"vocab_size", 11},
                 {"hidden_size", 16},        {"intermediate_size", 12},
                 {"num_hidden_layers", 2},   {"num_attention_heads", 4},
                 {"num_key_value_heads", 2}, {"max_position_embeddings", 16}};
  config.update(more);
  return config;
}

TEST(Documents, OfGpt2AreTextsByThemselves) {
  expect_texts_by_themselves({{"model_type", "gpt2"},
                              {"vocab_size", 11},
                              {"n_positions", 16},
                              {"n_embd", 16},
                              {"n_layer", 2},
                              {"n_head", 4},
                              {"resid_pdrop", 0.0},
                              {"embd_pdrop", 0.0},
                              {"attn_pdrop", 0.0}});
}

TEST(Documents, OfLlamaAndItsFamiliesAreTextsByThemselves) {
  expect_texts_by_themselves(decoder("llama"));
  expect_texts_by_themselves(decoder("mistral", {{"sliding_window", 3}}));
  expect_texts_by_themselves(decoder("qwen2"));
  expect_texts_by_themselves(decoder("qwen3", {{"head_dim", 8}}));
  expect_texts_by_themselves(decoder("olmo2"));
  expect_texts_by_themselves(decoder("smollm3", {{"no_rope_layers", {1, 0}}}));
  expect_texts_by_themselves(decoder("phi3"));
  expect_texts_by_themselves(
      decoder("gemma3_text", {{"layer_types", {"sliding_attention", "full_attention"}},
                              {"head_dim", 8},
                              {"sliding_window", 3}}));
  expect_texts_by_themselves(decoder("phi3", {{"partial_rotary_factor", 0.5}}));
  expect_texts_by_themselves(decoder("mixtral", {{"num_local_experts", 3}}));
}

// Recomputation in backward uses the same documents.
TEST(Documents, OfRecomputedLayersHaveTheSameGradients) {
  for (const bool of_llama : {false, true}) {
    const json config =
        of_llama ? decoder("llama")
                 : json{{"model_type", "gpt2"}, {"vocab_size", 11},  {"n_positions", 16},
                        {"n_embd", 16},         {"n_layer", 2},      {"n_head", 4},
                        {"resid_pdrop", 0.0},   {"embd_pdrop", 0.0}, {"attn_pdrop", 0.0}};
    const testing::OneThread one_thread;
    manual_seed(5);
    const auto model = models::make_language_model(config);
    const TextRows rows = packed_rows();
    const Shape shape{rows.rows, rows.length};
    const auto gradients = [&] {
      model
          ->packed_loss(Tensor::from(rows.ids, shape), Tensor::from(rows.targets, shape),
                        documents_in(rows))
          .backward();
      return gradients_of(*model);
    };
    const Gradients plain = gradients();
    for (const auto& [name, module] : model->named_modules()) {
      if (module->class_name() == model->layer_class()) module->set_recompute(RecomputeOptions{});
    }
    EXPECT_EQ(gradients(), plain) << config["model_type"];
  }
}

}  // namespace
}  // namespace tessera
