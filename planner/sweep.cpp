// From --sweep to combinations.
#include "planner/sweep.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>

#include "base/error.h"
#include "sharding/plan/plan.h"
#include "training/recipe/other_words.h"
#include "training/recipe/values.h"

namespace tessera::planner {
namespace {

constexpr std::size_t most_points = 1000;

struct SweepAxis {
  std::string key;
  std::vector<std::string> values;
};

// The words between commas.
std::vector<std::string> words_of(const std::string& text, const std::string& option) {
  std::vector<std::string> words;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    TESSERA_CHECK(end > begin, ErrorCode::usage, "{} {}: a value is empty", option, text);
    words.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return words;
}

SweepAxis axis_of(const std::string& text) {
  const std::size_t equals = text.find('=');
  TESSERA_CHECK(equals != std::string::npos && equals > 0 && equals + 1 < text.size(),
                ErrorCode::usage,
                "--sweep {}: must be a key and values, as in --sweep world_size=8,16", text);
  return {text.substr(0, equals), words_of(text.substr(equals + 1), "--sweep")};
}

int world_of(const std::string& text) {
  int ranks = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), ranks);
  const bool whole = error == std::errc{} && stop == text.data() + text.size();
  TESSERA_CHECK(whole && ranks >= 1 && ranks <= most_planned_ranks, ErrorCode::usage,
                "--sweep world_size={}: must be whole numbers from 1 to {}", text,
                most_planned_ranks);
  return ranks;
}

void set_value(SweepPoint& point, const std::string& key, const std::string& value) {
  if (key == "world_size") {
    point.world_size = world_of(value);
  } else if (key == "strategy") {
    point.strategies = strategies_named(value, "--sweep strategy");
  } else {
    point.settings.push_back(fmt::format("{}={}", key, value));
  }
}

}  // namespace

AskedStrategies strategies_named(const std::string& text, const std::string& option) {
  AskedStrategies asked;
  std::vector<std::string> names = {"all", "none", "dp"};
  for (const StrategyRow& row : strategy_table) names.emplace_back(row.name);
  for (const std::string& word : words_of(text, option)) {
    const std::string name = training::lower_case(word);
    const std::size_t before = asked.sharded.size();
    for (const StrategyRow& row : strategy_table) {
      if (name == "all" || name == training::lower_case(row.name))
        asked.sharded.push_back(row.strategy);
    }
    asked.none = asked.none || name == "none";
    asked.dp = asked.dp || name == "dp";
    TESSERA_CHECK(asked.sharded.size() > before || name == "none" || name == "dp", ErrorCode::usage,
                  "{} {}: there are {}{}", option, word, fmt::join(names, ", "),
                  training::strategy_meant(word, names));
  }
  return asked;
}

std::string strategy_names(std::string_view separator) {
  std::string names;
  for (const StrategyRow& row : strategy_table) {
    if (!names.empty()) names += separator;
    names += row.name;
  }
  return names;
}

std::vector<SweepPoint> sweep_points(const std::vector<std::string>& axes, int world_size) {
  std::vector<SweepPoint> points(1);
  points.front().world_size = world_size;
  for (const std::string& text : axes) {
    const SweepAxis axis = axis_of(text);
    TESSERA_CHECK(points.size() * axis.values.size() <= most_points, ErrorCode::usage,
                  "--sweep: more than {} combinations; leave some values out", most_points);
    std::vector<SweepPoint> longer;
    for (const SweepPoint& point : points) {
      for (const std::string& value : axis.values) {
        longer.push_back(point);
        set_value(longer.back(), axis.key, value);
      }
    }
    points = std::move(longer);
  }
  return points;
}

}  // namespace tessera::planner
