// Models with experts, trained: the same bits under every strategy, and resumed; memory as planned.
#include "tests/training/strategies_testing.h"

#include <cmath>

namespace tessera::training {
namespace {

namespace fs = std::filesystem;
using testing::Ended;
using testing::losses_in;
using testing::Settings;
using testing::TrainingFolder;

struct ExpertRun {
  TrainingFolder folder;

  explicit ExpertRun(const std::string& model) {
    folder.write("experts.yaml",
                 "model: {hidden_size: 40, num_hidden_layers: 2, num_attention_heads: 4, "
                 "num_key_value_heads: 2, seq_len: 32, " +
                     model + "}\ndata: {train: " + folder.path("text.txt") +
                     ", tokenizer: bytes, batch_size: 2}\n"
                     "train: {steps: 3, lr: 3.0e-3, lr_decay_steps: 50, max_grad_norm: 0.5}\n");
  }
  Ended run(int ranks, const Settings& settings) const {
    Ended ended = testing::run_program(
        testing::launched(ranks, testing::train_arguments(settings, folder.path("experts.yaml"))));
    EXPECT_EQ(ended.code, 0) << ended.err;
    return ended;
  }
  // The lines of all steps.
  std::vector<std::string> lines(int ranks, const Settings& settings) const {
    const std::string jsonl = folder.path("lines.jsonl");
    fs::remove(jsonl);
    run(ranks, settings + Settings{{"log.jsonl", jsonl}});
    return losses_in(jsonl);
  }
};

// Seven experts for 128 tokens of two ranks, with widths that no number of ranks divides.
constexpr const char* tested_mixtral =
    "architecture: mixtral, intermediate_size: 21, num_local_experts: 7, "
    "output_router_logits: true, router_aux_loss_coef: 0.05";
constexpr const char* tested_qwen3_moe =
    "architecture: qwen3_moe, intermediate_size: 50, moe_intermediate_size: 11, num_experts: 9, "
    "num_experts_per_tok: 3, decoder_sparse_step: 2";

// A window shorter than the text, and an expert's two tensors of odd sizes.
constexpr const char* tested_gpt_oss =
    "architecture: gpt_oss, intermediate_size: 11, num_local_experts: 7, num_experts_per_tok: 2, "
    "head_dim: 10, sliding_window: 9, output_router_logits: true, router_aux_loss_coef: 0.05";

void expect_same_lines(const ExpertRun& model, int ranks, const Settings& settings) {
  std::vector<std::string> expected;
  for (const Settings& strategy : testing::all_strategies(testing::divisors(ranks))) {
    const auto lines = model.lines(ranks, settings + strategy);
    ASSERT_EQ(lines.size(), 3u);
    if (expected.empty()) expected = lines;
    EXPECT_EQ(lines, expected) << nlohmann::json(strategy).dump();
  }
}

TEST(Experts, EveryStrategyPrintsTheSameBits) {
  expect_same_lines(ExpertRun(tested_mixtral), 2, {});
  expect_same_lines(ExpertRun(tested_qwen3_moe), 2, {});
  expect_same_lines(ExpertRun(tested_gpt_oss), 2, {});
}

TEST(Experts, EveryStrategyPrintsTheSameBitsInMixedPrecision) {
  expect_same_lines(
      ExpertRun(tested_mixtral), 3,
      {{"sharding.mixed_precision", "bf16"}, {"train.gradient_accumulation_steps", "2"}});
}

TEST(Experts, RecomputationPrintsTheSameBits) {
  for (const char* tested : {tested_mixtral, tested_gpt_oss}) {
    const ExpertRun model(tested);
    const auto plain = model.lines(2, {{"sharding.mixed_precision", "bf16"}});
    for (const char* how : {"true", "selective"}) {
      EXPECT_EQ(model.lines(2, {{"sharding.mixed_precision", "bf16"},
                                {"sharding.activation_checkpointing", how}}),
                plain)
          << tested << ", " << how;
    }
  }
}

// All experts of a layer as a unit beside the layer's.
TEST(Experts, UnitsOfTheirOwnPrintTheSameBits) {
  for (const auto& [tested, units] : {std::pair{tested_mixtral, "MixtralDecoderLayer,Experts"},
                                      {tested_gpt_oss, "GptOssDecoderLayer,Experts"}}) {
    const ExpertRun model(tested);
    EXPECT_EQ(model.lines(2, {{"sharding.transformer_layer_cls_to_wrap", units}}),
              model.lines(2, {}))
        << units;
  }
}

TEST(Experts, RanksAgreeWithOneRankOfTheirBatches) {
  const ExpertRun model("architecture: mixtral, intermediate_size: 21, num_local_experts: 7");
  const auto lines = [&](int ranks, const char* name) {
    model.run(ranks, {{"log.jsonl", model.folder.path(name)},
                      {"data.batch_size", std::to_string(6 / ranks)}});
  };
  lines(1, "one.jsonl");
  for (const int ranks : {2, 3}) {
    const std::string name = std::to_string(ranks) + ".jsonl";
    lines(ranks, name.c_str());
    testing::expect_close(model.folder.path(name), model.folder.path("one.jsonl"), 1e-4);
  }
}

void expect_resumed(const char* tested) {
  const ExpertRun model(tested);
  const auto into = [&](const std::string& name, int steps, int batch) {
    return Settings{{"log.jsonl", model.folder.path(name + ".jsonl")},
                    {"checkpoint.dir", model.folder.path(name)},
                    {"checkpoint.every", "3"},
                    {"train.steps", std::to_string(steps)},
                    {"data.batch_size", std::to_string(batch)}};
  };
  const auto jsonl = [&](const std::string& name) { return model.folder.path(name + ".jsonl"); };
  model.run(2, into("whole", 6, 3));
  model.run(2, into("first", 3, 3));
  for (const int ranks : {2, 3}) {
    const std::string name = "on" + std::to_string(ranks);
    fs::copy(model.folder.path("first"), model.folder.path(name), fs::copy_options::recursive);
    fs::copy(jsonl("first"), jsonl(name));
    model.run(ranks, into(name, 6, 6 / ranks));
    // Each rank has the load-balancing loss of its own tokens, so the sum depends on their number.
    testing::expect_close(jsonl(name), jsonl("whole"), 2e-2);
  }
  EXPECT_EQ(losses_in(jsonl("on2")), losses_in(jsonl("whole")));
}

TEST(Experts, RunsResumeWithTheSameBitsAndOnOtherWorlds) {
  expect_resumed(tested_mixtral);
  expect_resumed(tested_gpt_oss);
}

// Whichever experts the tokens choose, a step has the buffers of its plan.
TEST(Experts, MemoryIsAsPlanned) {
  for (const char* config : {tested_mixtral, tested_qwen3_moe, tested_gpt_oss}) {
    const ExpertRun model(config);
    const std::string file = model.folder.path("memory.json");
    const Ended ended = model.run(2, {{"log.memory", file}, {"train.steps", "6"}});
    EXPECT_EQ(ended.err.find("warning"), std::string::npos) << ended.err;
    const nlohmann::json log = nlohmann::json::parse(testing::read_text(file));
    for (const char* kind : {"parameters", "gradients", "optimizer", "communication"}) {
      EXPECT_EQ(log["planned"][kind], log["measured"][kind]) << kind;
    }
    const auto planned = log["planned"]["total"].get<double>();
    EXPECT_NEAR(planned, log["measured"]["total"].get<double>(), 0.02 * planned);
  }
}

TEST(Experts, MuonIsRefusedWhereTheirMatricesLieInOneTensor) {
  const ExpertRun model(tested_gpt_oss);
  const Ended ended = testing::run_program(
      {"train", model.folder.path("experts.yaml"), "--set", "train.optimizer=muon"});
  EXPECT_EQ(ended.code, 3);
  EXPECT_NE(ended.err.find("muon does not orthogonalise the matrices of this model's experts"),
            std::string::npos)
      << ended.err;
}

TEST(Experts, APlanHasTheirTimeAndMemory) {
  const ExpertRun model(tested_mixtral);
  const Ended ended =
      testing::run_program({"plan", model.folder.path("experts.yaml"), "--world-size", "4"});
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_NE(ended.out.find("FULL_SHARD"), std::string::npos);
}

}  // namespace
}  // namespace tessera::training
