// Splits rows: quotes, tabs, JSON, and UTF-8.
#include "tasks/table_rows.h"

#include <fmt/format.h>
#include <cstring>
#include <nlohmann/json.hpp>

#include "checkpoint/io/json.h"

namespace tessera::tasks {
namespace {

std::size_t line_end(std::string_view text, std::size_t begin) {
  const std::size_t newline = text.find('\n', begin);
  return newline == std::string_view::npos ? text.size() : newline + 1;
}

// Bytes of the well-formed sequence at the beginning of the text; 0: it is malformed.
std::size_t sequence_length(std::string_view text) {
  const auto byte = [&](std::size_t i) {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U;
  };
  const auto follows = [&](std::size_t i) { return (byte(i) & 0xC0U) == 0x80U; };
  const unsigned first = byte(0);
  if (first < 0x80) return 1;
  if (first < 0xC2) return 0;
  if (first < 0xE0) return follows(1) ? 2 : 0;
  if (first < 0xF0) {
    const bool overlong = first == 0xE0 && byte(1) < 0xA0;
    const bool surrogate = first == 0xED && byte(1) >= 0xA0;
    return !overlong && !surrogate && follows(1) && follows(2) ? 3 : 0;
  }
  if (first > 0xF4) return 0;
  const bool overlong = first == 0xF0 && byte(1) < 0x90;
  const bool beyond = first == 0xF4 && byte(1) >= 0x90;
  return !overlong && !beyond && follows(1) && follows(2) && follows(3) ? 4 : 0;
}

Fields split_csv(std::string_view row) {
  Fields fields;
  for (std::size_t at = 0;; ++at) {  // at the beginning of a field
    std::string value;
    if (at < row.size() && row[at] == '"') {
      for (++at;; ++at) {
        if (at >= row.size()) return {{}, "a quote is not closed"};
        if (row[at] != '"') {
          value += row[at];
        } else if (at + 1 < row.size() && row[at + 1] == '"') {
          value += row[at++];
        } else {
          break;
        }
      }
      ++at;
      if (at < row.size() && row[at] != ',') {
        return {{}, "text behind a closing quote; a quote in a quoted text is written twice"};
      }
    } else {
      const std::size_t comma = std::min(row.find(',', at), row.size());
      value = row.substr(at, comma - at);
      at = comma;
    }
    fields.values.push_back(std::move(value));
    if (at >= row.size()) return fields;
  }
}

Fields split_tsv(std::string_view row) {
  Fields fields;
  for (std::size_t at = 0;;) {
    const std::size_t tab = row.find('\t', at);
    fields.values.emplace_back(row.substr(at, tab - at));
    if (tab == std::string_view::npos) return fields;
    at = tab + 1;
  }
}

}  // namespace

std::optional<std::size_t> malformed_utf8(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    std::uint64_t word = 0;
    if (text.size() - at >= sizeof word) {  // most text is ASCII
      std::memcpy(&word, text.data() + at, sizeof word);
      if ((word & 0x8080808080808080U) == 0) {
        at += sizeof word;
        continue;
      }
    }
    const std::size_t length = sequence_length(text.substr(at));
    if (length == 0) return at;
    at += length;
  }
  return std::nullopt;
}

std::optional<std::size_t> row_end(std::string_view text, std::size_t begin, TableFormat format) {
  if (format != TableFormat::csv) return line_end(text, begin);
  // Quotes count only at the beginning of a field, as in split_csv().
  bool quoted = false;
  bool opens = true;  // at the beginning of a field
  for (std::size_t at = begin; at < text.size(); ++at) {
    const char c = text[at];
    if (quoted) {
      if (c != '"') continue;
      const bool doubled = at + 1 < text.size() && text[at + 1] == '"';
      if (doubled) ++at;
      quoted = doubled;
      continue;
    }
    if (c == '\n') return at + 1;
    quoted = c == '"' && opens;
    opens = c == ',';
  }
  return quoted ? std::nullopt : std::optional(text.size());
}

Fields split_row(std::string_view row, TableFormat format) {
  if (format == TableFormat::csv) return split_csv(row);
  if (format == TableFormat::tsv) return split_tsv(row);
  return {{std::string(row)}, {}};
}

Fields pick_json(std::string_view row, const std::vector<std::string>& keys) {
  nlohmann::json object;
  try {
    object = nlohmann::json::parse(row);
  } catch (const nlohmann::json::parse_error& error) {
    const std::string problem = checkpoint::lone_surrogate_problem(row, error.byte);
    return {{}, problem.empty() ? "not a JSON object" : problem};
  }
  if (object.is_array()) {
    return {{},
            "a JSON array, and not an object; each line of JSON lines has one; a file that is one "
            "array becomes JSON lines with: jq -c '.[]' FILE > rows.jsonl"};
  }
  if (!object.is_object()) return {{}, "not a JSON object"};
  Fields fields;
  for (const std::string& key : keys) {
    const auto found = object.find(key);
    if (found == object.end() || found->is_null()) {
      return {{}, fmt::format("no {}", key)};
    }
    fields.values.push_back(found->is_string() ? found->get<std::string>() : found->dump());
  }
  return fields;
}

}  // namespace tessera::tasks
