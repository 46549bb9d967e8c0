// Runs with train.optimizer: adafactor print the same digits under every strategy, also with
// experts, and after a resume under another one; and what recipes cannot have.
#include <algorithm>

#include "tests/training/strategies_testing.h"

namespace tessera::training {
namespace {

namespace fs = std::filesystem;
using testing::Ended;
using testing::losses_in;
using testing::run_program;
using testing::Settings;
using testing::train;
using testing::TrainingFolder;

Settings adafactor(const TrainingFolder& folder, const Settings& more = {}) {
  return folder.small() + Settings{{"train.optimizer", "adafactor"}} + more;
}

TEST(AdafactorRun, EveryStrategyPrintsTheSameBits) {
  testing::expect_equal_bits(2, {1, 2},
                             {{"train.optimizer", "adafactor"},
                              {"train.lr", "0.02"},
                              {"train.gradient_accumulation_steps", "2"},
                              {"sharding.mixed_precision", "bf16"}});
}

// The matrices of all experts lie in one tensor; three ranks cut it inside of rows.
TEST(AdafactorRun, TrainsStackedExperts) {
  const TrainingFolder folder;
  folder.write("experts.yaml",
               "model: {architecture: gpt_oss, hidden_size: 40, num_hidden_layers: 2, "
               "num_attention_heads: 4, num_key_value_heads: 2, head_dim: 10, "
               "intermediate_size: 21, num_local_experts: 5, seq_len: 32}\n"
               "data: {train: " +
                   folder.path("text.txt") +
                   ", tokenizer: bytes, batch_size: 2}\n"
                   "train: {steps: 3, lr: 3.0e-3, lr_decay_steps: 50}\n");
  const auto lines = [&](const char* strategy) {
    const std::string jsonl = folder.path("lines.jsonl");
    fs::remove(jsonl);
    const auto arguments = testing::train_arguments({{"train.optimizer", "adafactor"},
                                                     {"sharding.sharding_strategy", strategy},
                                                     {"log.jsonl", jsonl}},
                                                    folder.path("experts.yaml"));
    const Ended ended = run_program(testing::launched(3, arguments));
    EXPECT_EQ(ended.code, 0) << ended.err;
    return losses_in(jsonl);
  };
  EXPECT_EQ(lines("FULL_SHARD").size(), 3u);
  EXPECT_EQ(lines("FULL_SHARD"), lines("NO_SHARD"));
}

// Its moments are logical tensors: they fit any strategy, and another optimizer is refused.
TEST(AdafactorRun, ResumesUnderAnotherStrategy) {
  const TrainingFolder folder;
  const Settings own{{"train.optimizer", "adafactor"}};
  testing::expect_resumes_elsewhere(folder, own);
  const Ended listed = run_program({"inspect", folder.path("parts/step-5")});
  EXPECT_NE(listed.out.find("transformer.h.0.attn.c_attn.weight.row_var"), std::string::npos);
  EXPECT_NE(listed.out.find("transformer.h.0.attn.c_attn.bias.variance"), std::string::npos);
  const Ended refused =
      run_program(testing::train_arguments(testing::saving_into(folder, "parts", 7, "FULL_SHARD") +
                                           Settings{{"train.optimizer", "adamw"}}));
  EXPECT_EQ(refused.code, 3);
  EXPECT_NE(refused.err.find("train.optimizer adafactor"), std::string::npos) << refused.err;
}

TEST(AdafactorRun, RecipesAreRefused) {
  const TrainingFolder folder;
  const std::vector<std::pair<Settings, std::string>> cases = {
      {{{"train.optimizer", "adamw"}, {"train.adafactor.eps2", "0.1"}},
       "train.adafactor.eps2 is for train.optimizer: adafactor"},
      {{{"train.optimizer", "muon"}, {"train.adafactor.clip_threshold", "2"}},
       "train.adafactor.clip_threshold is for train.optimizer: adafactor"},
      {{{"train.adafactor.beta2_decay", "0.5"}}, "train.adafactor.beta2_decay"},
      {{{"train.adafactor.eps1", "0"}}, "train.adafactor.eps1"},
      {{{"train.adafactor.clip_threshold", "0.5"}}, "train.adafactor.clip_threshold"},
      {{{"train.momentum", "0.9"}}, "train.momentum is SGD's"},
      {{{"sharding.offload.optimizer", "file"}, {"sharding.offload.folder", folder.path("f")}},
       "train.optimizer adafactor keeps parameters, gradients and moments in memory"},
  };
  for (const auto& [settings, text] : cases) {
    std::vector<std::string> arguments = testing::train_arguments(adafactor(folder, settings));
    arguments.front() = "recipe";
    const Ended ended = run_program(arguments);
    EXPECT_EQ(ended.code, 3) << text;
    EXPECT_NE(ended.err.find(text), std::string::npos) << ended.err;
    EXPECT_EQ(std::count(ended.err.begin(), ended.err.end(), '\n'), 1) << ended.err;
  }
}

}  // namespace
}  // namespace tessera::training
