// The losses of a batch's rows: each is the loss of that row alone, with its gradient, for every
// kind of head.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "models/model_testing.h"

namespace tessera {
namespace {

using RowIds = std::vector<std::int32_t>;

void expect_rows_alone(nlohmann::json config, const nn::LoraOptions* adapter = nullptr) {
  config["initializer_range"] = 0.3;
  const testing::OneThread one_thread;
  manual_seed(5);
  const nn::ParameterDTypeGuard fp64(float64);
  const auto model = models::make_language_model(config);
  if (adapter != nullptr) tessera::add_lora(*model, *adapter);
  const RowIds ids = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 1, 0};
  const RowIds targets = {-100, 3, 4, 5, 6, -100, -100, -100, 8, -100, -100, -100};
  const Tensor losses = model->row_losses(Tensor::from(ids, {3, 4}), Tensor::from(targets, {3, 4}));
  ASSERT_EQ(losses.shape(), (Shape{3}));
  const std::vector<double> weights = {2, -1, 0.5};
  sum(losses * Tensor::from(weights, {3})).backward();
  std::vector<std::vector<double>> together;
  for (const auto& parameter : model->named_parameters()) {
    Tensor tensor = parameter.tensor;
    together.push_back(tensor.grad().to_vector());
    tensor.zero_grad();
  }
  for (std::size_t row = 0; row < 3; ++row) {
    const auto begin = static_cast<std::ptrdiff_t>(4 * row);
    const auto part = [&](const RowIds& all) {
      return Tensor::from(RowIds(all.begin() + begin, all.begin() + begin + 4), {1, 4});
    };
    const Tensor loss = model->loss(part(ids), part(targets));
    EXPECT_NEAR(losses.to_vector()[row], loss.item(), 1e-12);
    (loss * weights[row]).backward();
  }
  std::size_t index = 0;
  for (const auto& parameter : model->named_parameters()) {
    const std::vector<double> alone = parameter.tensor.grad().to_vector();
    for (std::size_t i = 0; i < alone.size(); ++i) {
      ASSERT_NEAR(together[index][i], alone[i], 1e-11) << parameter.name;
    }
    ++index;
  }
}

nlohmann::json gpt2_config(bool tied) {
  return {{"model_type", "gpt2"}, {"vocab_size", 11},
          {"n_positions", 8},     {"n_embd", 8},
          {"n_layer", 1},         {"n_head", 2},
          {"resid_pdrop", 0.0},   {"embd_pdrop", 0.0},
          {"attn_pdrop", 0.0},    {"tie_word_embeddings", tied}};
}

TEST(RowLosses, AreThoseOfEachRowAlone) {
  expect_rows_alone(gpt2_config(true));
  expect_rows_alone(gpt2_config(false));
  expect_rows_alone({{"model_type", "llama"},
                     {"vocab_size", 11},
                     {"hidden_size", 8},
                     {"intermediate_size", 12},
                     {"num_hidden_layers", 1},
                     {"num_attention_heads", 2},
                     {"num_key_value_heads", 1},
                     {"max_position_embeddings", 8}});
}

// A head with an adapter is called, once for all rows.
TEST(RowLosses, OfAHeadWithAnAdapter) {
  const nn::LoraOptions adapter{.rank = 2, .target_modules = {"lm_head"}};
  expect_rows_alone(gpt2_config(false), &adapter);
}

}  // namespace
}  // namespace tessera
