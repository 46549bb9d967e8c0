// Every default that docs/recipe.md shows can be written, and changes nothing.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "base/error.h"
#include "training/recipe/data_sets.h"
#include "training/recipe/recipe.h"
#include "training/recipe/schema.h"

namespace tessera::training {
namespace {

struct DocumentedKey {
  std::string section, architecture, name, fallback;
};

// The cells of a row of a table; "\|" belongs to a cell.
std::vector<std::string> cells_of(const std::string& row) {
  std::vector<std::string> cells;
  std::size_t begin = 2;
  for (std::size_t at = row.find(" | ", begin); at != std::string::npos;
       at = row.find(" | ", begin)) {
    cells.push_back(row.substr(begin, at - begin));
    begin = at + 3;
  }
  return cells;
}

std::vector<DocumentedKey> documented_keys() {
  std::vector<DocumentedKey> keys;
  DocumentedKey key;
  std::istringstream text(recipe_reference());
  for (std::string line; std::getline(text, line);) {
    if (line.starts_with("### ")) {
      const std::size_t comma = line.find(", architecture ");
      key.section = line.substr(4, comma == std::string::npos ? comma : comma - 4);
      key.architecture = comma == std::string::npos ? "" : line.substr(comma + 15);
    }
    if (!line.starts_with("| `")) continue;
    const std::vector<std::string> cells = cells_of(line);
    key.name = cells.at(0).substr(1, cells.at(0).size() - 2);
    key.fallback = cells.at(2);
    keys.push_back(key);
  }
  return keys;
}

// Defaults that are words about other keys, and no values.
const std::set<std::string> described = {
    "required",
    "-",
    "the folder's with `pretrained`, else bytes",
    "`steps`",
    "`lr`",
    "`begin`",
    "`seq_len`",
    "`seq_len` + 2",
    "`model.pretrained`, or with an adapter the model under it",
    "none, or with `adapter` that of its step",
    "`dropout`",
    "4 x `n_embd`",
    "the tokenizer's",
    "`num_attention_heads`",
    "`hidden_size` / `num_attention_heads`",
    "[0.9,0.999]; lion: [0.9,0.99]",
    "all but the head",
    "the model's layer class",
    "that of compute",
    "the ranks of a node",
    "`group_size` for HYBRID_*, else none",
    "set by `sharding_strategy`",
    "the units",
    "the first ones",
    "if columns are named",
    "the number of `labels`",
    "the fourth to the sixth of the run, or its last ones"};

// The value in a file, and by --set.
void expect_accepted(const DocumentedKey& key, std::string value) {
  std::erase(value, '`');
  SCOPED_TRACE(key.section + " " + key.architecture + " " + key.name + ": " + value);
  const std::string architecture = key.architecture.empty() ? "gpt2" : key.architecture;
  const std::vector<std::string> base = {"model.architecture=" + architecture,
                                         "data.train=text.txt"};
  std::string file;
  const std::string full =
      key.section == "a data set" ? "data.train" : key.section + "." + key.name;
  if (key.section == "a data set") {
    value = "{file: text.txt, " + key.name + ": " + value + "}";
    file = "data: {train: " + value + "}";
  } else {
    std::istringstream parts(full);
    std::string closing;
    for (std::string part; std::getline(parts, part, '.');) {
      file += (file.empty() ? "" : "{") + part + ": ";
      closing += "}";
    }
    closing.pop_back();
    file += value + closing;
  }
  const auto json_of = [&](const std::string& text, std::vector<std::string> overrides) {
    overrides.insert(overrides.begin(), base.begin(), base.end());
    if (full == "model.architecture") overrides.erase(overrides.begin());
    return to_json(parse_recipe(text, "recipe.yaml", overrides));
  };
  std::string place = "/" + full;
  std::replace(place.begin(), place.end(), '.', '/');
  const nlohmann::json::json_pointer pointer(place);
  try {
    const nlohmann::json expected = json_of("data: {}", {});
    const auto check = [&](nlohmann::json got) {
      // A key that was absent has its value now, and nothing else changes.
      nlohmann::json& set = got["data"]["train"];
      if (set.is_object()) {
        set.erase(key.name);
        if (set.size() == 1) set = nlohmann::json(set["file"]);
      }
      if (expected.contains(pointer) && expected[pointer].is_null()) got[pointer] = nullptr;
      EXPECT_TRUE(got == expected) << nlohmann::json::diff(expected, got).dump();
    };
    check(json_of("data: {}", {full + "=" + value}));
    if (key.section != "a data set") check(json_of(file, {}));
  } catch (const Error& error) {
    ADD_FAILURE() << error.what();
  }
}

TEST(RecipeDefaults, CanBeWritten) {
  int accepted = 0;
  for (const DocumentedKey& key : documented_keys()) {
    if (described.contains(key.fallback)) continue;
    expect_accepted(key, key.fallback);
    ++accepted;
  }
  EXPECT_GT(accepted, 200);
}

TEST(RecipeDefaults, NoneTakesAValueBack) {
  const auto parsed = [](const std::string& text, const std::vector<std::string>& overrides) {
    return parse_recipe(text, "recipe.yaml", overrides);
  };
  const std::string text =
      "model: {pretrained: folder}\n"
      "data: {train: a.txt, valid: b.txt}\n"
      "train: {prune: {method: wanda, sparsity: 0.5}}\n";
  EXPECT_FALSE(parsed(text, {"model.pretrained=none"}).model.pretrained.has_value());
  EXPECT_TRUE(parsed(text, {"data.valid=none"}).data.valid.empty());
  const Recipe dense = parsed(text, {"train.prune.method=none"});
  EXPECT_FALSE(dense.train.prune.method.has_value());
  EXPECT_NO_THROW(validate(dense, 1));
}

}  // namespace
}  // namespace tessera::training
