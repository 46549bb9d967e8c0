// The fixtures of make_fixtures.py, and the rows that are read.
#pragma once

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/error.h"
#include "tasks/columnar/table_reader.h"

namespace tessera::tasks {

inline std::string columnar_fixture(const std::string& name) {
  const char* const source = std::getenv("TESSERA_SOURCE_DIR");
  if (source == nullptr) throw std::runtime_error("set TESSERA_SOURCE_DIR, as CTest does");
  return std::string(source) + "/tests/tasks/columnar/fixtures/" + name;
}

inline std::string bytes_of(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

// The lines of a fixture's .rows: first the names of the columns, then a list of values for each
// row, as pyarrow read them.
inline std::vector<nlohmann::json> expected_lines(const std::string& name) {
  std::ifstream stream(columnar_fixture(name + ".rows"));
  std::vector<nlohmann::json> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

// The values of these columns of all rows, a list for each row.
inline std::vector<nlohmann::json> read_rows(const std::vector<TableFile>& files,
                                             const std::vector<std::string>& columns) {
  std::vector<nlohmann::json> rows;
  read_table(
      files, [&](const ArrowSchema&, const TableFile&) { return columns; },
      [&](const TableChunk& chunk) {
        for (std::int64_t i = 0; i < chunk.rows; ++i) {
          nlohmann::json row = nlohmann::json::array();
          for (const TableChunk::Column& column : chunk.columns)
            row.push_back(nlohmann::json(column.json(i)));
          rows.push_back(std::move(row));
        }
      });
  return rows;
}

inline std::vector<nlohmann::json> read_rows(const std::string& path,
                                             const std::vector<std::string>& columns) {
  return read_rows(find_table_files({path}).value(), columns);
}

}  // namespace tessera::tasks
