// The JSONL file and the progress line.
#include "logs/metrics.h"
#include "base/host_memory.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>

#include "base/error.h"
#include "logs/progress.h"
#include "tests/cli/training_testing.h"
#include "tests/support/errors.h"

namespace tessera::logs {
namespace {

using testing::read_text;
using testing::TemporaryFolder;

StepMetrics step(std::int64_t number) {
  StepMetrics metrics;
  metrics.step = number;
  metrics.loss = 2.5f;
  metrics.grad_norm = 0.75f;
  metrics.lr = 3e-4;
  metrics.tokens_per_s = 123456.789;
  metrics.step_s = 0.5;
  metrics.peak_bytes = std::int64_t{3} << 30;
  return metrics;
}

std::vector<std::int64_t> steps_in(const std::filesystem::path& path) {
  std::ifstream stream(path);
  std::vector<std::int64_t> steps;
  for (std::string line; std::getline(stream, line);)
    steps.push_back(nlohmann::json::parse(line)["step"]);
  return steps;
}

TEST(Metrics, ALineIsAnObjectWithAllKeys) {
  const auto object = nlohmann::json::parse(to_json_line(step(4)));
  for (const char* key :
       {"step", "loss", "grad_norm", "lr", "tokens_per_s", "samples_per_s", "step_s", "peak_bytes",
        "cached_bytes", "comm_bytes", "exposed_comm_s", "data_wait_s"}) {
    EXPECT_TRUE(object.contains(key)) << key;
  }
  EXPECT_EQ(object.size(), 12u);
  EXPECT_EQ(object["step"], 4);
}

TEST(Metrics, FloatsComeBackExactly) {
  std::mt19937 random(1);
  for (int i = 0; i < 20'000; ++i) {
    StepMetrics metrics = step(1);
    metrics.loss = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    if (!std::isfinite(metrics.loss)) continue;
    const auto object = nlohmann::json::parse(to_json_line(metrics));
    ASSERT_EQ(std::bit_cast<std::uint32_t>(static_cast<float>(object["loss"].get<double>())),
              std::bit_cast<std::uint32_t>(metrics.loss))
        << metrics.loss;
  }
}

TEST(Metrics, NonFiniteNumbersAreNull) {
  StepMetrics metrics = step(1);
  metrics.loss = std::numeric_limits<float>::quiet_NaN();
  metrics.grad_norm = std::numeric_limits<float>::infinity();
  const auto object = nlohmann::json::parse(to_json_line(metrics));
  EXPECT_TRUE(object["loss"].is_null());
  EXPECT_TRUE(object["grad_norm"].is_null());
}

TEST(Metrics, ATasksNumbersFollowTheOthers) {
  StepMetrics metrics = step(1);
  metrics.of_task = {{"rewards_margin", 0.25}, {"rewards_chosen", std::nan("")}};
  const auto object = nlohmann::json::parse(to_json_line(metrics));
  EXPECT_EQ(object["rewards_margin"], 0.25);
  EXPECT_TRUE(object["rewards_chosen"].is_null());
}

TEST(Metrics, EveryStepIsWrittenAtOnceAndResumeDropsLaterOnes) {
  const TemporaryFolder folder;
  const auto path = folder / "new/folder/metrics.jsonl";
  {
    MetricsWriter writer("log.jsonl", path, 0);
    for (std::int64_t i = 1; i <= 5; ++i) {
      writer.write(step(i));
      EXPECT_EQ(steps_in(path).size(), static_cast<std::size_t>(i));
    }
  }
  { MetricsWriter("log.jsonl", path, 3).write(step(4)); }
  EXPECT_EQ(steps_in(path), (std::vector<std::int64_t>{1, 2, 3, 4}));
  std::ofstream(path, std::ios::app) << "{\"step\": 5, \"lo";  // a crash in the middle of a line
  { MetricsWriter("log.jsonl", path, 4).write(step(5)); }
  EXPECT_EQ(steps_in(path), (std::vector<std::int64_t>{1, 2, 3, 4, 5}));
  { MetricsWriter("log.jsonl", path, 0).write(step(1)); }
  EXPECT_EQ(steps_in(path), (std::vector<std::int64_t>{1}));
}

TEST(Metrics, OtherFilesAreLeftAlone) {
  const TemporaryFolder folder;
  std::ofstream(folder / "recipe.yaml") << "train: {steps: 1}\n";
  EXPECT_THROW(MetricsWriter("log.jsonl", folder / "recipe.yaml", 0), Error);
  EXPECT_EQ(read_text(folder / "recipe.yaml"), "train: {steps: 1}\n");
  testing::error_of([&] { MetricsWriter("log.jsonl", folder / "recipe.yaml/metrics.jsonl", 0); },
                    ErrorCode::configuration);
  EXPECT_THROW(MetricsWriter("log.jsonl", "/dev/full", 0).write(step(1)), Error);
}

TEST(Metrics, PeakMemoryIsThatOfThisProcess) {
  EXPECT_GT(peak_resident_bytes(), 1 << 20);
}

// As torchrun starts ranks: from a process that holds far more memory than they do.
TEST(Metrics, PeakMemoryIsNotThatOfTheProcessBeforeExec) {
  const testing::TrainingFolder folder;
  std::string arguments;
  for (const std::string& argument : testing::train_arguments(
           folder.small() +
           testing::Settings{{"train.steps", "1"}, {"log.jsonl", folder.path("m.jsonl")}})) {
    arguments += ", '" + argument + "'";
  }
  const std::string program = testing::program_path();
  const auto ended =
      testing::run_program({"launch", "--", "python3", "-c",
                            "import os; held = b'1' * (600 << 20); os.execv('" + program + "', ['" +
                                program + "'" + arguments + "])"});
  ASSERT_EQ(ended.code, 0) << ended.err;
  EXPECT_LT(testing::metrics_in(folder.path("m.jsonl")).front()["peak_bytes"], 500 << 20);
}

std::string shown(const ProgressOptions& options, std::int64_t steps) {
  int ends[2];
  EXPECT_EQ(::pipe(ends), 0);
  {
    ProgressOptions to_pipe = options;
    to_pipe.descriptor = ends[1];
    Progress progress(to_pipe);
    for (std::int64_t i = options.first_step + 1; i <= steps; ++i) progress.step(step(i));
    progress.note("saved out/step-" + std::to_string(steps));
  }
  ::close(ends[1]);
  std::string text(1 << 16, '\0');
  const ssize_t got = ::read(ends[0], text.data(), text.size());
  ::close(ends[0]);
  text.resize(static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  return text;
}

TEST(Progress, WithoutATerminalPlainLinesAppearRegularly) {
  const std::string text = shown({.steps = 25, .every = 10}, 25);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 5) << text;  // 1, 10, 20, 25 and the note
  EXPECT_NE(
      text.find(
          "step 10/25  loss 2.5000  norm 0.75  lr 0.0003  123.5k tokens/s  3.00 GiB  0:08 left\n"),
      std::string::npos)
      << text;
  EXPECT_EQ(text.find('\r'), std::string::npos);
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
}

TEST(Progress, OnATerminalOneLineIsRedrawn) {
  const std::string text = shown({.steps = 100, .animated = true}, 100);
  EXPECT_NE(text.find("\r["), std::string::npos);
  EXPECT_NE(text.find("step 100/100"), std::string::npos);
  EXPECT_NE(text.find("\x1b[Ksaved out/step-100\n"), std::string::npos);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2) << text;
}

TEST(Progress, ANoteIsOneLineOfVisibleText) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  Progress({.descriptor = ends[1]}).note("saved a\nforged: b\x1b[31m\u202e");
  ::close(ends[1]);
  std::string text(256, '\0');
  text.resize(static_cast<std::size_t>(std::max<ssize_t>(::read(ends[0], text.data(), 256), 0)));
  ::close(ends[0]);
  EXPECT_EQ(text, "saved a\\x0aforged: b\\x1b[31m\\xe2\\x80\\xae\n");
}

TEST(Progress, OtherRanksAreSilentAndAClosedOutputIsNotAnError) {
  EXPECT_EQ(shown({.steps = 5, .every = 1, .shown = false}, 5), "");
  Progress progress({.steps = 5, .every = 1, .descriptor = -1});
  progress.step(step(1));
  progress.note("x");
}

}  // namespace
}  // namespace tessera::logs
