// From rows to tokens.
#include "tasks/columnar/table_corpus.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <utility>

#include "base/error.h"
#include "engine/data/permutation.h"
#include "engine/data/token_stream.h"
#include "engine/data/tokenize_text.h"
#include "tasks/columnar/derived_file.h"
#include "tasks/columnar/table_reader.h"
#include "tasks/conversations/conversation.h"
#include "tasks/conversations/conversation_texts.h"

namespace tessera::tasks {
namespace {

bool is_id_list(const ArrowField& field) {
  const bool list = field.kind == ArrowKind::list || field.kind == ArrowKind::fixed_list;
  return list && !field.index && field.children.front().kind == ArrowKind::integer &&
         !field.children.front().index;
}

bool is_token_column(const ArrowField& field) {
  return field.kind == ArrowKind::text || is_id_list(field);
}

bool is_message_list(const ArrowField& field) {
  const bool list = field.kind == ArrowKind::list || field.kind == ArrowKind::fixed_list;
  return list && !field.index && field.children.front().kind == ArrowKind::structure;
}

const ArrowField* field_of(const ArrowSchema& schema, const std::string& name) {
  const auto column = find_column(schema.fields, name);
  return column ? column->field : nullptr;
}

// The columns of a conversation, if these are named, or if the file has them and none is named.
std::optional<ConversationColumns> conversation_in(const ArrowSchema& schema,
                                                   const std::vector<std::string>& named) {
  if (named.size() == 2) return ConversationColumns{named[0], named[1]};
  const std::vector<std::string> usual = {"messages", "conversations"};
  for (const std::string& name : named.empty() ? usual : named) {
    const ArrowField* const field = field_of(schema, name);
    if (field != nullptr && is_message_list(*field)) return ConversationColumns{name};
  }
  const bool both =
      field_of(schema, "prompt") != nullptr && field_of(schema, "completion") != nullptr;
  if (named.empty() && both) return ConversationColumns{"prompt", "completion"};
  return std::nullopt;
}

// The name of the column if the data set gives none; empty: a conversation.
std::string usual_column(const ArrowSchema& schema, const TableFile& file) {
  for (const char* const name : {"text", "input_ids", "tokens"}) {
    const auto column = find_column(schema.fields, name);
    if (column && is_token_column(*column->field)) return name;
  }
  if (conversation_in(schema, {})) return {};
  std::vector<std::string> fitting;
  for (const ArrowField& field : schema.fields) {
    if (is_token_column(field)) fitting.push_back(field.name);
  }
  TESSERA_CHECK(
      fitting.size() == 1, ErrorCode::data,
      "data file {}: name the column of texts, token ids or messages in columns; it has {}",
      file.path, column_names(schema));
  return fitting.front();
}

// Takes rows and appends their tokens to a stream.
class TokenRows {
 public:
  TokenRows(const TableText& table, const Tokenizer& tokenizer, int workers, const TokenOutput& out,
            std::function<void()> between)
      : table_(table),
        tokenizer_(tokenizer),
        workers_(workers),
        out_(out),
        between_(std::move(between)) {}

  // Returns the names of the columns to read of a file.
  std::vector<std::string> choose(const ArrowSchema& schema, const TableFile& file) {
    begin_file(file);
    conversation_.reset();
    std::string column =
        table_.columns.empty() ? usual_column(schema, file) : table_.columns.front();
    if (!table_.columns.empty() || column.empty()) {
      conversation_ = conversation_in(schema, table_.columns);
    }
    std::vector<std::string> names = {conversation_ ? conversation_->messages : column};
    if (conversation_ && !conversation_->completion.empty()) {
      names.push_back(conversation_->completion);
    }
    require_same_columns(names, file);
    if (!conversation_) return names;
    for (const char* const more : {tools_column, variables_column}) {
      const ArrowField* const field = field_of(schema, more);
      if (field != nullptr && !has_only_nulls(*field)) names.emplace_back(more);
    }
    return names;
  }

  void begin_file(const TableFile& file) {
    begin(stamp_of_text(file.path).modified_ns / 1'000'000'000);
  }
  // `time`: of templates that ask for one, in seconds since 1970.
  void begin(std::int64_t time) { conversations_.emplace(table_.tokenizer, time); }

  // A file without the column of the others is not read by another of its columns.
  void require_same_columns(const std::vector<std::string>& names, const TableFile& file) {
    if (columns_.empty()) columns_ = names;
    TESSERA_CHECK(names == columns_, ErrorCode::data,
                  "data file {}: its tokens would come from column {}, and those of the files "
                  "before come from {}; name the column in columns, or leave files out",
                  file.path, fmt::join(names, " and "), fmt::join(columns_, " and "));
  }

  // A row of JSON lines: a conversation, or a text or token ids in the named column.
  void take(const nlohmann::ordered_json& row, const TableFile& /*file*/,
            const std::string& place) {
    take(row, place);
  }
  void take(const nlohmann::ordered_json& row, const std::string& place) {
    if (between_) between_();
    const std::vector<std::string> names = member_names(row);
    if (const nlohmann::ordered_json* const value = value_of(row, names, place)) {
      if (value->is_string()) {
        require_kind(true, place);
        open(false, place, *json_column_);
        texts_->add(value->get_ref<const std::string&>());
        return;
      }
      if (is_ids(*value)) {
        open(true, place, *json_column_);
        take_ids(*value, *json_column_, place);
        return;
      }
    }
    const ConversationColumns columns = conversation_columns(names, table_.columns, place);
    require_kind(false, place);
    open(false, place, columns.messages);
    add(conversation_of(row, columns, place), place);
  }

  // The value of the column of texts or ids; null: there is none, it may be a conversation.
  const nlohmann::ordered_json* value_of(const nlohmann::ordered_json& row,
                                         const std::vector<std::string>& names,
                                         const std::string& place) {
    if (table_.columns.size() > 1) return nullptr;
    if (!json_column_) {
      json_column_ = table_.columns.empty() ? usual_member(row) : table_.columns.front();
    }
    const nlohmann::ordered_json* const value = member_at(row, *json_column_);
    TESSERA_CHECK(value != nullptr || table_.columns.empty(), ErrorCode::data,
                  "{}: no column {}; it has {}", place, *json_column_,
                  names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", ")));
    const bool is_of_column = !table_.columns.empty() || rows_are_texts_ == true || ids_;
    TESSERA_CHECK(value == nullptr || !value->is_null() || !is_of_column, ErrorCode::data,
                  "{}: column {} is null; leave such rows out", place, *json_column_);
    return value;
  }

  static std::string usual_member(const nlohmann::ordered_json& row) {
    for (const char* const name : {"text", "input_ids", "tokens"}) {
      if (row.contains(name)) return name;
    }
    return "text";
  }

  // An empty list is one of what the rows before have.
  [[nodiscard]] bool is_ids(const nlohmann::ordered_json& value) const {
    if (!value.is_array()) return false;
    if (!value.empty()) return value.front().is_number();
    return ids_ || json_column_ == "input_ids" || json_column_ == "tokens";
  }

  void take_ids(const nlohmann::ordered_json& list, const std::string& column,
                const std::string& place) {
    row_ids_.clear();
    for (const nlohmann::ordered_json& one : list) {
      const auto id = one.is_number_integer() ? one.get<std::int64_t>() : -1;
      TESSERA_CHECK(id >= 0 && id < limit_, ErrorCode::data,
                    "{}: {} in column {} is not a token id of a vocabulary of {}; give the "
                    "tokenizer that made these ids",
                    place, one.dump(), column, limit_);
      row_ids_.push_back(static_cast<std::int32_t>(id));
    }
    writer_->append(row_ids_);
  }

  // Texts get no template, so a column is of one kind.
  void require_kind(bool texts, const std::string& place) {
    if (!rows_are_texts_) rows_are_texts_ = texts;
    TESSERA_CHECK(*rows_are_texts_ == texts, ErrorCode::data,
                  "{}: column {} is {}, and the rows before have {}", place,
                  table_.columns.empty() ? "messages" : table_.columns.front(),
                  texts ? "a text" : "a list of messages", texts ? "lists of messages" : "texts");
  }

  void take(const TableChunk& chunk) {
    if (between_) between_();
    if (conversation_) return take_conversations(chunk);
    const TableChunk::Column& column = chunk.columns.front();
    TESSERA_CHECK(column.field != nullptr && is_token_column(*column.field), ErrorCode::data,
                  "data file {}: column {} is {}{}; texts and lists of token ids make tokens",
                  chunk.file->path, column.name,
                  column.field != nullptr ? "of the type " : "a folder's name",
                  column.field != nullptr ? column.field->type : "");
    const bool ids = is_id_list(*column.field);
    open(ids, "data file " + chunk.file->path, column.name);
    for (std::int64_t i = 0; i < chunk.rows; ++i) {
      TESSERA_CHECK(!column.values->is_null(i), ErrorCode::data,
                    "{}: column {} is null; leave such rows out", chunk.place(i), column.name);
    }
    if (ids) {
      take_ids(chunk, column);
    } else {
      take_texts(chunk, column);
    }
  }

  // `source` begins the message about no tokens.
  std::int64_t finish(const std::string& source) {
    if (texts_) texts_->finish();
    const bool shard = out_.shard.count > 0;
    if (!writer_ && shard) writer_.emplace(out_.path, tokenizer_, TextStamp{}, out_.shard);
    TESSERA_CHECK(writer_ && (shard || writer_->tokens() > 0), ErrorCode::data,
                  "{} gives no tokens", source);
    writer_->finish();
    return writer_->tokens();
  }

 private:
  void take_conversations(const TableChunk& chunk) {
    open(false, "data file " + chunk.file->path, chunk.columns.front().name);
    for (std::int64_t i = 0; i < chunk.rows; ++i) {
      nlohmann::ordered_json row = nlohmann::ordered_json::object();
      for (const TableChunk::Column& column : chunk.columns) row[column.name] = column.json(i);
      const std::string place = chunk.place(i);
      add(conversation_of(row, *conversation_, place), place);
    }
  }

  void add(const ConversationRow& row, const std::string& place) {
    const ConversationText made = conversations_->text(row, place);
    if (made.needs_end) {
      texts_->add(made.text);
    } else {
      texts_->add_whole(made.text);
    }
  }

  void open(bool ids, const std::string& place, const std::string& column) {
    if (!writer_) {
      ids_ = ids;
      const UnknownTokenizer unknown;
      const bool known = !ids || tokenizer_.name() != "bytes";
      const Tokenizer& named = known ? tokenizer_ : unknown;
      limit_ = known ? tokenizer_.vocabulary_size() : std::int64_t{1} << 31;
      writer_.emplace(out_.path, named, TextStamp{}, out_.shard);
      if (!ids) texts_.emplace(tokenizer_, workers_, *writer_);
    }
    TESSERA_CHECK(ids == ids_, ErrorCode::data, "{}: column {} has {}, and the rows before have {}",
                  place, column, ids ? "token ids" : "texts", ids ? "texts" : "token ids");
  }

  void take_ids(const TableChunk& chunk, const TableChunk::Column& column) {
    row_ids_.clear();
    for (std::int64_t i = 0; i < chunk.rows; ++i) {
      TESSERA_CHECK(!column.values->has_null_items(i), ErrorCode::data,
                    "{}: an id of column {} is null", chunk.place(i), column.name);
      const std::span<const std::int64_t> ids = column.values->integers(i);
      const std::size_t before = row_ids_.size();
      row_ids_.resize(before + ids.size());
      if (!narrow(ids, std::span(row_ids_).subspan(before))) refuse_unknown(ids, chunk, i);
    }
    writer_->append(row_ids_);
  }

  // False if an id is outside the vocabulary. The loop has no break and compares 32 bits, so the
  // compiler vectorises it for every processor.
  [[nodiscard]] bool narrow(std::span<const std::int64_t> ids, std::span<std::int32_t> out) const {
    const auto last = static_cast<std::int32_t>(limit_ - 1);
    std::uint64_t bits = 0;
    bool known = true;
    for (std::size_t k = 0; k < ids.size(); ++k) {
      bits |= static_cast<std::uint64_t>(ids[k]);
      out[k] = static_cast<std::int32_t>(ids[k]);
      known &= out[k] <= last;
    }
    return known && bits >> 31 == 0;
  }

  [[noreturn]] void refuse_unknown(std::span<const std::int64_t> ids, const TableChunk& chunk,
                                   std::int64_t row) const {
    const auto outside = std::find_if(ids.begin(), ids.end(),
                                      [&](std::int64_t id) { return id < 0 || id >= limit_; });
    fail(ErrorCode::data,
         "{}: token {} of column {} is outside a vocabulary of {}; give the tokenizer that made "
         "these ids",
         chunk.place(row), *outside, chunk.columns.front().name, limit_);
  }

  void take_texts(const TableChunk& chunk, const TableChunk::Column& column) {
    for (std::int64_t i = 0; i < chunk.rows; ++i) texts_->add(column.values->text(i));
  }

  const TableText& table_;
  const Tokenizer& tokenizer_;
  int workers_;
  TokenOutput out_;
  std::function<void()> between_;
  std::optional<ConversationColumns> conversation_;  // of the file that is read
  std::vector<std::string> columns_;                 // of all files; empty: none was read yet
  std::optional<std::string> json_column_;           // of the rows of JSON, from the first one on
  std::optional<bool> rows_are_texts_;               // those of JSON lines, or conversations
  std::optional<ConversationTexts> conversations_;
  bool ids_ = false;
  std::int64_t limit_ = 0;
  std::vector<std::int32_t> row_ids_;
  std::optional<TokenStreamWriter> writer_;
  std::optional<TextAppender> texts_;
};

}  // namespace

std::int64_t write_table_tokens(const TableText& table, const Tokenizer& tokenizer, int workers,
                                const TokenOutput& out, const std::function<void()>& between) {
  TESSERA_REQUIRE(workers > 0, "{} workers", workers);
  TokenRows rows(table, tokenizer, workers, out, between);
  read_rows(table.files, rows);
  const std::string& last = table.files.back().path;
  return rows.finish(table.files.size() == 1
                         ? "data file " + last
                         : fmt::format("data files {} to {}", table.files.front().path, last));
}

std::int64_t write_row_tokens(TextReader& reader, const TableText& table,
                              const Tokenizer& tokenizer, int workers, const TokenOutput& out,
                              const std::function<void()>& between) {
  TESSERA_REQUIRE(workers > 0, "{} workers", workers);
  TokenRows rows(table, tokenizer, workers, out, between);
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  rows.begin(std::chrono::duration_cast<std::chrono::seconds>(now).count());
  for_each_json_row(
      TableFileKind::json_lines, reader,
      [&](const nlohmann::ordered_json& row, const std::string& place) { rows.take(row, place); });
  return rows.finish(reader.name());
}

std::uint64_t tokens_purpose(const TableText& table, const Tokenizer& tokenizer) {
  const std::int64_t end_of_text = tokenizer.end_of_text().value_or(-1);
  std::uint64_t purpose = mix(tokenizer.fingerprint(), static_cast<std::uint64_t>(end_of_text));
  purpose = mix_text(purpose, table.columns.empty() ? "" : table.columns.front());
  if (table.columns.size() > 1) purpose = mix_text(purpose, table.columns.back());
  if (const std::uint64_t chat = templates_fingerprint(table.tokenizer))
    purpose = mix(purpose, chat);
  return purpose;
}

std::shared_ptr<const Corpus> open_table_corpus(const TableText& table, const Tokenizer& tokenizer,
                                                int workers) {
  const DerivedFile stream(table.files, tokens_purpose(table, tokenizer), ".tokens",
                           [&](const std::filesystem::path& path) {
                             write_table_tokens(table, tokenizer, workers, {path});
                           });
  return std::make_shared<Corpus>(stream.path(), tokenizer);
}

}  // namespace tessera::tasks
