// The conversations of data files as tokens, found by their numbers.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/data/corpus.h"
#include "engine/data/tokenizer.h"
#include "tasks/columnar/derived_file.h"
#include "tasks/columnar/table_corpus.h"
#include "tasks/conversations/conversation_texts.h"
#include "tasks/conversations/preference.h"

namespace tessera::tasks {

// The kind of the rows of data files, and which of their tokens count. A row of preferences is two
// conversations that follow each other: the prompt with the chosen answer, and with the rejected
// one. An answer without a character has no token that counts.
enum class RowLoss : std::uint8_t { of_answers, of_all, of_preferences };

// The rows in the order of files and rows. They are encoded once: their tokens are kept in a file
// beside the data (DerivedFile), in which each is a number of 32 bits, twice its id, plus one if it
// counts. Behind all tokens come two numbers for each row, its tokens and the place of the first
// one that counts, and the number of rows. Safe to use from several threads.
class ConversationCorpus {
 public:
  // Error(data) with file and row: a row that is not a conversation, that the chat template
  // refuses, or whose answers are not found; no row at all. `loss_on: all` needs no answers.
  ConversationCorpus(const TableText& table, const Tokenizer& tokenizer, LossOn loss_on);
  ConversationCorpus(const TableText& table, const Tokenizer& tokenizer, RowLoss loss);

  [[nodiscard]] std::int64_t rows() const { return static_cast<std::int64_t>(firsts_.size()); }
  [[nodiscard]] std::int64_t tokens(std::int64_t row) const {
    return ends_[static_cast<std::size_t>(row) + 1] - ends_[static_cast<std::size_t>(row)];
  }
  // The first token that counts and has one before it, from which it is predicted; 0: there is
  // none.
  [[nodiscard]] std::int64_t first_that_counts(std::int64_t row) const {
    return firsts_[static_cast<std::size_t>(row)];
  }
  // The first tokens of a row.
  [[nodiscard]] ConversationTokens read(std::int64_t row, std::int64_t tokens) const;

  // Changes with the tokens and with those that count.
  [[nodiscard]] std::uint64_t fingerprint() const { return numbers_->fingerprint(); }
  // Where a row is, and who speaks in it: "text rows.jsonl, line 3, with the roles user, bot".
  // Reads the data files up to the row.
  [[nodiscard]] std::string describe(std::int64_t row) const;
  // The first data file.
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
  TableText table_;
  std::unique_ptr<const DerivedFile> file_;
  std::unique_ptr<const Corpus> numbers_;
  std::vector<std::int64_t> ends_;    // of the rows before each, and of all
  std::vector<std::int32_t> firsts_;  // by row
};

}  // namespace tessera::tasks
