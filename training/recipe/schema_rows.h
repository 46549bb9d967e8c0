// Functions that make the table's rows: how a key is read, written and described follows from its
// member of Recipe.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/text/byte_size.h"
#include "training/recipe/data_sets.h"
#include "training/recipe/schema.h"
#include "training/recipe/values.h"

// The first two arguments of a row: the key's name, and its place in a recipe.
#define TESSERA_KEY(section, member)                \
#section "." #member, [](auto& recipe) -> auto& { \
    return recipe.section.member;                   \
  }

namespace tessera::training {

template <class T>
struct Unwrapped {
  using type = T;
  static constexpr bool optional = false;
};
template <class T>
struct Unwrapped<std::optional<T>> {
  using type = T;
  static constexpr bool optional = true;
};

template <class T>
constexpr std::string_view type_name() {
  if constexpr (std::is_same_v<T, bool>) return "true \\| false";
  if constexpr (std::is_same_v<T, std::int64_t>) return "whole number";
  if constexpr (std::is_same_v<T, double>) return "number";
  if constexpr (std::is_same_v<T, std::string>) return "text";
  if constexpr (std::is_same_v<T, std::vector<std::string>>) return "list of names";
  if constexpr (std::is_same_v<T, std::array<double, 2>>) return "two numbers";
  if constexpr (std::is_same_v<T, std::array<std::int64_t, 2>>) return "two whole numbers";
}

template <class T>
T read_value(const YamlNode& node, const std::string& name, const Range& range) {
  if constexpr (std::is_same_v<T, bool>) {
    return read_bool(node, name);
  } else if constexpr (std::is_same_v<T, std::int64_t>) {
    const std::int64_t value = read_integer(node, name);
    check_range(node, name, range, static_cast<double>(value));
    return value;
  } else if constexpr (std::is_same_v<T, double>) {
    const double value = read_number(node, name);
    check_range(node, name, range, value);
    return value;
  } else if constexpr (std::is_same_v<T, std::string>) {
    return read_text(node, name);
  } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
    return read_texts(node, name);
  } else {
    T values;
    if constexpr (std::is_same_v<T, std::array<double, 2>>) {
      values = read_pair(node, name);
    } else {
      values = read_whole_pair(node, name);
    }
    for (std::size_t i = 0; i < values.size(); ++i) {
      check_range(node.items[i], name, range, static_cast<double>(values[i]));
    }
    return values;
  }
}

// A key whose value is a member of Recipe; the member decides the type.
template <class Access>
RecipeKey key(std::string name, Access access, std::string help, Range range = {}) {
  using Member = std::remove_cvref_t<decltype(access(std::declval<Recipe&>()))>;
  using Value = typename Unwrapped<Member>::type;
  RecipeKey row;
  row.name = name;
  row.type = type_name<Value>();
  row.range = range.text();
  row.help = std::move(help);
  row.free_text = std::is_same_v<Value, std::string>;
  row.optional = Unwrapped<Member>::optional;
  row.read = [=](Recipe& recipe, const YamlNode& node) {
    access(recipe) = read_value<Value>(node, name, range);
  };
  row.write = [=](const Recipe& recipe) -> nlohmann::json {
    if constexpr (Unwrapped<Member>::optional) {
      if (!access(recipe)) return nullptr;
      return *access(recipe);
    } else {
      return access(recipe);
    }
  };
  return row;
}

// A key whose value is a number of bytes, as "5GB" or 5000000000.
template <class Access>
RecipeKey byte_count(const std::string& name, Access access, std::string help) {
  RecipeKey row;
  row.name = name;
  row.type = "bytes, as 5GB";
  row.help = std::move(help);
  row.free_text = true;
  row.read = [=](Recipe& recipe, const YamlNode& node) {
    const std::string text = node.kind == YamlNode::Kind::scalar ? node.text : std::string();
    const auto bytes = text == "0" ? std::optional<std::uint64_t>(0) : parse_bytes(text);
    if (!bytes) refuse_value(node, name, "a number of bytes, as 5GB or 500MiB, or 0");
    access(recipe) = *bytes;
  };
  row.write = [=](const Recipe& recipe) -> nlohmann::json { return access(recipe); };
  return row;
}

// A key whose value is one of a few names.
template <class Access, class T>
RecipeKey choice(std::string name, Access access, std::vector<Choice<T>> choices,
                 std::string help) {
  using Member = std::remove_cvref_t<decltype(access(std::declval<Recipe&>()))>;
  RecipeKey row;
  row.name = name;
  for (const Choice<T>& one : choices) {
    if (one.listed && one.available) {
      row.type += (row.type.empty() ? "" : " \\| ") + std::string(one.name);
    }
  }
  row.help = std::move(help);
  row.optional = Unwrapped<Member>::optional;
  row.read = [=](Recipe& recipe, const YamlNode& node) {
    access(recipe) = read_choice(node, name, choices);
  };
  row.write = [=](const Recipe& recipe) -> nlohmann::json {
    if constexpr (Unwrapped<Member>::optional) {
      if (!access(recipe)) return nullptr;
      return choice_name(choices, *access(recipe));
    } else {
      return choice_name(choices, access(recipe));
    }
  };
  return row;
}

// A key of other programs' files that is always true here; a recipe with another value gets a note.
inline RecipeKey always(const std::string& name, const std::string& so) {
  RecipeKey row;
  row.name = name;
  row.type = type_name<bool>();
  row.fallback = "true";
  row.help = fmt::format("Accelerate's key, without effect: {}.", so);
  row.read = [=](Recipe& recipe, const YamlNode& node) {
    if (read_bool(node, name)) return;
    recipe.notes.push_back(fmt::format("{}: {}: false has no effect: {}", node.where, name, so));
  };
  return row;
}

// A key whose value is data sets.
template <class Access>
RecipeKey data_sets(const std::string& name, Access access, std::string help) {
  RecipeKey row;
  row.name = name;
  row.type = "text \\| data sets";
  row.help = std::move(help);
  row.free_text = true;
  row.read = [=](Recipe& recipe, const YamlNode& node) {
    access(recipe) = read_data_sets(node, name);
  };
  row.write = [=](const Recipe& recipe) -> nlohmann::json {
    if (access(recipe).empty()) return nullptr;
    return write_data_sets(access(recipe));
  };
  return row;
}

inline RecipeKey optional_value(RecipeKey row) {
  row.optional = true;
  return row;
}

inline bool is_truth(const YamlNode& node) {
  const std::string word =
      node.kind == YamlNode::Kind::scalar ? lower_case(node.text) : std::string();
  return word == "true" || word == "yes" || word == "on" || word == "false" || word == "no" ||
         word == "off";
}

// A number of things, or `true` for one of them and `false` for none.
template <class Access>
RecipeKey count_or_truth(std::string name, Access access, std::string help) {
  RecipeKey row = key(name, access, std::move(help), at_least(0));
  row.type = "true \\| false \\| whole number";
  const auto read_number = row.read;
  row.read = [=](Recipe& recipe, const YamlNode& node) {
    if (!is_truth(node)) return read_number(recipe, node);
    access(recipe) = read_bool(node, name) ? 1 : 0;
  };
  return row;
}

// Accelerate's true or false, or a bound.
template <class Access>
RecipeKey bound_on_gathers(std::string name, Access access, std::string help) {
  RecipeKey row = key(name, access, std::move(help), Range{1, 1024, false, false});
  row.type = "true \\| false \\| whole number";
  const auto read_number = row.read;
  row.read = [=](Recipe& recipe, const YamlNode& node) {
    if (!is_truth(node)) return read_number(recipe, node);
    access(recipe) = ShardingRecipe{}.limit_all_gathers;
    if (read_bool(node, name)) return;
    recipe.notes.push_back(
        fmt::format("{}: {}: false has no effect: at most two gathers are in flight; a number "
                    "sets another bound",
                    node.where, name));
  };
  return row;
}

// A key of other programs' files that Tessera has no use for.
inline RecipeKey without_object(const std::string& name, const std::string& what,
                                const std::string& why) {
  RecipeKey row;
  row.name = name;
  row.type = "-";
  row.fallback = "-";
  row.help = fmt::format("{}: refused, because {}.", what, why);
  row.free_text = true;
  row.optional = true;
  row.read = [=](Recipe&, const YamlNode& node) {
    fail(ErrorCode::configuration, "{}: {} is not supported: {}; leave it out", node.where, name,
         why);
  };
  return row;
}

// A number, or a word for none.
template <class Access>
RecipeKey number_or_word(const std::string& name, Access access, std::string_view word,
                         std::string help) {
  RecipeKey row;
  row.name = name;
  row.type = std::string(word) + " \\| number";
  row.help = std::move(help);
  row.fallback = word;
  row.read = [=](Recipe& recipe, const YamlNode& node) {
    access(recipe).reset();
    if (node.kind == YamlNode::Kind::scalar && lower_case(node.text) == word) return;
    double number = 0;
    const char* const end = node.text.data() + node.text.size();
    if (node.kind != YamlNode::Kind::scalar ||
        std::from_chars(node.text.data(), end, number).ptr != end) {
      refuse_value(node, name, fmt::format("{} or a number", word));
    }
    access(recipe) = read_number(node, name);
  };
  row.write = [=](const Recipe& recipe) -> nlohmann::json {
    if (!access(recipe)) return std::string(word);
    return *access(recipe);
  };
  return row;
}

// A positive number for each rank, or `auto`.
template <class Access>
RecipeKey rank_weights(const std::string& name, Access access, std::string help) {
  RecipeKey row;
  row.name = name;
  row.type = "auto \\| list of numbers";
  row.help = std::move(help);
  row.optional = true;
  row.read = [=](Recipe& recipe, const YamlNode& node) {
    RankWeightOptions& weights = access(recipe);
    weights.given.clear();
    weights.measured = node.kind == YamlNode::Kind::scalar && lower_case(node.text) == "auto";
    if (weights.measured) return;
    if (node.kind != YamlNode::Kind::sequence || node.items.empty()) {
      refuse_value(node, name, "auto or a list of numbers, one for each rank");
    }
    for (const YamlNode& item : node.items) {
      const double weight = read_number(item, name);
      check_range(item, name, above(0), weight);
      weights.given.push_back(weight);
    }
  };
  row.write = [=](const Recipe& recipe) -> nlohmann::json {
    const RankWeightOptions& weights = access(recipe);
    if (weights.are_equal()) return nullptr;
    if (weights.measured) return "auto";
    return weights.given;
  };
  return row;
}

// A mapping of steps, from `first` on, to numbers.
template <class Access>
RecipeKey step_ramp(const std::string& name, Access access, std::string help, std::int64_t first) {
  RecipeKey row;
  row.name = name;
  row.type = "steps with numbers";
  row.help = std::move(help);
  row.optional = true;
  row.read = [=](Recipe& recipe, const YamlNode& node) {
    if (node.kind != YamlNode::Kind::mapping) {
      refuse_value(node, name, "steps with numbers, as {500: 2, 2000: 4}");
    }
    StepRamp& ramp = access(recipe);
    ramp.changes.clear();
    for (std::size_t i = 0; i < node.keys.size(); ++i) {
      YamlNode step = node.keys[i];
      step.quoted = false;  // JSON quotes all keys
      const std::string key = "a step of " + name;
      const std::int64_t from = read_integer(step, key);
      check_range(step, key, at_least(static_cast<double>(first)), static_cast<double>(from));
      const std::string place = name + "." + step.text;
      const std::int64_t number = read_integer(node.items[i], place);
      check_range(node.items[i], place, at_least(1), static_cast<double>(number));
      ramp.changes.emplace_back(from, number);
    }
    std::sort(ramp.changes.begin(), ramp.changes.end());
    const auto twice = std::adjacent_find(
        ramp.changes.begin(), ramp.changes.end(),
        [](const auto& one, const auto& other) { return one.first == other.first; });
    TESSERA_CHECK(twice == ramp.changes.end(), ErrorCode::configuration,
                  "{}: {} has step {} twice; keep one", node.where, name, twice->first);
  };
  row.write = [=](const Recipe& recipe) -> nlohmann::json {
    const StepRamp& ramp = access(recipe);
    if (ramp.empty()) return nullptr;
    nlohmann::json object = nlohmann::json::object();
    for (const auto& [from, number] : ramp.changes) object[std::to_string(from)] = number;
    return object;
  };
  return row;
}

// With a check of the value before it is read.
inline RecipeKey checked(std::function<void(const YamlNode&, const std::string& key)> check,
                         RecipeKey row) {
  row.read = [check = std::move(check), read = row.read, name = row.name](Recipe& recipe,
                                                                          const YamlNode& node) {
    check(node, name);
    read(recipe, node);
  };
  return row;
}

inline RecipeKey default_is(std::string fallback, RecipeKey row) {
  row.optional = row.optional || fallback == "none";
  row.fallback = std::move(fallback);
  return row;
}

inline RecipeKey also_called(std::vector<std::string> synonyms, RecipeKey row) {
  row.synonyms = std::move(synonyms);
  return row;
}

}  // namespace tessera::training
