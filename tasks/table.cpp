// Files of rows, read by pread.
#include "tasks/table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "engine/data/data_file.h"
#include "engine/data/permutation.h"
#include "engine/data/text_reader.h"
#include "tasks/columnar/json_rows.h"
#include "tasks/columnar/table_files.h"
#include "tasks/columnar/table_json.h"
#include "tasks/table_rows.h"

namespace tessera::tasks {
namespace {

constexpr std::size_t block_bytes = std::size_t{1} << 20;
constexpr std::size_t longest_row = std::size_t{64} << 20;

std::optional<std::size_t> column_number(const std::string& name) {
  std::size_t number = 0;
  const char* end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data(), end, number);
  if (error != std::errc{} || stop != end) return std::nullopt;
  return number;
}

std::string_view without_newline(std::string_view row) {
  if (row.ends_with('\n')) row.remove_suffix(1);
  if (row.ends_with('\r')) row.remove_suffix(1);
  return row;
}

bool ends_with_any(std::string_view path, std::initializer_list<std::string_view> endings) {
  return std::any_of(endings.begin(), endings.end(),
                     [&](std::string_view ending) { return path.ends_with(ending); });
}

TableFormat format_of(std::string_view path, std::string_view first_line) {
  if (ends_with_any(path, {".jsonl", ".ndjson", ".json"})) return TableFormat::jsonl;
  if (path.ends_with(".tsv")) return TableFormat::tsv;
  if (path.ends_with(".txt")) return TableFormat::text;
  return first_line.find('\t') == std::string_view::npos ? TableFormat::csv : TableFormat::tsv;
}

}  // namespace

// One file: the places of its rows, and the columns of a row.
class Table::File {
 public:
  // `name` is in messages.
  File(std::string path, std::string name, const TableOptions& options, const Check& check)
      : file_(std::move(path)), name_(std::move(name)), options_(options), format_(options.format) {
    index(check);
  }

  [[nodiscard]] std::size_t rows() const { return begins_.size() - 1; }
  [[nodiscard]] std::int64_t bytes(std::size_t row) const {
    return begins_[row + 1] - begins_[row];
  }

  [[nodiscard]] std::vector<std::string> read(std::size_t row) const {
    std::string text(static_cast<std::size_t>(bytes(row)), '\0');
    file_.read(begins_[row], text.data(), text.size());
    Fields fields = columns(without_newline(text));
    TESSERA_CHECK(fields.problem.empty(), ErrorCode::data, "{}: {}; the file has changed",
                  place(row), fields.problem);
    return std::move(fields.values);
  }

  // Counts lines only on demand, for messages.
  [[nodiscard]] std::string place(std::size_t row) const {
    std::int64_t line = 1;
    std::string block(block_bytes, '\0');
    for (std::int64_t at = 0; at < begins_[row];) {
      const auto wanted = std::min<std::int64_t>(begins_[row] - at, block_bytes);
      const std::size_t got = file_.read_to_end(at, block.data(), static_cast<std::size_t>(wanted));
      if (got == 0) break;
      line += std::count(block.begin(), block.begin() + static_cast<std::ptrdiff_t>(got), '\n');
      at += static_cast<std::int64_t>(got);
    }
    return fmt::format("{}:{}", name_, line);
  }

  [[nodiscard]] std::uint64_t fingerprint() const {
    constexpr std::int64_t samples = 64;
    std::uint64_t hash = mix(0, static_cast<std::uint64_t>(file_.size()));
    std::array<char, 1024> block;
    const std::int64_t size = std::min<std::int64_t>(file_.size(), block.size());
    for (std::int64_t i = 0; i < samples; ++i) {
      const std::size_t got = file_.read_to_end((file_.size() - size) / (samples - 1) * i,
                                                block.data(), static_cast<std::size_t>(size));
      for (std::size_t k = 0; k < got; ++k) hash = mix(hash, static_cast<unsigned char>(block[k]));
    }
    return hash;
  }

 private:
  // Reads through the file, a window at a time, and checks every row.
  void index(const Check& check) {
    constexpr std::string_view byte_order_mark = "\xEF\xBB\xBF";
    std::string window;
    std::int64_t window_begin = 0;
    std::int64_t line = 1;
    bool first = true;
    if (format_ == TableFormat::automatic && file_.size() > 0) {
      format_ = format_of(file_.path(), without_newline(next_row(window, window_begin, 0, line)));
    }
    for (std::int64_t at = 0; at < file_.size();) {
      const auto row = next_row(window, window_begin, at, line);
      std::string_view text = row;
      const std::int64_t begin = at;
      at += static_cast<std::int64_t>(row.size());
      std::int64_t skipped = 0;
      if (begin == 0 && text.starts_with(byte_order_mark)) {
        text.remove_prefix(byte_order_mark.size());
        skipped = static_cast<std::int64_t>(byte_order_mark.size());
      }
      const std::int64_t row_line = line;
      line += std::count(row.begin(), row.end(), '\n');
      const std::string_view content = without_newline(text);
      // It becomes the end of the row before it.
      if (format_ == TableFormat::jsonl && is_blank_line(content)) continue;
      if (first) {
        first = false;
        if (begin_table(content)) continue;
      }
      look_at(content, row_line, check);
      begins_.push_back(begin + skipped);
    }
    TESSERA_CHECK(!begins_.empty(), ErrorCode::data, "data file {} has no row", name_);
    begins_.push_back(file_.size());
  }

  // The row at `at`, in a window that is moved and grown as needed.
  std::string_view next_row(std::string& window, std::int64_t& window_begin, std::int64_t at,
                            std::int64_t line) const {
    const TableFormat format = format_ == TableFormat::automatic ? TableFormat::text : format_;
    for (;;) {
      const auto offset = static_cast<std::size_t>(at - window_begin);
      const bool whole = window_begin + static_cast<std::int64_t>(window.size()) == file_.size();
      const auto end = row_end(window, offset, format);
      if (end && (*end < window.size() || whole || window.ends_with('\n')) && *end > offset) {
        return std::string_view(window).substr(offset, *end - offset);
      }
      TESSERA_CHECK(!whole, ErrorCode::data, "{}:{}: a quote is not closed", name_, line);
      TESSERA_CHECK(window.size() - offset <= longest_row, ErrorCode::data,
                    "{}:{}: a row of more than {} bytes; is a quote not closed?", name_, line,
                    longest_row);
      window.erase(0, offset);
      window_begin = at;
      const std::size_t held = window.size();
      window.resize(held + std::max(block_bytes, held));
      window.resize(held + file_.read_to_end(window_begin + static_cast<std::int64_t>(held),
                                             window.data() + held, window.size() - held));
      TESSERA_CHECK(window.size() > held, ErrorCode::data,
                    "data file {} became shorter while it was read", name_);
    }
  }

  // Finds the columns. Returns true if the line is a header.
  bool begin_table(std::string_view first_line) {
    const bool any_name = std::any_of(options_.columns.begin(), options_.columns.end(),
                                      [](const auto& name) { return !column_number(name); });
    if (format_ == TableFormat::jsonl) {
      TESSERA_CHECK(!options_.header.value_or(false), ErrorCode::data,
                    "data file {}: JSON lines have no header", name_);
      return false;
    }
    header_ = options_.header.value_or(any_name && format_ != TableFormat::text);
    TESSERA_CHECK(header_ || !any_name, ErrorCode::data,
                  "data file {} has no header, so its columns are numbers from 1, not {}", name_,
                  fmt::join(options_.columns, ", "));
    Fields names;
    if (header_) {
      check_text(first_line, 1);
      names = split_row(first_line, format_);
      TESSERA_CHECK(names.problem.empty(), ErrorCode::data, "{}:1: {}", name_, names.problem);
      width_ = names.values.size();
    }
    for (const std::string& column : options_.columns) {
      const auto found = std::find(names.values.begin(), names.values.end(), column);
      if (found != names.values.end()) {
        places_.push_back(static_cast<std::size_t>(found - names.values.begin()));
        continue;
      }
      const auto number = column_number(column);
      TESSERA_CHECK(number.has_value(), ErrorCode::data,
                    "{}:1: the header has no column {}; it has {}", name_, column,
                    fmt::join(names.values, ", "));
      TESSERA_CHECK(*number > 0, ErrorCode::data, "data file {}: columns are counted from 1, not 0",
                    name_);
      places_.push_back(*number - 1);
    }
    return header_;
  }

  void check_text(std::string_view row, std::int64_t line) const {
    const auto malformed = malformed_utf8(row);
    TESSERA_CHECK(!malformed, ErrorCode::data,
                  "{}:{}: byte {} of the line is not UTF-8; convert the file", name_, line,
                  malformed.value_or(0) + 1);
    TESSERA_CHECK(!row.empty(), ErrorCode::data, "{}:{}: an empty line", name_, line);
  }

  void look_at(std::string_view row, std::int64_t line, const Check& check) const {
    check_text(row, line);
    const Fields fields = columns(row);
    TESSERA_CHECK(fields.problem.empty(), ErrorCode::data, "{}:{}: {}", name_, line,
                  fields.problem);
    if (!check) return;
    const std::string problem = check(fields.values);
    TESSERA_CHECK(problem.empty(), ErrorCode::data, "{}:{}: {}", name_, line, problem);
  }

  [[nodiscard]] Fields columns(std::string_view row) const {
    if (format_ == TableFormat::jsonl) return pick_json(row, options_.columns);
    Fields all = split_row(row, format_);
    if (!all.problem.empty()) return all;
    const std::size_t width = all.values.size();
    if (header_ && width != width_) {
      return {{}, fmt::format("{} columns, but the header has {}", width, width_)};
    }
    Fields chosen;
    for (const std::size_t place : places_) {
      if (place >= width) {
        return {{}, fmt::format("{} columns, but column {} is required", width, place + 1)};
      }
      chosen.values.push_back(all.values[place]);
    }
    return chosen;
  }

  DataFile file_;
  std::string name_;
  const TableOptions& options_;
  TableFormat format_;
  bool header_ = false;
  std::size_t width_ = 0;             // columns of the header
  std::vector<std::size_t> places_;   // of the columns, in a row
  std::vector<std::int64_t> begins_;  // of the rows, and the end of the last
};

Table::Table(const std::vector<std::string>& files, TableOptions options, const Check& check)
    : options_(std::move(options)), first_rows_{0} {
  TESSERA_REQUIRE(!options_.columns.empty(), "a table needs columns");
  std::vector<std::string> paths, names;
  std::vector<std::unique_ptr<DerivedFile>> made;  // an open file outlives its name
  if (const auto tables = find_table_files(files)) {
    TESSERA_CHECK(options_.format == TableFormat::automatic && !options_.header, ErrorCode::data,
                  "data file {} is Parquet, Arrow or tar; leave format and header out",
                  tables->front().path);
    options_.format = TableFormat::jsonl;
    made.push_back(make_json_lines(*tables, options_.columns));
    paths = names = {made.back()->path().string()};
  } else {
    names = expand_files(files);
    for (const std::string& path : names) {
      const bool compressed = is_compressed_text(path);
      if (compressed) made.push_back(decompress_file(path));
      paths.push_back(compressed ? made.back()->path().string() : path);
    }
  }
  for (std::size_t i = 0; i < paths.size(); ++i) {
    files_.push_back(std::make_unique<File>(paths[i], names[i], options_, check));
    first_rows_.push_back(first_rows_.back() + static_cast<std::int64_t>(files_.back()->rows()));
  }
  TESSERA_REQUIRE(!files_.empty(), "a table needs a file");
}

Table::~Table() = default;

std::int64_t Table::rows() const {
  return first_rows_.back();
}

Table::Place Table::place_of(std::int64_t row) const {
  TESSERA_REQUIRE(row >= 0 && row < rows(), "row {} of a table of {}", row, rows());
  const auto behind = std::upper_bound(first_rows_.begin(), first_rows_.end(), row) - 1;
  const auto file = static_cast<std::size_t>(behind - first_rows_.begin());
  return {files_[file].get(), static_cast<std::size_t>(row - *behind)};
}

std::vector<std::string> Table::read(std::int64_t row) const {
  const Place place = place_of(row);
  return place.file->read(place.row);
}

std::string Table::place(std::int64_t row) const {
  const Place place = place_of(row);
  return place.file->place(place.row);
}

std::int64_t Table::bytes(std::int64_t row) const {
  const Place place = place_of(row);
  return place.file->bytes(place.row);
}

std::uint64_t Table::fingerprint() const {
  std::uint64_t hash = 0;
  for (const auto& file : files_) hash = mix(hash, file->fingerprint());
  for (const std::string& column : options_.columns) {
    for (const char c : column + ",") hash = mix(hash, static_cast<unsigned char>(c));
  }
  return hash;
}

}  // namespace tessera::tasks
