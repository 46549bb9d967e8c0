// fp16 with its loss scale, wire formats and modules kept in fp32, in the program: close to fp32,
// the same under every strategy, resumed with the same bits, refused by one line.
#include "tests/training/strategies_testing.h"

#include <cmath>

namespace tessera::training {
namespace {

using testing::Ended;
using testing::expect_equal_bits;
using testing::losses_in;
using testing::metrics_in;
using testing::run_program;
using testing::Settings;
using testing::train;
using testing::train_arguments;
using testing::TrainingFolder;

const Settings fp16 = {{"sharding.mixed_precision", "fp16"}};
// About 2^40: gradients overflow in the first steps.
const Settings too_large = {{"sharding.mixed_precision", "fp16"},
                            {"sharding.loss_scale_init", "1099511627776"}};

// A smaller examples/gpt2-bytes.yaml for 200 steps.
TEST(Precision, Float16StaysWithin1PercentOfFloat32) {
  const TrainingFolder folder;
  const Settings common = folder.small() + Settings{{"train.steps", "200"}};
  train(2, common + Settings{{"log.jsonl", folder.path("fp32")}});
  train(2, common + fp16 + Settings{{"log.jsonl", folder.path("fp16")}});
  const auto wide = metrics_in(folder.path("fp32")), narrow = metrics_in(folder.path("fp16"));
  ASSERT_EQ(wide.size(), 200u);
  ASSERT_EQ(narrow.size(), 200u);
  double worst = 0;
  for (std::size_t i = 0; i < wide.size(); ++i) {
    const double loss = wide[i].at("loss").get<double>();
    worst = std::max(worst, std::fabs(narrow[i].at("loss").get<double>() - loss));
    EXPECT_EQ(narrow[i].at("loss_scale"), 65536);
    EXPECT_EQ(narrow[i].at("skipped_steps"), 0);
    EXPECT_FALSE(wide[i].contains("loss_scale"));
  }
  EXPECT_LT(worst, 1e-2);
  EXPECT_GT(worst, 0);
  EXPECT_LT(wide.back().at("loss").get<double>(), wide.front().at("loss").get<double>() - 1);
}

TEST(Precision, Float16IsTheSameUnderEveryStrategy) {
  expect_equal_bits(2, fp16 + Settings{{"train.gradient_accumulation_steps", "2"},
                                       {"train.sync_each_batch", "false"},
                                       {"train.max_grad_norm", "0.5"}});
}

// All ranks skip the same steps, each of which halves the scale, and training continues.
TEST(Precision, AnOverflowIsSkippedByAllAndHalvesTheScale) {
  const TrainingFolder folder;
  std::vector<std::string> expected;
  for (const Settings& strategy : testing::all_strategies({2})) {
    const std::string jsonl = folder.path("metrics.jsonl");
    std::filesystem::remove(jsonl);
    train(2, folder.small() + too_large + strategy +
                 Settings{{"train.steps", "30"}, {"log.jsonl", jsonl}});
    const auto steps = metrics_in(jsonl);
    ASSERT_EQ(steps.size(), 30u);
    double scale = 1099511627776;
    std::int64_t skipped = 0;
    for (const auto& step : steps) {
      EXPECT_EQ(step.at("loss_scale"), scale);
      if (step.at("grad_norm").is_null()) {
        scale /= 2;
        ++skipped;
      }
      EXPECT_EQ(step.at("skipped_steps"), skipped);
    }
    EXPECT_GT(skipped, 3);
    EXPECT_LT(skipped, 28);
    const std::vector<std::string> losses = losses_in(jsonl);
    if (expected.empty()) expected = losses;
    EXPECT_EQ(losses, expected) << nlohmann::json(strategy).dump();
  }
}

// In the middle of skipped steps, before the optimizer's first step, and after it.
TEST(Precision, ResumesWithItsScale) {
  const TrainingFolder folder;
  const Settings common =
      folder.small() + too_large +
      Settings{{"sharding.loss_scale_growth_interval", "3"}, {"model.dropout", "0.1"}};
  const auto scales = [&](const std::string& name) {
    std::vector<std::string> lines = losses_in(folder.path(name));
    for (const auto& step : metrics_in(folder.path(name))) {
      lines.push_back(step.at("loss_scale").dump() + " " + step.at("skipped_steps").dump());
    }
    return lines;
  };
  train(2, common + Settings{{"train.steps", "30"}, {"log.jsonl", folder.path("whole")}});
  for (const char* steps : {"2", "26", "30"}) {
    train(2, common + Settings{{"train.steps", steps},
                               {"log.jsonl", folder.path("parts")},
                               {"checkpoint.dir", folder.path("out")},
                               {"checkpoint.every", "100"}});
  }
  EXPECT_EQ(scales("parts"), scales("whole"));
}

TEST(Precision, AScaleBelowTheMinimumIsAnError) {
  const TrainingFolder folder;
  const Ended ended = run_program(train_arguments(
      folder.small() + too_large + Settings{{"sharding.loss_scale_min", "1099511627776"}}));
  EXPECT_EQ(ended.code, 8) << ended.err;
  EXPECT_NE(ended.err.find("step 1: gradients overflow under the loss scale 1099511627776, and the "
                           "next one, 549755813888, is below the smallest allowed, 1099511627776"),
            std::string::npos)
      << ended.err;
}

// The initial scale is compared with the given minimum.
TEST(Precision, TheFirstScaleMayBeBelowTheUsualMinimum) {
  const TrainingFolder folder;
  train(1, folder.small() + fp16 +
               Settings{{"sharding.loss_scale_init", "0.5"},
                        {"sharding.loss_scale_min", "0.25"},
                        {"train.steps", "1"},
                        {"log.jsonl", folder.path("log")}});
  EXPECT_EQ(metrics_in(folder.path("log")).at(0).at("loss_scale"), 0.5);
}

TEST(Precision, WiresAreTheSameUnderEveryStrategyThatShards) {
  const TrainingFolder folder;
  std::vector<std::string> expected;
  for (const Settings& strategy : testing::all_strategies({2})) {
    if (strategy.at("sharding.sharding_strategy") == "NO_SHARD") continue;  // gathers nothing
    const std::string jsonl = folder.path("metrics.jsonl");
    std::filesystem::remove(jsonl);
    train(2, folder.small() + strategy +
                 Settings{{"sharding.mixed_precision", "bf16"},
                          {"sharding.keep_fp32", "LayerNorm"},
                          {"sharding.gather_wire", "fp8_e4m3"},
                          {"sharding.reduce_wire", "int8"},
                          {"log.jsonl", jsonl}});
    const std::vector<std::string> losses = losses_in(jsonl);
    ASSERT_EQ(losses.size(), 3u);
    if (expected.empty()) expected = losses;
    EXPECT_EQ(losses, expected) << nlohmann::json(strategy).dump();
  }
}

TEST(Precision, BadValuesAreRefusedByOneLine) {
  const TrainingFolder folder;
  const std::vector<std::pair<Settings, std::string>> cases = {
      {{{"sharding.loss_scale", "128"}},
       ": sharding.loss_scale is for sharding.mixed_precision: fp16"},
      {fp16 + Settings{{"sharding.loss_scale", "1000"}},
       ": sharding.loss_scale: the loss scale must be a power of two, so that scaling changes "
       "no bit; got 1000"},
      {fp16 + Settings{{"sharding.loss_scale", "static"}},
       ": sharding.loss_scale must be dynamic or a number, got static"},
      {fp16 + Settings{{"sharding.loss_scale_growth_factor", "1"}},
       ": sharding.loss_scale_growth_factor: the loss scale's growth factor must be above 1, "
       "got 1"},
      {fp16 + Settings{{"sharding.loss_scale_backoff_factor", "2"}},
       ": sharding.loss_scale_backoff_factor: the loss scale's back-off factor must be below "
       "1, got 2"},
      {fp16 + Settings{{"sharding.loss_scale_growth_interval", "0"}},
       ": sharding.loss_scale_growth_interval must be at least 1, got 0"},
      {fp16 + Settings{{"sharding.loss_scale_min", "131072"}},
       ": sharding.loss_scale_min: the first loss scale 65536 is below the smallest one, "
       "131072"},
      {fp16 + Settings{{"sharding.loss_scale_init", "0.5"}},
       ": sharding.loss_scale_init: the first loss scale 0.5 is below the smallest one, 1"},
      {fp16 + Settings{{"sharding.loss_scale_init", "0.5"}, {"sharding.loss_scale_min", "0.3"}},
       ": sharding.loss_scale_min: the smallest loss scale must be a power of two"},
      {fp16 + Settings{{"sharding.loss_scale", "128"}, {"sharding.loss_scale_min", "2"}},
       ": sharding.loss_scale_min is for the dynamic loss scale, and sharding.loss_scale is 128"},
      {{{"sharding.reduce_dtype", "fp16"}},
       ": sharding.reduce_dtype: fp16 needs sharding.mixed_precision: fp16"},
      {{{"sharding.reduce_wire", "fp8_e4m3"}},
       ": sharding.reduce_wire: fp8_e4m3 is not available in this version"},
      {{{"sharding.gather_wire", "int4"}}, ": sharding.gather_wire must be one of same | bf16"},
      {{{"sharding.keep_fp32", "LayerNorm"}},
       ": sharding.keep_fp32 needs sharding.mixed_precision: bf16 or fp16"},
      {fp16 + Settings{{"sharding.keep_fp32", "LayerNom"}},
       "keep_fp32: no module of the model is a LayerNom; there are "},
  };
  for (const auto& [settings, message] : cases) {
    const Ended ended = run_program(train_arguments(folder.small() + settings));
    EXPECT_EQ(ended.code, 3) << ended.err;
    EXPECT_NE(ended.err.find(message), std::string::npos) << ended.err;
    EXPECT_EQ(std::count(ended.err.begin(), ended.err.end(), '\n'), 1) << ended.err;
    EXPECT_TRUE(ended.out.empty()) << ended.out;
  }
}

}  // namespace
}  // namespace tessera::training
