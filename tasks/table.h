// Rows of text files: CSV, TSV, JSON lines, or a text a line. Of several files the rows follow each
// other. A row is read from its file where it is wanted; in memory are the places of the rows.
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
  automatic,  // by the name: .jsonl .ndjson .tsv .txt; else tsv where the first line has a tab
  csv,        // commas, and quotes as RFC 4180 has them: "a, ""b""", also over several lines
  tsv,        // tabs, and no quotes
  jsonl,      // an object a line
  text,       // a text a line
};

struct TableOptions {
  // Names of the header (keys, of jsonl) or numbers from 1, in the order in which read() gives
  // them.
  std::vector<std::string> columns = {};
  TableFormat format = TableFormat::automatic;
  std::optional<bool> header =
      {};  // whether the first line names columns; absent: where columns do
};

// Safe to use from several threads.
class Table {
 public:
  // What is checked about a row's columns by whoever knows them: a text that says what is wrong, or
  // an empty one.
  using Check = std::function<std::string(const std::vector<std::string>& columns)>;

  // `files`: paths, or patterns as the shell has them (*, ?, [a-z]), whose matches are taken in the
  // order of their names. Every row is looked at once: what is no UTF-8, empty, lacks a column, has
  // another number of them than the header, or fails `check`, is an Error(data) with file and line.
  Table(const std::vector<std::string>& files, TableOptions options, const Check& check = {});
  ~Table();
  Table(const Table&) = delete;
  Table& operator=(const Table&) = delete;

  [[nodiscard]] std::int64_t rows() const;
  // The columns of a row. A file that has become shorter is an Error(data).
  [[nodiscard]] std::vector<std::string> read(std::int64_t row) const;
  // "pairs.csv:12".
  [[nodiscard]] std::string place(std::int64_t row) const;
  // A measure of its length that needs no reading.
  [[nodiscard]] std::int64_t bytes(std::int64_t row) const;
  // Changes when a file does, in size or in one of the sampled places, and with the columns.
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
  std::vector<std::int64_t> first_rows_;  // of each file, and behind the last
};

// The paths that a list of paths and patterns stands for. A pattern without a match is an
// Error(data).
std::vector<std::string> expand_files(const std::vector<std::string>& files);

}  // namespace tessera::tasks
