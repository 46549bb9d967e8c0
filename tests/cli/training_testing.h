// Small training runs of the real program: settings of a recipe, the end of a run, its metrics.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/cli/program_testing.h"

namespace tessera::testing {

struct Settings : std::map<std::string, std::string> {
  using map::map;
};

// Settings of `later` win.
inline Settings operator+(Settings settings, const Settings& later) {
  for (const auto& [key, value] : later) settings[key] = value;
  return settings;
}

inline std::string example_recipe() {
  const char* folder = std::getenv("TESSERA_SOURCE_DIR");
  return std::string(folder != nullptr ? folder : ".") + "/examples/gpt2-bytes.yaml";
}

// Text of exactly `bytes` bytes: some words in an order with a long period.
inline std::string sample_text(std::size_t bytes) {
  static const char* const words[] = {"shard ", "gather ", "reduce ", "rank\n",
                                      "tile ",  "mosaic ", "step, ",  "norm. "};
  std::string text;
  std::uint64_t state = 1;
  while (text.size() < bytes) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    text += words[state >> 61];
  }
  text.resize(bytes);
  return text;
}

// A folder with a text, for small runs of examples/gpt2-bytes.yaml.
class TrainingFolder {
 public:
  TrainingFolder() { write("text.txt", sample_text(20'000)); }

  [[nodiscard]] std::string path(const std::string& name) const {
    return (folder_ / name).string();
  }
  void write(const std::string& name, const std::string& content) const {
    std::ofstream(folder_ / name, std::ios::binary) << content;
  }

  // Two layers and three steps on the text in this folder; a step takes milliseconds.
  [[nodiscard]] Settings small() const {
    return {{"model.n_layer", "2"},         {"model.n_embd", "64"},
            {"model.seq_len", "64"},        {"data.batch_size", "2"},
            {"train.steps", "3"},           {"train.warmup_steps", "2"},
            {"train.lr_decay_steps", "50"}, {"data.train", path("text.txt")}};
  }

 private:
  TemporaryFolder folder_;
};

inline std::vector<std::string> train_arguments(const Settings& settings,
                                                const std::string& recipe = example_recipe()) {
  std::vector<std::string> arguments = {"train", recipe};
  for (const auto& [key, value] : settings) {
    arguments.insert(arguments.end(), {"--set", key + "=" + value});
  }
  return arguments;
}

// `tessera launch ... -- tessera <arguments>`.
inline std::vector<std::string> launched(int ranks, const std::vector<std::string>& arguments,
                                         const std::vector<std::string>& options = {}) {
  std::vector<std::string> all = {"launch", "--nproc-per-node", std::to_string(ranks)};
  all.insert(all.end(), options.begin(), options.end());
  all.insert(all.end(), {"--", program_path()});
  all.insert(all.end(), arguments.begin(), arguments.end());
  return all;
}

struct Ended {
  int code = -1;
  std::string out;
  std::string err;
};

// One thread per rank, because tests run in parallel.
inline Ended run_program(const std::vector<std::string>& arguments,
                         std::map<std::string, std::string> environment = {}) {
  environment.emplace("OMP_NUM_THREADS", "1");
  Program program(arguments, environment);
  const int code = program.wait(std::chrono::minutes(3));
  return {code, program.out(), program.err()};
}

// Trains and expects success.
inline Ended train(int ranks, const Settings& settings) {
  Ended ended = run_program(launched(ranks, train_arguments(settings)));
  EXPECT_EQ(ended.code, 0) << ended.err;
  return ended;
}

// The same, from a checkpoint on.
inline Ended train_on(int ranks, const Settings& settings) {
  Ended ended = train(ranks, settings);
  EXPECT_NE(ended.err.find("resumed from"), std::string::npos) << ended.err;
  return ended;
}

inline std::vector<nlohmann::json> metrics_in(const std::string& path) {
  std::vector<nlohmann::json> steps;
  std::istringstream stream(read_text(path));
  for (std::string line; std::getline(stream, line);) steps.push_back(nlohmann::json::parse(line));
  return steps;
}

// For each step the text of its line from "step" to before "lr": step, loss and gradient norm with
// all digits.
inline std::vector<std::string> losses_in(const std::string& path) {
  std::vector<std::string> lines;
  std::istringstream stream(read_text(path));
  for (std::string line; std::getline(stream, line);) {
    if (line.find("\"lr\"") == std::string::npos) continue;  // an evaluation's line
    lines.push_back(line.substr(0, line.find(", \"lr\"")));
  }
  return lines;
}

inline int lines_of(const std::string& path) {
  const std::string text = read_text(path);
  return static_cast<int>(std::count(text.begin(), text.end(), '\n'));
}

inline void expect_close(const std::string& path, const std::string& expected_path,
                         double tolerance) {
  const auto values = metrics_in(path);
  const auto expected = metrics_in(expected_path);
  ASSERT_EQ(values.size(), expected.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(values[i].at("step"), expected[i].at("step"));
    for (const char* key : {"loss", "grad_norm"}) {
      const double wanted = expected[i].at(key).get<double>();
      EXPECT_NEAR(values[i].at(key).get<double>(), wanted, tolerance * wanted)
          << key << " of step " << i + 1;
    }
  }
}

// The child of the launcher that is this rank; -1 when there is none.
inline pid_t pid_of_rank(pid_t launcher, int rank) {
  const std::string parent = "\nPPid:\t" + std::to_string(launcher) + "\n";
  const std::string wanted = std::string(1, '\0') + "RANK=" + std::to_string(rank) + '\0';
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    if (read_text(entry.path() / "status").find(parent) == std::string::npos) continue;
    const std::string environment = '\0' + read_text(entry.path() / "environ");
    if (environment.find(wanted) != std::string::npos) {
      return std::stoi(entry.path().filename().string());
    }
  }
  return -1;
}

// Flips a bit of a file.
inline void damage(const std::string& path, std::streamoff place) {
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekg(place);
  const int byte = file.get();
  file.seekp(place);
  file.put(static_cast<char>(byte ^ 0x10));
  ASSERT_TRUE(file.good()) << path;
}

}  // namespace tessera::testing
