// From rows to numbers, and back.
#include "tasks/columnar/conversation_corpus.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <utility>

#include "base/error.h"
#include "engine/data/token_stream.h"
#include "engine/data/tokenize_text.h"
#include "tasks/columnar/table_reader.h"

namespace tessera::tasks {
namespace {

using nlohmann::ordered_json;

// Takes rows and appends their numbers to a stream.
class ConversationNumbers {
 public:
  ConversationNumbers(const TableText& table, const Tokenizer& tokenizer, RowLoss loss,
                      const std::filesystem::path& path)
      : table_(table),
        tokenizer_(tokenizer),
        loss_(loss),
        writer_(path, UnknownTokenizer(), TextStamp{}) {}

  void begin_file(const TableFile& file) {
    texts_.emplace(table_.tokenizer, stamp_of_text(file.path).modified_ns / 1'000'000'000);
  }

  // Returns the names of the columns to read of a file.
  std::vector<std::string> choose(const ArrowSchema& schema, const TableFile& file) {
    begin_file(file);
    std::vector<std::string> names;
    for (const ArrowField& field : schema.fields) names.push_back(field.name);
    find_columns(names, "data file " + file.path);
    std::vector<std::string> chosen;
    const auto read = [&](const std::string& name) {
      if (!name.empty()) chosen.push_back(name);
    };
    if (loss_ == RowLoss::of_preferences) {
      read(pair_columns_.prompt);
      read(pair_columns_.chosen);
      read(pair_columns_.rejected);
    } else {
      read(columns_.messages);
      read(columns_.completion);
    }
    for (const char* const more : {tools_column, variables_column}) {
      const auto found = find_column(schema.fields, more);
      if (found && !has_only_nulls(*found->field)) chosen.emplace_back(more);
    }
    return chosen;
  }

  void take(const TableChunk& chunk) {
    for (std::int64_t i = 0; i < chunk.rows; ++i) {
      ordered_json row = ordered_json::object();
      for (const TableChunk::Column& column : chunk.columns) row[column.name] = column.json(i);
      add(row, chunk.place(i));
    }
  }

  void take(const ordered_json& row, const TableFile& /*file*/, const std::string& place) {
    const std::vector<std::string> names = member_names(row);
    find_columns(names, place);
    add(row, place);
  }

  void finish() {
    TESSERA_CHECK(!table_of_rows_.empty(), ErrorCode::data, "data file {} has no {}",
                  table_.files.front().path,
                  loss_ == RowLoss::of_preferences ? "pairs of answers" : "conversations");
    table_of_rows_.push_back(static_cast<std::int32_t>(table_of_rows_.size() / 2));
    writer_.append(table_of_rows_);
    writer_.finish();
  }

 private:
  void find_columns(const std::vector<std::string>& names, const std::string& place) {
    if (loss_ == RowLoss::of_preferences) {
      pair_columns_ = preference_columns(names, table_.columns, place);
    } else {
      columns_ = conversation_columns(names, table_.columns, place);
    }
  }

  void add(const ordered_json& row, const std::string& place) {
    if (loss_ != RowLoss::of_preferences) {
      add(tokens_of(conversation_of(row, columns_, place), place));
      return;
    }
    const PreferenceRow pair = preference_of(row, pair_columns_, place);
    add(tokens_of_preference(pair.chosen, place));
    add(tokens_of_preference(pair.rejected, place));
  }

  // Without an answer the token that ends the text does not count either.
  ConversationTokens tokens_of_preference(const ConversationRow& row, const std::string& place) {
    ConversationTokens tokens = tokens_of(row, place);
    if (row.conversation.messages.is_null() && row.completion.empty()) {
      tokens.counts.assign(tokens.ids.size(), false);
    }
    return tokens;
  }

  void add(const ConversationTokens& tokens) {
    numbers_.clear();
    std::int32_t first = 0;
    for (std::size_t i = 0; i < tokens.ids.size(); ++i) {
      const bool counts = tokens.counts[i];
      if (counts && i > 0 && first == 0) first = static_cast<std::int32_t>(i);
      numbers_.push_back(2 * tokens.ids[i] + (counts ? 1 : 0));
    }
    writer_.append(numbers_);
    table_of_rows_.push_back(static_cast<std::int32_t>(tokens.ids.size()));
    table_of_rows_.push_back(first);
  }

  ConversationTokens tokens_of(const ConversationRow& row, const std::string& place) {
    if (loss_ != RowLoss::of_all) {
      const ConversationText text = texts_->answered_text(row, place);
      try {
        return tokens_of_answers(text, tokenizer_);
      } catch (const Error& problem) {
        throw Error(problem.code(), place + ": " + problem.what());
      }
    }
    ConversationText text = texts_->text(row, place);
    const auto end = text.needs_end ? tokenizer_.end_of_text() : std::nullopt;
    if (text.needs_end && !end) text.text += '\n';
    ConversationTokens tokens{tokenizer_.encode(text.text), {}};
    if (end) tokens.ids.push_back(*end);
    tokens.counts.assign(tokens.ids.size(), true);
    return tokens;
  }

  const TableText& table_;
  const Tokenizer& tokenizer_;
  RowLoss loss_;
  // Those of the file that is read: one of the two is set.
  ConversationColumns columns_;
  PreferenceColumns pair_columns_;
  std::optional<ConversationTexts> texts_;
  std::vector<std::int32_t> numbers_;
  std::vector<std::int32_t> table_of_rows_;
  TokenStreamWriter writer_;
};

std::string roles_in(const ConversationRow& row) {
  constexpr std::size_t named = 8;
  std::vector<std::string> roles;
  if (row.conversation.messages.is_null()) return "with a completion that has no text";
  for (const ordered_json& message : row.conversation.messages) {
    std::string role = message.at("role").get<std::string>();
    if (std::find(roles.begin(), roles.end(), role) == roles.end()) roles.push_back(role);
  }
  const std::string more = roles.size() > named ? ", ..." : "";
  roles.resize(std::min(roles.size(), named));
  return fmt::format("with the role{} {}{}", roles.size() == 1 ? "" : "s", fmt::join(roles, ", "),
                     more);
}

// Takes rows up to one of them, and ends the reading there with FoundRow.
struct FoundRow {
  std::string description;
};

class RowFinder {
 public:
  RowFinder(const TableText& table, std::int64_t row) : table_(table), before_(row) {}

  void begin_file(const TableFile& /*file*/) {}
  std::vector<std::string> choose(const ArrowSchema& schema, const TableFile& file) {
    std::vector<std::string> names;
    for (const ArrowField& field : schema.fields) names.push_back(field.name);
    columns_ = conversation_columns(names, table_.columns, "data file " + file.path);
    std::vector<std::string> chosen = {columns_.messages};
    if (!columns_.completion.empty()) chosen.push_back(columns_.completion);
    return chosen;
  }
  void take(const TableChunk& chunk) {
    if (before_ < chunk.rows) {
      ordered_json row = ordered_json::object();
      for (const TableChunk::Column& column : chunk.columns)
        row[column.name] = column.json(before_);
      found(row, columns_, chunk.place(before_));
    }
    before_ -= chunk.rows;
  }
  void take(const ordered_json& row, const TableFile& /*file*/, const std::string& place) {
    if (before_-- > 0) return;
    const std::vector<std::string> names = member_names(row);
    found(row, conversation_columns(names, table_.columns, place), place);
  }

 private:
  [[noreturn]] static void found(const ordered_json& row, const ConversationColumns& columns,
                                 const std::string& place) {
    throw FoundRow{place + ", " + roles_in(conversation_of(row, columns, place))};
  }

  const TableText& table_;
  ConversationColumns columns_;
  std::int64_t before_;  // rows before the one that is looked for
};

void write_numbers(const TableText& table, const Tokenizer& tokenizer, RowLoss loss,
                   const std::filesystem::path& path) {
  ConversationNumbers numbers(table, tokenizer, loss, path);
  read_rows(table.files, numbers);
  numbers.finish();
}

// Names of what is made of the rows.
const char* purpose_of(RowLoss loss) {
  switch (loss) {
    case RowLoss::of_answers:
      return "answers";
    case RowLoss::of_all:
      return "all";
    case RowLoss::of_preferences:
      return "preferences";
  }
  misuse("a row has no such loss");
}

std::unique_ptr<DerivedFile> make_numbers(const TableText& table, const Tokenizer& tokenizer,
                                          RowLoss loss) {
  const std::uint64_t purpose = mix_text(tokens_purpose(table, tokenizer), purpose_of(loss));
  return std::make_unique<DerivedFile>(
      table.files, purpose, loss == RowLoss::of_preferences ? ".preferences" : ".conversations",
      [&](const std::filesystem::path& path) { write_numbers(table, tokenizer, loss, path); });
}

RowLoss loss_of(LossOn loss_on) {
  return loss_on == LossOn::answers ? RowLoss::of_answers : RowLoss::of_all;
}

}  // namespace

ConversationCorpus::ConversationCorpus(const TableText& table, const Tokenizer& tokenizer,
                                       LossOn loss_on)
    : ConversationCorpus(table, tokenizer, loss_of(loss_on)) {}

ConversationCorpus::ConversationCorpus(const TableText& table, const Tokenizer& tokenizer,
                                       RowLoss loss)
    : path_(table.files.front().path),
      table_(table),
      file_(make_numbers(table, tokenizer, loss)),
      numbers_(std::make_unique<Corpus>(file_->path(), ByteTokenizer())) {
  const std::int64_t all = numbers_->tokens();
  std::int32_t rows = 0;
  numbers_->read(all - 1, std::span(&rows, 1));
  const std::int64_t table_begin = all - 1 - 2 * static_cast<std::int64_t>(rows);
  constexpr std::int64_t at_once = 1 << 16;
  std::vector<std::int32_t> part;
  ends_ = {0};
  ends_.reserve(static_cast<std::size_t>(rows) + 1);
  firsts_.reserve(static_cast<std::size_t>(rows));
  for (std::int64_t row = 0; row < rows; row += at_once) {
    part.resize(static_cast<std::size_t>(2 * std::min<std::int64_t>(at_once, rows - row)));
    numbers_->read(table_begin + 2 * row, part);
    for (std::size_t i = 0; i < part.size(); i += 2) {
      ends_.push_back(ends_.back() + part[i]);
      firsts_.push_back(part[i + 1]);
    }
  }
  TESSERA_CHECK(ends_.back() == table_begin, ErrorCode::data,
                "{}: the file is damaged; remove it, and it is made again", file_->path().string());
}

std::string ConversationCorpus::describe(std::int64_t row) const {
  RowFinder finder(table_, row);
  try {
    read_rows(table_.files, finder);
  } catch (const FoundRow& found) {
    return found.description;
  }
  fail(ErrorCode::data, "data file {} became shorter while it was in use", path_);
}

ConversationTokens ConversationCorpus::read(std::int64_t row, std::int64_t tokens) const {
  ConversationTokens read;
  read.ids.resize(static_cast<std::size_t>(tokens));
  read.counts.resize(read.ids.size());
  numbers_->read(ends_[static_cast<std::size_t>(row)], read.ids);
  for (std::size_t i = 0; i < read.ids.size(); ++i) {
    read.counts[i] = read.ids[i] % 2 != 0;
    read.ids[i] /= 2;
  }
  return read;
}

}  // namespace tessera::tasks
