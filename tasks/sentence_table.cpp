// The meaning of a loss's columns, and the order of the rows.
#include "tasks/sentence_table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "engine/data/permutation.h"

namespace tessera::tasks {
namespace {

// Samples that are sorted by length together when batches group similar lengths: enough for batches
// with little padding, few enough for an order that is still random.
constexpr std::int64_t length_group = 1024;

enum class LabelKind : std::uint8_t { none, number, label_class, vector };

struct Columns {
  std::size_t texts;
  LabelKind label;
};

Columns columns_of(const SentenceData& data) {
  switch (data.loss) {
    case SentenceLoss::cosine_similarity:
      return {2, LabelKind::number};
    case SentenceLoss::softmax:
      return {2, LabelKind::label_class};
    case SentenceLoss::multiple_negatives_ranking:
      return {2, LabelKind::none};
    case SentenceLoss::mse:
      return {1, LabelKind::vector};
    case SentenceLoss::none:
      break;
  }
  switch (data.evaluator) {
    case SentenceEvaluator::accuracy:
      return {2, LabelKind::label_class};
    case SentenceEvaluator::triplet:
      return {3, LabelKind::none};
    case SentenceEvaluator::similarity:
    case SentenceEvaluator::none:
      break;
  }
  return {2, LabelKind::number};
}

std::string in_quotes(const std::string& text) {
  constexpr std::size_t longest = 40;
  return nlohmann::json(text.size() > longest ? text.substr(0, longest) + "..." : text)
      .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::optional<double> number_of(const std::string& text) {
  double value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc{} || stop != end || !std::isfinite(value)) return std::nullopt;
  return value;
}

// Puts the label into the row; returns the problem if it is not valid.
std::string take_number(const SentenceData& data, const std::string& text, SentenceRow& row) {
  const auto value = number_of(text);
  if (!value) return fmt::format("the label {} is not a number", in_quotes(text));
  row.label = *value / data.label_scale;
  return {};
}

std::string take_class(const SentenceData& data, const std::string& text, SentenceRow& row) {
  if (!data.labels.empty()) {
    const auto found = std::find(data.labels.begin(), data.labels.end(), text);
    if (found == data.labels.end()) {
      return fmt::format("the label {} is not one of {}", in_quotes(text),
                         fmt::join(data.labels, ", "));
    }
    row.label = static_cast<double>(found - data.labels.begin());
    return {};
  }
  const auto value = number_of(text);
  if (!value || *value != std::floor(*value) || *value < 0 ||
      *value >= static_cast<double>(data.classes)) {
    return fmt::format("the label {} is not a class: a whole number from 0 to {}", in_quotes(text),
                       data.classes - 1);
  }
  row.label = *value;
  return {};
}

std::string take_vector(const std::string& text, SentenceRow& row) {
  const nlohmann::json list = nlohmann::json::parse(text, nullptr, false);
  const bool numbers = list.is_array() && !list.empty() &&
                       std::all_of(list.begin(), list.end(),
                                   [](const nlohmann::json& one) { return one.is_number(); });
  if (!numbers) {
    return fmt::format("the embedding {} is not a list of numbers such as [0.5, -1.25]",
                       in_quotes(text));
  }
  for (const nlohmann::json& one : list) row.target.push_back(one.get<float>());
  return {};
}

std::string take_columns(const SentenceData& data, std::vector<std::string> columns,
                         SentenceRow& row) {
  const Columns wanted = columns_of(data);
  std::string label;
  if (wanted.label != LabelKind::none) {
    label = std::move(columns.back());
    columns.pop_back();
  }
  row.texts = std::move(columns);
  switch (wanted.label) {
    case LabelKind::none:
      return {};
    case LabelKind::number:
      return take_number(data, label, row);
    case LabelKind::label_class:
      return take_class(data, label, row);
    case LabelKind::vector:
      return take_vector(label, row);
  }
  return {};
}

TableOptions table_options(const SentenceData& data) {
  const Columns wanted = columns_of(data);
  const std::size_t count = wanted.texts + (wanted.label == LabelKind::none ? 0 : 1);
  TableOptions options = data.table;
  if (options.columns.empty()) {
    for (std::size_t i = 1; i <= count; ++i) options.columns.push_back(std::to_string(i));
  }
  TESSERA_CHECK(options.columns.size() == count, ErrorCode::configuration,
                "data file {}: {} columns are named, and this loss or evaluator takes {}: {} "
                "text{}{}",
                data.files.front(), options.columns.size(), count, wanted.texts,
                wanted.texts == 1 ? "" : "s",
                wanted.label == LabelKind::none     ? ""
                : wanted.label == LabelKind::vector ? " and an embedding"
                                                    : " and a label");
  return options;
}

}  // namespace

SentenceTable::SentenceTable(const SentenceData& data, const SentenceOrder& order)
    : data_(data),
      order_(order),
      table_(data.files, table_options(data), [&](const std::vector<std::string>& columns) {
        SentenceRow row;
        return take_columns(data, columns, row);
      }) {}

SentenceRow SentenceTable::read(std::int64_t row) const {
  SentenceRow result;
  const std::string problem = take_columns(data_, table_.read(row), result);
  TESSERA_CHECK(problem.empty(), ErrorCode::data, "{}: {}; the file has changed", place(row),
                problem);
  return result;
}

std::vector<std::int64_t> SentenceTable::rows_of(std::span<const std::int64_t> samples) const {
  const std::int64_t count = table_.rows();
  std::vector<std::int64_t> rows;
  std::vector<std::int64_t> group;  // the rows of the group that was sorted last
  std::int64_t group_begin = -1;    // the number of its first sample
  for (const std::int64_t sample : samples) {
    const std::int64_t epoch = sample / count;
    const std::int64_t index = sample % count;
    const Permutation permutation(static_cast<std::uint64_t>(count), order_.seed,
                                  static_cast<std::uint64_t>(epoch));
    const auto row_at = [&](std::int64_t at) {
      if (!order_.shuffle) return at;
      return static_cast<std::int64_t>(permutation(static_cast<std::uint64_t>(at)));
    };
    if (!order_.group_by_length) {
      rows.push_back(row_at(index));
      continue;
    }
    const std::int64_t begin = index / length_group * length_group;
    if (epoch * count + begin != group_begin) {
      group_begin = epoch * count + begin;
      group.clear();
      for (std::int64_t at = begin; at < std::min(begin + length_group, count); ++at) {
        group.push_back(row_at(at));
      }
      std::stable_sort(group.begin(), group.end(), [&](std::int64_t a, std::int64_t b) {
        return table_.bytes(a) > table_.bytes(b);
      });
    }
    rows.push_back(group[static_cast<std::size_t>(index - begin)]);
  }
  return rows;
}

std::uint64_t SentenceTable::fingerprint() const {
  std::uint64_t hash = mix(table_.fingerprint(), static_cast<std::uint64_t>(data_.loss));
  for (const std::string& label : data_.labels) {
    for (const char c : label + ",") hash = mix(hash, static_cast<unsigned char>(c));
  }
  return hash;
}

SentencePairs read_pairs(const SentenceTable& table) {
  SentencePairs pairs;
  for (std::int64_t i = 0; i < table.rows(); ++i) {
    SentenceRow row = table.read(i);
    pairs.first.push_back(std::move(row.texts[0]));
    pairs.second.push_back(std::move(row.texts[1]));
    pairs.labels.push_back(row.label);
  }
  return pairs;
}

SentenceTriplets read_triplets(const SentenceTable& table) {
  SentenceTriplets triplets;
  for (std::int64_t i = 0; i < table.rows(); ++i) {
    SentenceRow row = table.read(i);
    triplets.anchors.push_back(std::move(row.texts[0]));
    triplets.positives.push_back(std::move(row.texts[1]));
    triplets.negatives.push_back(std::move(row.texts[2]));
  }
  return triplets;
}

}  // namespace tessera::tasks
