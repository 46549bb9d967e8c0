// The logs, notes and summary of a run in which a batch of other text made the loss jump.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "logs/event_file.h"
#include "logs/tensorboard_log.h"
#include "tests/cli/training_testing.h"

namespace tessera::logs {
namespace {

using testing::Ended;
using testing::metrics_in;
using testing::read_text;
using testing::Settings;
using testing::TrainingFolder;

constexpr std::size_t bytes_of_step = std::size_t{2} * 2 * 64;  // ranks, batch, sequence

// Bytes without any order in step 26; all others repeat one word.
std::string text_with_noise() {
  std::string text;
  while (text.size() < 60 * bytes_of_step) text += "gather.\n";
  std::mt19937 random(7);
  for (std::size_t i = 25 * bytes_of_step; i < 26 * bytes_of_step; ++i) {
    text[i] = static_cast<char>(random() % 256);
  }
  return text;
}

class SpikeLogs : public ::testing::Test {
 protected:
  SpikeLogs() { folder_.write("noise.txt", text_with_noise()); }

  [[nodiscard]] Settings settings() const {
    return folder_.small() + Settings{{"data.train", folder_.path("noise.txt")},
                                      {"data.shuffle", "false"},
                                      {"train.steps", "40"},
                                      {"train.lr", "1e-2"},
                                      {"train.lr_schedule", "constant"},
                                      {"train.spike_sigma", "6"},
                                      {"train.spike_window", "8"},
                                      {"checkpoint.dir", folder_.path("out")},
                                      {"checkpoint.every", "10"},
                                      {"log.jsonl", folder_.path("m.jsonl")},
                                      {"log.csv", folder_.path("m.csv")},
                                      {"log.tensorboard", folder_.path("tb")},
                                      {"log.summary", folder_.path("summary.json")}};
  }
  [[nodiscard]] std::vector<std::int64_t> steps_in_jsonl() const {
    std::vector<std::int64_t> steps;
    for (const auto& line : metrics_in(folder_.path("m.jsonl"))) {
      if (line.contains("loss")) steps.push_back(line["step"]);
    }
    return steps;
  }
  [[nodiscard]] std::vector<nlohmann::json> decisions_in_jsonl() const {
    std::vector<nlohmann::json> lines;
    for (const auto& line : metrics_in(folder_.path("m.jsonl"))) {
      if (line.contains("on_spike")) lines.push_back(line);
    }
    return lines;
  }
  // The values of a tag in the event file, with the steps.
  [[nodiscard]] bool has_event(std::string_view tag, std::int64_t step) const {
    const std::string content = read_text(folder_.path("tb") + "/" + TensorboardLog::file_name);
    std::string_view rest = content;
    while (const auto event = take_tf_record(rest)) {
      if (event->find(tag) != std::string_view::npos && step_of_event(*event) == step) return true;
    }
    return false;
  }

  TrainingFolder folder_;
};

std::vector<std::int64_t> numbers_to(std::int64_t last) {
  std::vector<std::int64_t> numbers;
  for (std::int64_t number = 1; number <= last; ++number) numbers.push_back(number);
  return numbers;
}

TEST_F(SpikeLogs, NameTheStepThatWasSkipped) {
  const Ended ended = testing::train(2, settings() + Settings{{"train.on_spike", "skip"}});
  EXPECT_NE(ended.err.find("step 26: loss "), std::string::npos) << ended.err;
  EXPECT_NE(ended.err.find(": the step is skipped"), std::string::npos) << ended.err;
  EXPECT_NE(ended.err.find("spikes: 1 step skipped, 0 roll-backs; the last at step 26"),
            std::string::npos)
      << ended.err;
  EXPECT_EQ(steps_in_jsonl(), numbers_to(40));
  const auto decisions = decisions_in_jsonl();
  ASSERT_EQ(decisions.size(), 1u);
  EXPECT_EQ(decisions[0]["step"], 26);
  EXPECT_EQ(decisions[0]["on_spike"], "skip");
  EXPECT_EQ(decisions[0]["spike_step"], 26);
  EXPECT_GT(decisions[0]["spike_loss"], decisions[0]["spike_limit"]);
  EXPECT_GT(decisions[0]["spike_grad_norm"], 0);
  EXPECT_NE(read_text(folder_.path("m.csv")).find("\n26,,,,,,,,,,,,spike_skip,26\n"),
            std::string::npos);
  EXPECT_TRUE(has_event("train/spike_skip", 26));
  const auto summary = nlohmann::json::parse(read_text(folder_.path("summary.json")));
  ASSERT_EQ(summary["spikes"].size(), 1u);
  EXPECT_EQ(summary["spikes"][0]["step"], 26);
  EXPECT_EQ(summary["spikes"][0]["done"], "skip");
  EXPECT_EQ(summary["spikes"][0]["goes_on_after"], 26);
}

// Each step is in a log once, as in one of a run that was resumed, and the decision stays.
TEST_F(SpikeLogs, GoBackWithTheRun) {
  const Settings rolling = settings() + Settings{{"train.on_spike", "rollback"}};
  const Ended ended = testing::train(2, rolling);
  EXPECT_NE(ended.err.find(": back to step 20, without the data since then"), std::string::npos)
      << ended.err;
  EXPECT_NE(ended.err.find("spikes: 0 steps skipped, 1 roll-back; the last at step 26"),
            std::string::npos)
      << ended.err;
  for (const std::int64_t steps : {40, 50}) {
    if (steps == 50) testing::train(1, rolling + Settings{{"train.steps", "50"}});
    EXPECT_EQ(steps_in_jsonl(), numbers_to(steps));
    const auto decisions = decisions_in_jsonl();
    ASSERT_EQ(decisions.size(), 1u);
    EXPECT_EQ(decisions[0]["step"], 20);
    EXPECT_EQ(decisions[0]["on_spike"], "rollback");
    EXPECT_EQ(decisions[0]["spike_step"], 26);
    const std::string csv = read_text(folder_.path("m.csv"));
    EXPECT_NE(csv.find("\n20,,,,,,,,,,,,spike_rollback,26\n21,"), std::string::npos);
    EXPECT_EQ(testing::lines_of(folder_.path("m.csv")), 1 + steps + 1);
    EXPECT_TRUE(has_event("train/spike_rollback", 20));
  }
}

TEST_F(SpikeLogs, EndWithTheRunThatStops) {
  const Ended ended =
      testing::run_program(testing::launched(2, testing::train_arguments(settings())));
  EXPECT_EQ(ended.code, 8) << ended.err;
  EXPECT_NE(ended.err.find("step 26: loss "), std::string::npos) << ended.err;
  EXPECT_NE(ended.err.find("the limit of spike_sigma 6; lower train.lr"), std::string::npos)
      << ended.err;
  EXPECT_EQ(steps_in_jsonl(), numbers_to(25));
}

}  // namespace
}  // namespace tessera::logs
