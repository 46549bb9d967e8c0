// The keys of a data set as a table, and how data sets are written in a recipe.
#include "training/recipe/data_sets.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "base/error.h"
#include "base/text/nearest.h"
#include "training/recipe/values.h"

namespace tessera::training {
namespace {

struct DataSetKey {
  std::string name;
  std::string type;
  std::string fallback;
  std::string help;
  std::function<void(DataSetRecipe&, const YamlNode&, const std::string& key)> read;
  std::function<nlohmann::json(const DataSetRecipe&)> write;  // null: the default
};

template <class T>
DataSetKey chosen(std::string name, T DataSetRecipe::*member, std::vector<Choice<T>> choices,
                  std::string fallback, std::string help) {
  DataSetKey row{std::move(name), {}, std::move(fallback), std::move(help), {}, {}};
  for (const Choice<T>& one : choices) {
    row.type += (row.type.empty() ? "" : " \\| ") + std::string(one.name);
  }
  row.read = [=](DataSetRecipe& set, const YamlNode& node, const std::string& key) {
    set.*member = read_choice(node, key, choices);
  };
  row.write = [=](const DataSetRecipe& set) -> nlohmann::json {
    if (set.*member == DataSetRecipe{}.*member) return nullptr;
    return choice_name(choices, set.*member);
  };
  return row;
}

DataSetKey names(std::string name, std::vector<std::string> DataSetRecipe::*member,
                 std::string type, std::string fallback, std::string help) {
  return {std::move(name),
          std::move(type),
          std::move(fallback),
          std::move(help),
          [=](DataSetRecipe& set, const YamlNode& node, const std::string& key) {
            set.*member = read_texts(node, key);
          },
          [=](const DataSetRecipe& set) -> nlohmann::json {
            if ((set.*member).empty()) return nullptr;
            return set.*member;
          }};
}

DataSetKey number(std::string name, std::optional<double> DataSetRecipe::*member,
                  std::string fallback, std::string help) {
  return {std::move(name),
          "number, above 0",
          std::move(fallback),
          std::move(help),
          [=](DataSetRecipe& set, const YamlNode& node, const std::string& key) {
            set.*member = read_number(node, key);
            check_range(node, key, above(0), *(set.*member));
          },
          [=](const DataSetRecipe& set) -> nlohmann::json {
            if (!(set.*member)) return nullptr;
            return *(set.*member);
          }};
}

DataSetKey header_key() {
  return {"header",
          "true \\| false",
          "if columns are named",
          "True if the first line of CSV or TSV is a header.",
          [](DataSetRecipe& set, const YamlNode& node, const std::string& key) {
            set.header = read_bool(node, key);
          },
          [](const DataSetRecipe& set) -> nlohmann::json {
            if (!set.header) return nullptr;
            return *set.header;
          }};
}

DataSetKey label_count_key() {
  return {"num_labels",
          "whole number, at least 2",
          "the number of `labels`",
          "`softmax`: the number of classes, if labels are whole numbers from 0.",
          [](DataSetRecipe& set, const YamlNode& node, const std::string& key) {
            set.num_labels = read_integer(node, key);
            check_range(node, key, at_least(2), static_cast<double>(*set.num_labels));
          },
          [](const DataSetRecipe& set) -> nlohmann::json {
            if (!set.num_labels) return nullptr;
            return *set.num_labels;
          }};
}

const std::vector<DataSetKey>& data_set_keys() {
  using F = tasks::TableFormat;
  using L = SentenceLoss;
  using E = SentenceEvaluator;
  static const std::vector<DataSetKey> keys = {
      names("file", &DataSetRecipe::files, "text, or a list", "required",
            "A file, several, or a pattern like `data/*.jsonl`; for Parquet, Arrow and tar also a "
            "folder."),
      chosen("format", &DataSetRecipe::format,
             std::vector<Choice<F>>{{"auto", F::automatic},
                                    {"csv", F::csv},
                                    {"tsv", F::tsv},
                                    {"jsonl", F::jsonl},
                                    {"text", F::text}},
             "auto",
             "`csv` has commas and quotes, `tsv` tabs and no quotes, `jsonl` one object per line, "
             "`text` one text per line. `auto`: by the name (.jsonl, .tsv, .txt), else `tsv` if "
             "the first line has a tab. `next_token` and `sft`: `auto` or `jsonl`."),
      names(
          "columns", &DataSetRecipe::columns, "list of names or numbers", "the first ones",
          "Names of the header (keys, of JSON lines; columns, of Parquet and Arrow), or numbers "
          "from 1: the texts, then the label; as many as the loss or evaluator takes. "
          "`next_token`: the one column of Parquet, Arrow or JSON lines that has the texts, token "
          "ids or messages, or the two of a prompt and a completion."),
      header_key(),
      chosen("loss", &DataSetRecipe::loss,
             std::vector<Choice<L>>{{"none", L::none},
                                    {"cosine_similarity", L::cosine_similarity},
                                    {"softmax", L::softmax},
                                    {"multiple_negatives_ranking", L::multiple_negatives_ranking},
                                    {"mse", L::mse},
                                    {"margin_mse", L::margin_mse}},
             "none", "`sentence_pairs`: the loss of training data; required."),
      chosen("evaluator", &DataSetRecipe::evaluator,
             std::vector<Choice<E>>{{"none", E::none},
                                    {"similarity", E::similarity},
                                    {"accuracy", E::accuracy},
                                    {"triplet", E::triplet}},
             "none", "`sentence_pairs`: the measure that is computed on `valid`; required."),
      number("label_scale", &DataSetRecipe::label_scale, "1",
             "Labels that are numbers are divided by it: 5 for scores of 0 to 5."),
      names("labels", &DataSetRecipe::labels, "list of names", "none",
            "The names of the classes in the label's column, in the order of their numbers."),
      label_count_key(),
      number("scale", &DataSetRecipe::scale, "20",
             "`multiple_negatives_ranking`: the factor of similarities."),
  };
  return keys;
}

DataSetRecipe read_data_set(const YamlNode& node, const std::string& key) {
  DataSetRecipe set;
  set.where = node.where;
  if (node.kind == YamlNode::Kind::scalar) {
    set.files = {read_text(node, key)};
    return set;
  }
  if (node.kind != YamlNode::Kind::mapping) {
    refuse_value(node, key, "a file, or a group of keys with a file among them");
  }
  for (std::size_t i = 0; i < node.keys.size(); ++i) {
    const std::string& name = node.keys[i].text;
    const auto& keys = data_set_keys();
    const auto row = std::find_if(keys.begin(), keys.end(),
                                  [&](const DataSetKey& one) { return one.name == name; });
    if (row == keys.end()) {
      std::vector<std::string> known;
      for (const DataSetKey& one : keys) known.push_back(one.name);
      fail(ErrorCode::configuration, "{}: unknown key {} of a data set in {}{}", node.keys[i].where,
           name, key, did_you_mean(name, known));
    }
    YamlNode value = node.items[i];
    value.where = node.keys[i].where;
    const bool absent = value.kind == YamlNode::Kind::null ||
                        (value.kind == YamlNode::Kind::scalar && lower_case(value.text) == "none");
    if (absent && row->fallback == "none" && !row->type.starts_with("none ")) continue;
    row->read(set, value, fmt::format("{}'s {}", key, name));
  }
  TESSERA_CHECK(!set.files.empty(), ErrorCode::configuration, "{}: {} names no file", node.where,
                key);
  return set;
}

}  // namespace

std::vector<DataSetRecipe> read_data_sets(const YamlNode& node, const std::string& key) {
  if (node.kind != YamlNode::Kind::sequence) return {read_data_set(node, key)};
  if (node.items.empty()) refuse_value(node, key, "a file, or a list that is not empty");
  std::vector<DataSetRecipe> sets;
  for (YamlNode item : node.items) {
    if (item.where.empty()) item.where = node.where;
    sets.push_back(read_data_set(item, key));
  }
  return sets;
}

nlohmann::json write_data_sets(const std::vector<DataSetRecipe>& sets) {
  nlohmann::json list = nlohmann::json::array();
  for (const DataSetRecipe& set : sets) {
    nlohmann::json object = nlohmann::json::object();
    for (const DataSetKey& key : data_set_keys()) {
      nlohmann::json value = key.write(set);
      if (!value.is_null()) object[key.name] = std::move(value);
    }
    if (set.files.size() == 1) object["file"] = set.files.front();
    const bool plain = object.size() == 1 && set.files.size() == 1;
    list.push_back(plain ? object["file"] : object);
  }
  return list.size() == 1 ? list.front() : list;
}

std::string data_set_reference() {
  std::string text = "### a data set\n\n| key | values | default | meaning |\n|---|---|---|---|\n";
  for (const DataSetKey& key : data_set_keys()) {
    text += fmt::format("| `{}` | {} | {} | {} |\n", key.name, key.type, key.fallback, key.help);
  }
  return text;
}

}  // namespace tessera::training
