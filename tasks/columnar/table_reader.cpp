// Columns by name, and batches in parts of bounded size.
#include "tasks/columnar/table_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/error.h"
#include "tasks/columnar/arrow/arrow_input.h"
#include "tasks/columnar/arrow/arrow_reader.h"
#include "tasks/columnar/json_rows.h"
#include "tasks/columnar/parquet_helper.h"
#include "tasks/columnar/tar/tar_samples.h"

namespace tessera::tasks {
namespace {

constexpr std::int64_t most_rows = 8192;  // of a chunk
// The bytes of a chunk's column: its numbers stay in a core's cache while they are used.
constexpr std::int64_t most_bytes = 512 << 10;
// Rows of a chunk with structs, because the texts in them are not counted.
constexpr std::int64_t most_rows_of_structs = 256;
constexpr std::string_view null_partition = "__HIVE_DEFAULT_PARTITION__";

// A number from 1 becomes the name of that column, unless a column has it as its name.
std::string column_of_number(const std::string& name, const ArrowSchema& schema) {
  std::size_t number = 0;
  const char* const end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data(), end, number);
  const bool known = find_column(schema.fields, name).has_value();
  if (known || error != std::errc{} || stop != end) return name;
  if (number == 0 || number > schema.fields.size()) return name;
  return schema.fields[number - 1].name;
}

class FileRows {
 public:
  FileRows(const TableFile& file, const std::function<void(const TableChunk&)>& take)
      : file_(file), take_(take) {
    chunk_.file = &file_;
  }

  // The columns to ask a helper for.
  std::vector<std::string> choose(const ChooseColumns& choose, const ArrowSchema& schema) {
    std::vector<std::string> asked;
    for (const std::string& wanted : choose(schema, file_)) {
      const std::string name = column_of_number(wanted, schema);
      if (find_column(schema.fields, name)) {
        if (std::find(asked.begin(), asked.end(), name) == asked.end()) asked.push_back(name);
        chunk_.columns.push_back({wanted});
        names_.push_back(name);
        continue;
      }
      const auto folder = std::find_if(file_.partition.begin(), file_.partition.end(),
                                       [&](const auto& one) { return one.first == name; });
      TESSERA_CHECK(folder != file_.partition.end(), ErrorCode::data,
                    "data file {} has no column {}; it has {}", file_.path, wanted,
                    column_names(schema));
      TESSERA_CHECK(folder->second != null_partition, ErrorCode::data,
                    "data file {}: column {} is null in its folder's name", file_.path, name);
      chunk_.columns.push_back({wanted, nullptr, std::nullopt, folder->second});
      names_.emplace_back(std::nullopt);
    }
    // The number of rows is needed even if only names of folders are.
    if (asked.empty() && !schema.fields.empty()) asked.push_back(schema.fields.front().name);
    return asked;
  }

  // The places of the columns in what is read.
  void find(ArrowReader& reader) {
    const ArrowSchema& schema = reader.schema();
    for (std::size_t i = 0; i < names_.size(); ++i) {
      TableChunk::Column& column = chunk_.columns[i];
      places_.emplace_back();
      if (!names_[i]) continue;
      const auto found = find_column(schema.fields, *names_[i]);
      TESSERA_CHECK(found.has_value(), ErrorCode::data, "data file {} has no column {}", file_.path,
                    *names_[i]);
      TESSERA_CHECK(is_readable(*found->field), ErrorCode::data,
                    "data file {}: column {} is of the type {}; texts, numbers, and lists and "
                    "structs of them are read",
                    file_.path, *names_[i], found->field->type);
      column.field = found->field;
      places_.back() = *found;
      reader.choose({*found});
    }
  }

  void hand_out(const ArrowReader& reader) {
    const ArrowBatch& batch = reader.batch();
    for (std::int64_t first = 0; first < batch.rows(); first += chunk_.rows) {
      chunk_.rows = std::min(batch.rows() - first, most_rows);
      for (const ArrowColumn& place : places_) {
        if (place.field == nullptr) continue;
        if (has_structs(*place.field)) chunk_.rows = std::min(chunk_.rows, most_rows_of_structs);
        chunk_.rows = ArrowValues::fitting_rows(batch, place, first, chunk_.rows, most_bytes);
        if (!place.field->index || place.field->kind != ArrowKind::text) continue;
        const auto texts =
            ArrowValues::read(batch, place, first, chunk_.rows, reader.dictionaries());
        chunk_.rows = std::max<std::int64_t>(texts.rows_of_texts(most_bytes), 1);
      }
      for (std::size_t i = 0; i < places_.size(); ++i) {
        if (places_[i].field == nullptr) continue;
        chunk_.columns[i].values =
            ArrowValues::read(batch, places_[i], first, chunk_.rows, reader.dictionaries());
      }
      take_(chunk_);
      chunk_.first_row += chunk_.rows;
    }
  }

 private:
  const TableFile& file_;
  const std::function<void(const TableChunk&)>& take_;
  TableChunk chunk_;
  // The names of the chunk's columns in the file; none: a folder's value.
  std::vector<std::optional<std::string>> names_;
  std::vector<ArrowColumn> places_;  // without a field: a folder's value
};

void read_arrow(const TableFile& file, const ChooseColumns& choose,
                const std::function<void(const TableChunk&)>& take) {
  const std::unique_ptr<ArrowInput> input = open_arrow_file(file.path);
  ArrowReader reader(*input, fmt::format("data file {}", file.path), false);
  FileRows rows(file, take);
  (void)rows.choose(choose, reader.schema());
  rows.find(reader);
  while (reader.next()) rows.hand_out(reader);
}

void read_parquet(ParquetHelper& helper, const TableFile& file, const ChooseColumns& choose,
                  const std::function<void(const TableChunk&)>& take) {
  const ArrowSchema schema = helper.open(file.path);
  FileRows rows(file, take);
  ArrowReader& reader = helper.rows(rows.choose(choose, schema));
  rows.find(reader);
  while (helper.next()) rows.hand_out(reader);
}

}  // namespace

nlohmann::ordered_json TableChunk::Column::json(std::int64_t row) const {
  if (field == nullptr) return value;
  return values->json(row);
}

std::string TableChunk::place(std::int64_t row) const {
  return fmt::format("data file {}, row {}", file->path, first_row + row + 1);
}

void read_table(const std::vector<TableFile>& files, const ChooseColumns& choose,
                const std::function<void(const TableChunk&)>& take) {
  std::unique_ptr<ParquetHelper> helper;  // started by the first Parquet file
  for (const TableFile& file : files) {
    if (file.kind == TableFileKind::arrow) {
      read_arrow(file, choose, take);
      continue;
    }
    if (!helper) helper = std::make_unique<ParquetHelper>();
    read_parquet(*helper, file, choose, take);
  }
}

void for_each_json_row(
    TableFileKind kind, TextReader& reader,
    const std::function<void(const nlohmann::ordered_json& row, const std::string& place)>& take) {
  if (kind == TableFileKind::tar) {
    for_each_tar_sample(reader, take);
    return;
  }
  for_each_json_line(reader, [&](std::string_view line, const std::string& place) {
    take(json_row(line, place), place);
  });
}

}  // namespace tessera::tasks
