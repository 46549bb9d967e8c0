// Small comparisons by the real program: rows of milliseconds, their report, and stand-ins for
// peers.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/cli/training_testing.h"

namespace tessera::testing {

// Arguments that compare a model of two layers on the folder's text.
inline std::vector<std::string> bench_arguments(const TrainingFolder& folder,
                                                const std::vector<std::string>& options,
                                                const Settings& settings = {}) {
  std::vector<std::string> words = {"bench", example_recipe()};
  for (const auto& [key, value] : folder.small() + settings) {
    words.insert(words.end(), {"--set", key + "=" + value});
  }
  words.insert(words.end(), {"--threads-per-rank", "1"});
  words.insert(words.end(), options.begin(), options.end());
  return words;
}

inline Ended run_bench(const TrainingFolder& folder, const std::vector<std::string>& options,
                       const Settings& settings = {},
                       const std::map<std::string, std::string>& environment = {}) {
  return run_program(bench_arguments(folder, options, settings), environment);
}

// A comparison with two steps in one round, and its report.
struct Compared {
  Ended ended;
  nlohmann::json report;
};
inline Compared compared(const TrainingFolder& folder, std::vector<std::string> options,
                         const Settings& settings = {}) {
  const std::string file = folder.path("bench.json");
  options.insert(options.end(), {"--json", file});
  for (const auto& [option, value] :
       {std::pair{"--steps", "2"}, std::pair{"--rounds", "1"}, std::pair{"--warmup", "1"}}) {
    if (std::find(options.begin(), options.end(), option) == options.end())
      options.insert(options.end(), {option, value});
  }
  Compared result{run_bench(folder, options, settings), {}};
  const std::string text = read_text(file);
  if (!text.empty()) result.report = nlohmann::json::parse(text, nullptr, false);
  return result;
}

inline nlohmann::json row_of(const nlohmann::json& report, const std::string& name) {
  for (const nlohmann::json& row : report.at("rows")) {
    if (row.at("name") == name) return row;
  }
  ADD_FAILURE() << "no row " << name << " in " << report.dump();
  return {};
}

// Checks the output and the report for a row that is not measured.
inline void expect_not_measured(const nlohmann::json& row, const std::string& status,
                                const std::string& reason) {
  EXPECT_EQ(row.at("status"), status) << row.dump();
  EXPECT_NE(row.at("reason").get<std::string>().find(reason), std::string::npos) << row.dump();
  for (const char* name : {"samples_per_s", "tokens_per_s", "step_s", "speedup", "efficiency",
                           "mfu", "products_share"}) {
    EXPECT_TRUE(row.at(name).is_null()) << name << ": " << row.dump();
  }
}

}  // namespace tessera::testing
