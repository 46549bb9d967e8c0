// The files that a data set names, and which of them are Parquet, Arrow IPC or tar archives.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tessera::tasks {

enum class TableFileKind : std::uint8_t {
  arrow,
  parquet,
  tar,         // samples of files (tar/tar_samples.h), perhaps compressed
  json_lines,  // an object in each line; find_table_files() finds none
};

// True for the kinds whose rows are JSON objects, and not columns.
inline bool has_json_rows(TableFileKind kind) {
  return kind == TableFileKind::tar || kind == TableFileKind::json_lines;
}

struct TableFile {
  std::string path;
  TableFileKind kind = TableFileKind::arrow;
  // The columns that folders named `name=value` give to all rows, as Hive and Spark write them.
  std::vector<std::pair<std::string, std::string>> partition;
};

// Expands a list of paths and patterns to paths. A match whose name begins with an underscore is
// left out, unless the last part of the pattern begins so, too. A pattern without a match is an
// Error(data).
std::vector<std::string> expand_files(const std::vector<std::string>& files);

// The Parquet, Arrow and tar files of these paths and patterns, each with its matches in the order
// of their names, and for a folder the files below it in the order of their whole paths. In a
// folder, files whose names begin with a dot or an underscore are left out, and so is what is
// neither. None if no name is a folder or such a file. Error(data) if there are other files among
// them, if tar archives and others are mixed, if a folder has none, if Spark has not finished it,
// or if it holds several splits of Hugging Face's datasets.
std::optional<std::vector<TableFile>> find_table_files(const std::vector<std::string>& names);

// These paths as files of JSON lines.
std::vector<TableFile> json_lines(const std::vector<std::string>& paths);
// The same, if the names of all say so (.jsonl, .ndjson, .json, and these with .gz or .zst).
std::optional<std::vector<TableFile>> find_json_lines(const std::vector<std::string>& paths);

}  // namespace tessera::tasks
