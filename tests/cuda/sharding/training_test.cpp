// Whole models on the GPU: training follows the CPU's, repeats bit by bit, and takes no more memory
// after the first steps.
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "cuda/engine/engine_testing.h"
#include "engine/device/memory.h"
#include "models/generate.h"
#include "models/model_testing.h"

namespace tessera {
namespace {

using nlohmann::json;

const json gpt2_config = {{"model_type", "gpt2"}, {"vocab_size", 40}, {"n_positions", 16},
                          {"n_embd", 32},         {"n_layer", 2},     {"n_head", 4}};
const json llama_config = {{"model_type", "llama"},    {"vocab_size", 40},
                           {"hidden_size", 32},        {"intermediate_size", 48},
                           {"num_hidden_layers", 2},   {"num_attention_heads", 4},
                           {"num_key_value_heads", 2}, {"max_position_embeddings", 16},
                           {"attention_dropout", 0.1}};

constexpr int steps = 4;

// A model with its optimizer and batch on one device.
class Training {
 public:
  Training(const json& config, Device device)
      : guard_(device), model_(make(config)), optimizer_(model_->parameters(), {.lr = 1e-2}) {
    const auto batch = testing::counting_batch(2, 16, 40);
    ids_ = batch.ids.to(device);
    targets_ = batch.targets.to(device);
  }

  double step(int number) {
    begin_batch({.step = static_cast<std::uint64_t>(number), .first_sample = 0, .samples = 2});
    const Tensor loss = model_->loss(ids_, targets_);
    loss.backward();
    optimizer_.step();
    optimizer_.zero_grad();
    return loss.item();
  }

  [[nodiscard]] models::LanguageModel& model() { return *model_; }

 private:
  static std::unique_ptr<models::LanguageModel> make(const json& config) {
    manual_seed(11);
    return models::make_language_model(config);
  }

  DeviceGuard guard_;
  std::unique_ptr<models::LanguageModel> model_;
  optim::AdamW optimizer_;
  Tensor ids_, targets_;
};

struct Result {
  std::vector<double> losses;
  std::vector<std::vector<double>> parameters;
};

Result train(const json& config, Device device) {
  Training training(config, device);
  Result result;
  for (int step = 0; step < steps; ++step) result.losses.push_back(training.step(step));
  for (const auto& parameter : training.model().named_parameters()) {
    EXPECT_EQ(parameter.tensor.device(), device);
    result.parameters.push_back(parameter.tensor.to_vector());
  }
  return result;
}

class TrainingTest : public ::testing::TestWithParam<json> {};
INSTANTIATE_TEST_SUITE_P(Models, TrainingTest, ::testing::Values(gpt2_config, llama_config),
                         [](const auto& config) {
                           return config.param["model_type"].template get<std::string>();
                         });

TEST_P(TrainingTest, FollowsTheCpuAndRepeatsItself) {
  const testing::OneThread one_thread;
  const Result cpu = train(GetParam(), Device::cpu());
  const Result first = train(GetParam(), Device::cuda());
  const Result second = train(GetParam(), Device::cuda());
  for (std::size_t i = 0; i < cpu.losses.size(); ++i) {
    EXPECT_NEAR(first.losses[i], cpu.losses[i], 1e-4) << "step " << i;
  }
  EXPECT_LT(cpu.losses.back(), cpu.losses.front());
  EXPECT_EQ(first.losses, second.losses);
  EXPECT_EQ(first.parameters, second.parameters);
}

TEST_P(TrainingTest, TakesNothingFromTheArenaOnceTheStateExists) {
  Training training(GetParam(), Device::cuda());
  training.step(0);
  training.step(1);
  const auto pool = MemoryPool::current(Device::cuda());
  const MemoryStats before = pool->stats();
  training.step(2);
  training.step(3);
  EXPECT_EQ(pool->stats().system_allocations, before.system_allocations);
  EXPECT_EQ(pool->stats().in_use, before.in_use);
}

TEST_P(TrainingTest, GeneratesTheSameTextAsTheCpu) {
  const testing::OneThread one_thread;
  const auto continuation = [&](Device device) {
    Training training(GetParam(), device);
    for (int step = 0; step < 2; ++step) training.step(step);
    return models::generate(training.model(), {3, 4, 5}, {.max_new_tokens = 4});
  };
  EXPECT_EQ(continuation(Device::cuda()), continuation(Device::cpu()));
}

}  // namespace
}  // namespace tessera
