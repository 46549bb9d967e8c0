// The texts or token ids of Parquet, Arrow and tar files and of JSON lines as one sequence of
// tokens.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "engine/data/corpus.h"
#include "engine/data/text_reader.h"
#include "engine/data/tokenizer.h"
#include "tasks/columnar/table_files.h"
#include "tasks/columnar/text_appender.h"

namespace tessera::tasks {

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

// The rows of a column, in the order of files and rows. A text is encoded by itself, and behind it
// comes the tokenizer's token that ends a text, or, if it has none, a newline, which belongs to the
// text. Lists of whole numbers are token ids, taken as they are; with the tokenizer `bytes` they
// are those of an unknown tokenizer. Conversations (conversations/conversation.h) become the text
// of the tokenizer's chat template, and nothing comes behind it.
struct TableText {
  std::vector<TableFile> files;  // all JSON lines, or all Arrow and Parquet
  // None: text, input_ids or tokens, or those of a conversation, or the only column of texts or
  // ids. Two are those of a prompt and a completion.
  std::vector<std::string> columns = {};
  std::string tokenizer = {};  // its folder, with the chat template; empty: there is none
};

// Writes them as a stream of `tessera tokenize` (engine/data/token_stream.h) and returns their
// number. `workers` threads encode; they do not change the ids. `between` is called between parts
// of the rows and may throw to stop. Error(data) with file and row: a null, an id outside the
// vocabulary, a column of another type; no row at all.
std::int64_t write_table_tokens(const TableText& table, const Tokenizer& tokenizer, int workers,
                                const TokenOutput& out, const std::function<void()>& between = {});

// The same for the rows of JSON lines that `reader` gives, as those of standard input; `table` has
// no files. Memory holds some MiB, and at least a line, of 64 MiB at most.
std::int64_t write_row_tokens(TextReader& reader, const TableText& table,
                              const Tokenizer& tokenizer, int workers, const TokenOutput& out,
                              const std::function<void()>& between = {});

// The purpose (DerivedFile) of a file with the tokens of these rows: it changes with the tokenizer,
// the columns and the chat template.
std::uint64_t tokens_purpose(const TableText& table, const Tokenizer& tokenizer);

// Opens the stream that write_table_tokens() makes, which is kept beside the files (DerivedFile).
std::shared_ptr<const Corpus> open_table_corpus(const TableText& table, const Tokenizer& tokenizer,
                                                int workers = 1);

}  // namespace tessera::tasks
