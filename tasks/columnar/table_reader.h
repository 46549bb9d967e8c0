// The rows of Parquet, Arrow and tar files and of JSON lines in their order, some at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/data/text_reader.h"
#include "tasks/columnar/arrow/arrow_schema.h"
#include "tasks/columnar/arrow/arrow_values.h"
#include "tasks/columnar/table_files.h"

namespace tessera::tasks {

// Some rows of one file. Valid during the call that gets it.
struct TableChunk {
  // A column of the file, or one value for all rows, which a folder's name gives.
  struct Column {
    std::string name;                   // as it was asked for
    const ArrowField* field = nullptr;  // null: `value`
    std::optional<ArrowValues> values = {};
    std::string value = {};

    [[nodiscard]] nlohmann::ordered_json json(std::int64_t row) const;
  };

  const TableFile* file = nullptr;
  std::int64_t first_row = 0;  // in the file, from 0
  std::int64_t rows = 0;
  std::vector<Column> columns;

  // "part-0.parquet, row 12": rows count from 1, as lines do.
  [[nodiscard]] std::string place(std::int64_t row) const;
};

// The names of the columns to read in a file that has these columns.
using ChooseColumns =
    std::function<std::vector<std::string>(const ArrowSchema& schema, const TableFile& file)>;

// Hands out all rows of all files, in the files' order. Memory holds a few MiB, and at least a row;
// a compressed buffer of an Arrow file is held whole. Parquet is read by a helper
// (parquet_helper.h). Throws Error(data) with the file: a column that is missing (a path with dots,
// or a number from 1), or of a type that is not read; a damaged or truncated file.
void read_table(const std::vector<TableFile>& files, const ChooseColumns& choose,
                const std::function<void(const TableChunk&)>& take);

// Hands out the rows of a file of JSON lines, or the samples of a tar archive.
void for_each_json_row(
    TableFileKind kind, TextReader& reader,
    const std::function<void(const nlohmann::ordered_json& row, const std::string& place)>& take);

// The same for files of any kind: rows.choose(schema, file) and rows.take(chunk) as above; for JSON
// lines and tar archives rows.begin_file(file), and rows.take(object, file, place) for each row.
template <class Rows>
void read_rows(const std::vector<TableFile>& files, Rows& rows) {
  if (!has_json_rows(files.front().kind)) {
    read_table(
        files,
        [&](const ArrowSchema& schema, const TableFile& file) { return rows.choose(schema, file); },
        [&](const TableChunk& chunk) { rows.take(chunk); });
    return;
  }
  for (const TableFile& file : files) {
    rows.begin_file(file);
    TextReader reader(file.path);
    for_each_json_row(file.kind, reader,
                      [&](const nlohmann::ordered_json& row, const std::string& place) {
                        rows.take(row, file, place);
                      });
  }
}

}  // namespace tessera::tasks
