// Rows as JSON, published when the file is whole.
#include "tasks/columnar/table_json.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "engine/data/compression/decompressor.h"
#include "engine/data/text_reader.h"
#include "tasks/columnar/json_rows.h"
#include "tasks/columnar/table_reader.h"
#include "tasks/conversations/conversation.h"

namespace tessera::tasks {
namespace {

namespace fs = std::filesystem;

void append_line(const nlohmann::json& object, const std::string& place, std::string& lines) {
  try {
    lines += object.dump();
  } catch (const nlohmann::json::type_error&) {
    fail(ErrorCode::data, "{}: a text is not UTF-8", place);
  }
  lines += '\n';
}

void append_row(const TableChunk& chunk, std::int64_t row, std::string& lines) {
  nlohmann::json object = nlohmann::json::object();
  for (const TableChunk::Column& column : chunk.columns) {
    TESSERA_CHECK(column.field == nullptr || !has_structs(*column.field), ErrorCode::data,
                  "data file {}: column {} is of the type {}; texts, numbers and lists of them are "
                  "read here",
                  chunk.file->path, column.name, column.field->type);
    nlohmann::json value(column.json(row));
    TESSERA_CHECK(!value.is_null(), ErrorCode::data, "{}: column {} is null; leave such rows out",
                  chunk.place(row), column.name);
    object[column.name] = std::move(value);
  }
  append_line(object, chunk.place(row), lines);
}

// Writes each row with the chosen columns.
class LineRows {
 public:
  LineRows(const std::vector<std::string>& columns, PassingFile& file)
      : columns_(columns), file_(file) {}

  const std::vector<std::string>& choose(const ArrowSchema&, const TableFile&) { return columns_; }
  void begin_file(const TableFile&) {}

  void take(const TableChunk& chunk) {
    lines_.clear();
    for (std::int64_t i = 0; i < chunk.rows; ++i) append_row(chunk, i, lines_);
    file_.write(lines_);
  }

  void take(const nlohmann::ordered_json& row, const TableFile&, const std::string& place) {
    nlohmann::json object = nlohmann::json::object();
    for (const std::string& column : columns_) {
      const nlohmann::ordered_json* const value = member_at(row, column);
      TESSERA_CHECK(value != nullptr, ErrorCode::data, "{}: no column {}; it has {}", place, column,
                    fmt::join(member_names(row), ", "));
      TESSERA_CHECK(!value->is_null(), ErrorCode::data,
                    "{}: column {} is null; leave such rows out", place, column);
      TESSERA_CHECK(!value->is_object(), ErrorCode::data,
                    "{}: column {} is an object; texts, numbers and lists of them are read here",
                    place, column);
      object[column] = nlohmann::json(*value);
    }
    lines_.clear();
    append_line(object, place, lines_);
    file_.write(lines_);
  }

 private:
  const std::vector<std::string>& columns_;
  PassingFile& file_;
  std::string lines_;
};

void write_json_lines(const std::vector<TableFile>& files, const std::vector<std::string>& columns,
                      const fs::path& path) {
  PassingFile file(path);
  LineRows rows(columns, file);
  read_rows(files, rows);
  file.publish();
}

}  // namespace

std::unique_ptr<DerivedFile> make_json_lines(const std::vector<TableFile>& files,
                                             const std::vector<std::string>& columns) {
  std::uint64_t purpose = columns.size();
  for (const std::string& column : columns) purpose = mix_text(purpose, column);
  return std::make_unique<DerivedFile>(files, purpose, ".jsonl", [&](const fs::path& path) {
    write_json_lines(files, columns, path);
  });
}

std::unique_ptr<DerivedFile> decompress_file(const std::string& path) {
  constexpr std::uint64_t purpose = 0x64656365;  // "dece"
  const std::string ending = fs::path(name_without_compression(path)).extension().string();
  return std::make_unique<DerivedFile>(
      json_lines({path}), purpose, ending, [&](const fs::path& target) {
        PassingFile file(target);
        TextReader reader(path);
        constexpr std::int64_t block = std::int64_t{1} << 20;
        for (std::string bytes; reader.append(bytes, block); bytes.clear()) file.write(bytes);
        file.publish();
      });
}

}  // namespace tessera::tasks
