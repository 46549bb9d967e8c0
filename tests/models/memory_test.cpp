// The memory of whole models: `meta` takes none, and the CPU takes none from the system after the
// first step.
#include "engine/device/memory.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <optional>

#include "engine/autograd.h"
#include "engine/recompute.h"
#include "models/model_testing.h"

namespace tessera {
namespace {

using nlohmann::json;

const json measured_gpt2 = {{"model_type", "gpt2"}, {"vocab_size", 40}, {"n_positions", 32},
                            {"n_embd", 32},         {"n_layer", 3},     {"n_head", 4}};
const json measured_llama = {{"model_type", "llama"},    {"vocab_size", 40},
                             {"hidden_size", 32},        {"intermediate_size", 48},
                             {"num_hidden_layers", 3},   {"num_attention_heads", 4},
                             {"num_key_value_heads", 2}, {"max_position_embeddings", 32},
                             {"attention_dropout", 0.1}};

const json measured_mixtral = [] {
  json config = measured_llama;
  config.update({{"model_type", "mixtral"}, {"output_router_logits", true}});
  return config;
}();

void train_step(models::LanguageModel& model, optim::Optimizer& optimizer) {
  const auto batch = testing::counting_batch(2, 16, 40);
  model.loss(batch.ids, batch.targets).backward();
  optimizer.step();
  optimizer.zero_grad();
}

TEST(ModelMemory, NothingIsTakenFromTheSystemOnceTheStateExists) {
  for (const json& config : {measured_gpt2, measured_llama, measured_mixtral}) {
    manual_seed(1);
    const auto model = models::make_language_model(config);
    optim::AdamW optimizer(model->parameters(), {});
    // The first step allocates gradients and optimizer state; the second is the first one that has
    // all of them throughout.
    for (int step = 0; step < 2; ++step) train_step(*model, optimizer);
    const auto pool = MemoryPool::current();
    const auto before = pool->stats();
    for (int step = 0; step < 3; ++step) train_step(*model, optimizer);
    EXPECT_EQ(pool->stats().system_allocations, before.system_allocations) << config["model_type"];
    EXPECT_EQ(pool->stats().in_use, before.in_use) << config["model_type"];
  }
}

TEST(ModelMemory, AStepOnMetaTakesNone) {
  for (json config : {measured_gpt2, measured_llama, measured_mixtral}) {
    config[config.contains("n_embd") ? "n_embd" : "hidden_size"] = 4096;
    const DeviceGuard meta(Device::meta());
    const auto pool = MemoryPool::current();
    const auto before = pool->stats();
    const auto model = models::make_language_model(config);
    optim::AdamW optimizer(model->parameters(), {});
    const auto batch = testing::counting_batch(2, 16, 40);
    pool->reset_peak();
    const Tensor loss = model->loss(batch.ids, batch.targets);
    EXPECT_TRUE(loss.is_meta());
    EXPECT_EQ(loss.elements(), 1);
    loss.backward();
    for (const auto& [name, tensor, shape] : model->named_parameters()) {
      ASSERT_TRUE(tensor.grad().defined()) << name;
      EXPECT_EQ(tensor.grad().shape(), shape) << name;
    }
    optimizer.step();
    // Token ids, positions and rotary tables are the only real memory.
    EXPECT_LT(pool->stats().peak_in_use, before.in_use + 200'000) << config["model_type"];
  }
}

// models/gpt2/gpt2.h lists the tensors that a layer keeps.
TEST(ModelMemory, AGpt2LayerKeepsTheTensorsOfItsHeader) {
  const auto kept = [](int layers) {
    json config = measured_gpt2;
    config["n_layer"] = layers;
    config["resid_pdrop"] = config["embd_pdrop"] = config["attn_pdrop"] = 0.0;
    const auto model = models::make_language_model(config);
    const auto batch = testing::counting_batch(4, 32, 40);
    const auto before = MemoryPool::current()->stats().in_use;
    const Tensor loss = model->loss(batch.ids, batch.targets);
    return static_cast<double>(MemoryPool::current()->stats().in_use - before);
  };
  const double unit = 4 * 32 * 32 * sizeof(float);
  // In addition to the ten activations: statistics of the norms, log-sums of the attention.
  EXPECT_NEAR((kept(4) - kept(2)) / 2 / unit, 10.0, 0.4);
}

// The bytes of a pass over a model of so many layers: those kept between forward and backward, and
// the peak.
struct PassMemory {
  std::size_t kept = 0, peak = 0;
};

PassMemory memory_of_a_pass(json config, int layers,
                            const std::optional<RecomputeOptions>& recomputation) {
  config[config.contains("n_embd") ? "n_layer" : "num_hidden_layers"] = layers;
  const auto model = models::make_language_model(config);
  for (const auto& [name, module] : model->named_modules()) {
    if (module->class_name() == model->layer_class()) module->set_recompute(recomputation);
  }
  const auto batch = testing::counting_batch(4, 32, 40);
  model->loss(batch.ids, batch.targets).backward();  // allocates the gradients
  for (auto& parameter : model->named_parameters()) parameter.tensor.zero_grad();
  const auto pool = MemoryPool::current();
  const std::size_t before = pool->stats().in_use;
  pool->reset_peak();
  const Tensor loss = model->loss(batch.ids, batch.targets);
  PassMemory result{pool->stats().in_use - before, 0};
  loss.backward();
  result.peak = pool->stats().peak_in_use - before;
  return result;
}

// n layers keep n inputs; at the peak there are also the tensors inside one layer, whatever n is.
TEST(ModelMemory, RecomputedLayersKeepTheirInputsAndAtThePeakTheInsideOfOne) {
  constexpr std::size_t input = 4 * 32 * 32 * sizeof(float);
  constexpr std::size_t log_sums = 4 * 4 * 32 * sizeof(float);  // of attention, by head
  for (const json& config : {measured_gpt2, measured_llama}) {
    SCOPED_TRACE(config["model_type"].get<std::string>());
    const PassMemory whole = memory_of_a_pass(config, 1, std::nullopt);
    const PassMemory two = memory_of_a_pass(config, 2, RecomputeOptions{});
    const PassMemory six = memory_of_a_pass(config, 6, RecomputeOptions{});
    EXPECT_EQ(six.kept - two.kept, 4 * input);
    EXPECT_EQ(six.peak - two.peak, 4 * input);
    EXPECT_LE(six.peak, 6 * input + whole.peak);
    EXPECT_LT(2 * six.peak, memory_of_a_pass(config, 6, std::nullopt).peak);
    // Attention's output is kept in addition: the inside of a layer is smaller by it.
    const RecomputeOptions selective{.keep = ops_worth_keeping};
    const PassMemory more = memory_of_a_pass(config, 6, selective);
    EXPECT_EQ(more.kept - six.kept, 6 * (input + log_sums));
    EXPECT_LE(more.peak, six.peak + 6 * (input + log_sums));
  }
}

// Neither the logits (156 MiB here) nor their gradient are ever complete in memory: the head adds a
// tile to the tensors that the layers keep, and to the gradients.
TEST(ModelMemory, TheHeadTakesATileWhateverItsVocabulary) {
  constexpr std::int64_t vocabulary = 20'000, rows = 4 * 512, width = 32;
  json config = measured_gpt2;
  config["vocab_size"] = vocabulary;
  config["n_positions"] = 512;
  config["n_layer"] = 1;
  config["resid_pdrop"] = config["embd_pdrop"] = config["attn_pdrop"] = 0.0;
  const std::size_t tile = 1024 * 2048 * sizeof(float);
  for (const bool tied : {true, false}) {
    config["tie_word_embeddings"] = tied;
    manual_seed(1);
    const auto model = models::make_language_model(config);
    const auto batch = testing::counting_batch(4, 512, vocabulary);
    const auto pool = MemoryPool::current();
    std::size_t gradients = 0;
    for (const auto& parameter : model->named_parameters()) gradients += parameter.tensor.bytes();
    const std::size_t before = pool->stats().in_use;
    // x, its gradient, and one number for each row.
    const std::size_t hidden = 2 * rows * width * sizeof(float) + 4 * rows * sizeof(float);
    {
      const NoGradGuard evaluation;
      pool->reset_peak();
      (void)model->loss(batch.ids, batch.targets).item();
      EXPECT_LE(pool->stats().peak_in_use - before, tile + hidden);
    }
    pool->reset_peak();
    const Tensor loss = model->loss(batch.ids, batch.targets);
    const std::size_t kept = pool->stats().in_use - before;
    EXPECT_LE(pool->stats().peak_in_use - before, kept + tile + hidden);
    loss.backward();
    EXPECT_LE(pool->stats().peak_in_use - before, kept + gradients + tile + hidden);
  }
}

TEST(ModelMemory, ForwardWithoutGradientsKeepsNothing) {
  manual_seed(1);
  const auto model = models::make_language_model(measured_gpt2);
  const auto batch = testing::counting_batch(2, 16, 40);
  const auto pool = MemoryPool::current();
  const auto before = pool->stats().in_use;
  const NoGradGuard no_grad;
  const Tensor logits = model->forward(batch.ids);
  EXPECT_LE(pool->stats().in_use - before, logits.bytes() + 64);
}

}  // namespace
}  // namespace tessera
