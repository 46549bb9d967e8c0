// Rows of text files: CSV, TSV, JSON lines, or one text in each line, and of Parquet, Arrow and tar
// files, whose rows become JSON lines in a file beside them, as compressed texts become plain ones
// (columnar/table_json.h). The rows of several files are concatenated. Rows are read on demand;
// memory holds only their places.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace tessera::tasks {

enum class TableFormat : std::uint8_t {
  automatic,  // by the name: .jsonl .ndjson .tsv .txt; else tsv if the first line has a tab
  csv,        // commas, and quotes as in RFC 4180: "a, ""b""", also over several lines
  tsv,        // tabs, and no quotes
  jsonl,      // one object in each line
  text,       // one text in each line
};

struct TableOptions {
  // Names of the header (keys, of jsonl) or numbers from 1, in the order of read()'s results.
  std::vector<std::string> columns = {};
  TableFormat format = TableFormat::automatic;
  std::optional<bool> header = {};  // the first line names columns; absent: if `columns` does
};

// Safe to use from several threads.
class Table {
 public:
  // The caller's check of a row's columns: returns the problem, or empty.
  using Check = std::function<std::string(const std::vector<std::string>& columns)>;

  // `files`: paths, or patterns as in a shell (*, ?, [a-z]), whose matches are taken in the order
  // of their names; folders of Parquet, Arrow and tar files. Every row is checked at once. A row
  // that is not UTF-8, is empty, lacks a column, has another number of columns than the header, or
  // fails `check`, is an Error(data) with file and line. Blank lines between JSON lines are passed
  // over.
  Table(const std::vector<std::string>& files, TableOptions options, const Check& check = {});
  ~Table();
  Table(const Table&) = delete;
  Table& operator=(const Table&) = delete;

  [[nodiscard]] std::int64_t rows() const;
  // The columns of a row. Error(data) if the file has become shorter.
  [[nodiscard]] std::vector<std::string> read(std::int64_t row) const;
  // "pairs.csv:12".
  [[nodiscard]] std::string place(std::int64_t row) const;
  // A measure of the row's length that needs no reading.
  [[nodiscard]] std::int64_t bytes(std::int64_t row) const;
  // Changes if a file's size or one of the sampled places changes, and with the columns.
  [[nodiscard]] std::uint64_t fingerprint() const;

 private:
  class File;
  struct Place {
    const File* file;
    std::size_t row;
  };
  [[nodiscard]] Place place_of(std::int64_t row) const;

  TableOptions options_;
  std::vector<std::unique_ptr<File>> files_;
  std::vector<std::int64_t> first_rows_;  // of each file, and one behind the last
};

}  // namespace tessera::tasks
