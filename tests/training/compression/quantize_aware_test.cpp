// Training with rounded weights (model.quantize_aware): the same bits under every strategy, the
// planned memory, and what a run refuses.
#include "tests/training/strategies_testing.h"

namespace tessera::training {
namespace {

using testing::Ended;
using testing::losses_in;
using testing::Settings;
using testing::TrainingFolder;

struct RoundedRun {
  TrainingFolder folder;

  explicit RoundedRun(const std::string& model) {
    folder.write("rounded.yaml", "model: {seq_len: 32, " + model +
                                     "}\ndata: {train: " + folder.path("text.txt") +
                                     ", tokenizer: bytes, batch_size: 2}\n"
                                     "train: {steps: 3, lr: 3.0e-3, lr_decay_steps: 50}\n");
  }
  Ended run(int ranks, const Settings& settings) const {
    return testing::run_program(
        testing::launched(ranks, testing::train_arguments(settings, folder.path("rounded.yaml"))));
  }
  std::vector<std::string> lines(int ranks, const Settings& settings) const {
    const std::string jsonl = folder.path("lines.jsonl");
    std::filesystem::remove(jsonl);
    const Ended ended = run(ranks, settings + Settings{{"log.jsonl", jsonl}});
    EXPECT_EQ(ended.code, 0) << ended.err;
    return losses_in(jsonl);
  }
};

// Tied and untied heads; weights as [in, out] and as [out, in].
constexpr const char* gpt2_model =
    "architecture: gpt2, n_embd: 64, n_layer: 2, n_head: 4, quantize_aware: q4_0";
constexpr const char* llama_model =
    "architecture: llama, hidden_size: 64, intermediate_size: 96, num_hidden_layers: 2, "
    "num_attention_heads: 4, num_key_value_heads: 2, quantize_aware: q8_0";

TEST(QuantizeAware, EveryStrategyPrintsTheSameBits) {
  for (const char* model : {gpt2_model, llama_model}) {
    const RoundedRun run(model);
    std::vector<std::string> expected;
    for (const Settings& strategy : testing::all_strategies(testing::divisors(2))) {
      const auto lines = run.lines(2, strategy);
      ASSERT_EQ(lines.size(), 3u);
      if (expected.empty()) expected = lines;
      EXPECT_EQ(lines, expected) << nlohmann::json(strategy).dump();
    }
    EXPECT_NE(run.lines(2, {{"model.quantize_aware", "none"}}), expected);
  }
}

TEST(QuantizeAware, RecomputationPrintsTheSameBits) {
  const RoundedRun run(gpt2_model);
  const Settings bf16{{"sharding.mixed_precision", "bf16"}};
  EXPECT_EQ(run.lines(2, bf16 + Settings{{"sharding.activation_checkpointing", "true"}}),
            run.lines(2, bf16));
}

TEST(QuantizeAware, MemoryIsThePlan) {
  for (const char* model : {gpt2_model, llama_model}) {
    for (const char* recomputed : {"false", "true"}) {
      const RoundedRun run(model);
      const std::string file = run.folder.path("memory.json");
      const Ended ended =
          run.run(2, {{"log.memory", file}, {"sharding.activation_checkpointing", recomputed}});
      ASSERT_EQ(ended.code, 0) << ended.err;
      const nlohmann::json log = nlohmann::json::parse(testing::read_text(file));
      EXPECT_EQ(log["planned"], log["measured"]);
    }
  }
}

TEST(QuantizeAware, AdaptersAreRefused) {
  const RoundedRun run(gpt2_model);
  const Ended ended = run.run(1, {{"model.lora.target_modules", "[c_attn]"}});
  EXPECT_EQ(ended.code, 3);
  EXPECT_NE(ended.err.find("model.quantize_aware rounds weights that are trained, and under an "
                           "adapter they are frozen"),
            std::string::npos)
      << ended.err;
}

TEST(QuantizeAware, AModelWithoutWholeBlocksIsRefused) {
  const RoundedRun run(
      "architecture: gpt2, n_embd: 40, n_layer: 1, n_head: 4, n_inner: 56, "
      "quantize_aware: q8_0");
  const Ended ended = run.run(1, {});
  EXPECT_EQ(ended.code, 3);
  EXPECT_NE(ended.err.find("no layer's weights can be rounded: the inputs of a layer must be a "
                           "multiple of 32"),
            std::string::npos)
      << ended.err;
}

}  // namespace
}  // namespace tessera::training
