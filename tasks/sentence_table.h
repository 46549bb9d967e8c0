// A data set of sentences: a table whose columns are texts and a label, in the order of an epoch.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tasks/evaluators.h"
#include "tasks/sentence_pairs.h"
#include "tasks/table.h"

namespace tessera::tasks {

struct SentenceRow {
  std::vector<std::string> texts;
  double label = 0;           // a number, or a class
  std::vector<float> target;  // of mse
};

struct SentenceOrder {
  bool shuffle = false;
  bool group_by_length = false;
  std::uint64_t seed = 0;
};

// Safe to use from several threads.
class SentenceTable {
 public:
  // Throws Error(data) for an invalid label, with file and line.
  explicit SentenceTable(const SentenceData& data, const SentenceOrder& order = {});

  [[nodiscard]] std::int64_t rows() const { return table_.rows(); }
  [[nodiscard]] SentenceRow read(std::int64_t row) const;
  [[nodiscard]] std::string place(std::int64_t row) const { return table_.place(row); }
  // The rows of samples with these numbers, which count on over epochs.
  [[nodiscard]] std::vector<std::int64_t> rows_of(std::span<const std::int64_t> samples) const;
  [[nodiscard]] const SentenceData& data() const { return data_; }
  [[nodiscard]] std::uint64_t fingerprint() const;

 private:
  SentenceData data_;
  SentenceOrder order_;
  Table table_;
};

// The texts in a row.
std::size_t texts_in_row(const SentenceData& data);
// True if the teacher computes the targets of the rows, which have no column for them.
bool is_taught(const SentenceData& data);

// All rows of a table that has an evaluator: two texts and a label, or three texts.
SentencePairs read_pairs(const SentenceTable& table);
SentenceTriplets read_triplets(const SentenceTable& table);

}  // namespace tessera::tasks
