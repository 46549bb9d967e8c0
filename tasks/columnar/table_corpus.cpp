// From rows to tokens.
#include "tasks/columnar/table_corpus.h"

#include <optional>
#include <span>
#include <utility>

#include "base/error.h"
#include "engine/data/permutation.h"
#include "engine/data/token_stream.h"
#include "tasks/columnar/derived_file.h"
#include "tasks/columnar/table_reader.h"

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

// The name of the column if the data set gives none.
std::string usual_column(const ArrowSchema& schema, const TableFile& file) {
  for (const char* const name : {"text", "input_ids", "tokens"}) {
    const auto column = find_column(schema.fields, name);
    if (column && is_token_column(*column->field)) return name;
  }
  std::vector<std::string> fitting;
  for (const ArrowField& field : schema.fields) {
    if (is_token_column(field)) fitting.push_back(field.name);
  }
  TESSERA_CHECK(fitting.size() == 1, ErrorCode::data,
                "data file {}: name the column of texts or token ids in columns; it has {}",
                file.path, column_names(schema));
  return fitting.front();
}

// Stands for the tokenizer of ids that come without its name.
class UnknownTokenizer final : public Tokenizer {
 public:
  [[nodiscard]] std::string_view name() const override { return ""; }
  [[nodiscard]] std::int64_t vocabulary_size() const override { return 0; }
  [[nodiscard]] std::vector<std::int32_t> encode(std::string_view) const override {
    misuse("an unknown tokenizer encodes nothing");
  }
  [[nodiscard]] std::string decode(std::span<const std::int32_t>) const override {
    misuse("an unknown tokenizer decodes nothing");
  }
};

// Takes chunks of rows and appends their tokens to a stream.
class TokenRows {
 public:
  TokenRows(const Tokenizer& tokenizer, int workers, const TokenOutput& out)
      : tokenizer_(tokenizer), workers_(workers), out_(out) {}

  void take(const TableChunk& chunk) {
    const TableChunk::Column& column = chunk.columns.front();
    TESSERA_CHECK(column.field != nullptr && is_token_column(*column.field), ErrorCode::data,
                  "data file {}: column {} is {}{}; texts and lists of token ids make tokens",
                  chunk.file->path, column.name,
                  column.field != nullptr ? "of the type " : "a folder's name",
                  column.field != nullptr ? column.field->type : "");
    const bool ids = is_id_list(*column.field);
    open(ids, chunk);
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

  std::int64_t finish() {
    if (texts_) texts_->finish();
    const bool shard = out_.shard.count > 0;
    if (!writer_ && shard) writer_.emplace(out_.path, tokenizer_, TextStamp{}, out_.shard);
    TESSERA_CHECK(writer_ && (shard || writer_->tokens() > 0), ErrorCode::data,
                  "the data files of {} have no tokens", out_.path.string());
    writer_->finish();
    return writer_->tokens();
  }

 private:
  void open(bool ids, const TableChunk& chunk) {
    if (!writer_) {
      ids_ = ids;
      const UnknownTokenizer unknown;
      const bool known = !ids || tokenizer_.name() != "bytes";
      const Tokenizer& named = known ? tokenizer_ : unknown;
      limit_ = known ? tokenizer_.vocabulary_size() : std::int64_t{1} << 31;
      writer_.emplace(out_.path, named, TextStamp{}, out_.shard);
      if (!ids) texts_.emplace(tokenizer_, workers_, *writer_);
    }
    TESSERA_CHECK(ids == ids_, ErrorCode::data,
                  "data file {}: column {} has {}, and the files before it have {}",
                  chunk.file->path, chunk.columns.front().name, ids ? "token ids" : "texts",
                  ids ? "texts" : "token ids");
  }

  void take_ids(const TableChunk& chunk, const TableChunk::Column& column) {
    row_ids_.clear();
    for (std::int64_t i = 0; i < chunk.rows; ++i) {
      TESSERA_CHECK(!column.values->has_null_items(i), ErrorCode::data,
                    "{}: an id of column {} is null", chunk.place(i), column.name);
      for (const std::int64_t id : column.values->integers(i)) {
        TESSERA_CHECK(id >= 0 && id < limit_, ErrorCode::data,
                      "{}: token {} of column {} is outside a vocabulary of {}; give the tokenizer "
                      "that made these ids",
                      chunk.place(i), id, column.name, limit_);
        row_ids_.push_back(static_cast<std::int32_t>(id));
      }
    }
    writer_->append(row_ids_);
  }

  void take_texts(const TableChunk& chunk, const TableChunk::Column& column) {
    for (std::int64_t i = 0; i < chunk.rows; ++i) texts_->add(column.values->text(i));
  }

  const Tokenizer& tokenizer_;
  int workers_;
  TokenOutput out_;
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
  TokenRows rows(tokenizer, workers, out);
  read_table(
      table.files,
      [&](const ArrowSchema& schema, const TableFile& file) -> std::vector<std::string> {
        return {table.column.empty() ? usual_column(schema, file) : table.column};
      },
      [&](const TableChunk& chunk) {
        if (between) between();
        rows.take(chunk);
      });
  return rows.finish();
}

std::shared_ptr<const Corpus> open_table_corpus(const TableText& table, const Tokenizer& tokenizer,
                                                int workers) {
  const std::int64_t end_of_text = tokenizer.end_of_text().value_or(-1);
  const std::uint64_t purpose =
      mix_text(mix(tokenizer.fingerprint(), static_cast<std::uint64_t>(end_of_text)), table.column);
  const DerivedFile stream(table.files, purpose, ".tokens", [&](const std::filesystem::path& path) {
    write_table_tokens(table, tokenizer, workers, {path});
  });
  return std::make_shared<Corpus>(stream.path(), tokenizer);
}

}  // namespace tessera::tasks
