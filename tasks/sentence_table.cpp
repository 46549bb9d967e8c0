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
  std::size_t labels = 1;  // columns of the label

  [[nodiscard]] std::size_t count() const {
    return texts + (label == LabelKind::none ? 0 : labels);
  }
};

// With the label that a file has if no teacher computes it.
Columns whole_columns_of(const SentenceData& data) {
  switch (data.loss) {
    case SentenceLoss::cosine_similarity:
      return {2, LabelKind::number};
    case SentenceLoss::softmax:
      return {2, LabelKind::label_class};
    case SentenceLoss::multiple_negatives_ranking:
      return {2, LabelKind::none};
    case SentenceLoss::mse:
      return {1, LabelKind::vector};
    case SentenceLoss::margin_mse:
      return {3, LabelKind::number, data.table.columns.size() == 5 ? 2U : 1U};
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

bool learns_from_teacher(SentenceLoss loss) {
  return loss == SentenceLoss::mse || loss == SentenceLoss::margin_mse;
}

Columns columns_of(const SentenceData& data) {
  const Columns whole = whole_columns_of(data);
  return is_taught(data) ? Columns{whole.texts, LabelKind::none} : whole;
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

// A label, or the difference of two.
std::string take_numbers(const SentenceData& data, const std::string& label,
                         const std::optional<std::string>& less, SentenceRow& row) {
  std::string problem = take_number(data, label, row);
  if (!less || !problem.empty()) return problem;
  const double whole = row.label;
  problem = take_number(data, *less, row);
  row.label = whole - row.label;
  return problem;
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
  const std::string label = columns.size() > wanted.texts ? columns[wanted.texts] : std::string();
  std::optional<std::string> second;
  if (wanted.labels > 1) second = columns.back();
  columns.resize(wanted.texts);
  row.texts = std::move(columns);
  switch (wanted.label) {
    case LabelKind::none:
      return {};
    case LabelKind::number:
      return take_numbers(data, label, second, row);
    case LabelKind::label_class:
      return take_class(data, label, row);
    case LabelKind::vector:
      return take_vector(label, row);
  }
  return {};
}

std::string_view label_text(const Columns& columns) {
  if (columns.label == LabelKind::none) return "";
  if (columns.label == LabelKind::vector) return " and an embedding";
  return columns.labels > 1 ? " and two scores" : " and a label";
}

TableOptions table_options(const SentenceData& data) {
  const Columns wanted = columns_of(data);
  TableOptions options = data.table;
  if (options.columns.empty()) {
    for (std::size_t i = 1; i <= wanted.count(); ++i) options.columns.push_back(std::to_string(i));
  }
  const bool teachable = data.has_teacher && learns_from_teacher(data.loss);
  TESSERA_CHECK(options.columns.size() == wanted.count(), ErrorCode::configuration,
                "data file {}: {} columns are named, and this loss or evaluator takes {}: {} "
                "text{}{}{}",
                data.files.front(), options.columns.size(), wanted.count(), wanted.texts,
                wanted.texts == 1 ? "" : "s", label_text(wanted),
                teachable ? ", or the texts alone, for the teacher" : "");
  return options;
}

}  // namespace

std::size_t texts_in_row(const SentenceData& data) {
  return whole_columns_of(data).texts;
}

bool is_taught(const SentenceData& data) {
  const std::size_t named = data.table.columns.size();
  return data.has_teacher && learns_from_teacher(data.loss) &&
         (named == 0 || named == texts_in_row(data));
}

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
  if (is_taught(data_)) hash = mix(hash, 1);
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
