// Cuts lines, and parses them.
#include "tasks/columnar/json_rows.h"

#include <fmt/format.h>

#include <cstdint>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "checkpoint/io/json.h"

namespace tessera::tasks {
namespace {

constexpr std::int64_t read_bytes = std::int64_t{1} << 20;
constexpr std::string_view json_blanks = " \t\r\n\f\v";
constexpr std::size_t longest_line = std::size_t{64} << 20;

// Hands out one line after another, without its end.
class Lines {
 public:
  explicit Lines(TextReader& reader) : reader_(reader) {}

  // False behind the last. `line` is valid until the next call.
  bool next(std::string_view& line) {
    std::size_t end = 0;
    while ((end = bytes_.find('\n', searched_)) == std::string::npos) {
      searched_ = bytes_.size();
      TESSERA_CHECK(bytes_.size() - begin_ <= longest_line, ErrorCode::data,
                    "{}, line {}: more than {} bytes", reader_.name(), number_ + 1, longest_line);
      bytes_.erase(0, begin_);
      searched_ -= begin_;
      begin_ = 0;
      if (!reader_.append(bytes_, read_bytes)) break;
    }
    if (end == std::string::npos && begin_ == bytes_.size()) return false;
    line = std::string_view(bytes_).substr(begin_, end - begin_);
    begin_ = searched_ = end == std::string::npos ? bytes_.size() : end + 1;
    if (number_ == 0 && line.starts_with("\xEF\xBB\xBF")) line.remove_prefix(3);
    if (line.ends_with('\r')) line.remove_suffix(1);
    ++number_;
    return true;
  }

  // Where the line that next() gave is.
  [[nodiscard]] std::string place() const {
    return fmt::format("{}, line {}", reader_.name(), number_);
  }

 private:
  TextReader& reader_;
  std::string bytes_;
  std::size_t begin_ = 0;     // of the next line
  std::size_t searched_ = 0;  // no line ends from `begin_` to here
  std::int64_t number_ = 0;
};

// The way out for the first line of what is JSON, but has no object in each line.
const char* way_to_lines(std::string_view line) {
  const std::size_t begin = line.find_first_not_of(json_blanks);
  if (begin == std::string_view::npos) return "";
  if (line[begin] == '[') {
    return "; a file that is one JSON array becomes JSON lines with: jq -c '.[]' FILE > rows.jsonl";
  }
  const bool only_begins = line.find_first_not_of(json_blanks, begin + 1) == std::string_view::npos;
  if (line[begin] == '{' && only_begins) {
    return "; objects over several lines become JSON lines with: jq -c . FILE > rows.jsonl";
  }
  return "";
}

}  // namespace

bool is_blank_line(std::string_view line) {
  return line.find_first_not_of(json_blanks) == std::string_view::npos;
}

void for_each_json_line(
    TextReader& reader,
    const std::function<void(std::string_view line, const std::string& place)>& take) {
  reader.require_text();
  Lines lines(reader);
  for (std::string_view line; lines.next(line);) {
    if (!is_blank_line(line)) take(line, lines.place());
  }
}

nlohmann::ordered_json json_row(std::string_view line, const std::string& place) {
  nlohmann::ordered_json object;
  try {
    // This checks it: the depth, and that every name is there once. It sorts members.
    (void)checkpoint::parse_json(line, place);
    object = nlohmann::ordered_json::parse(line);
  } catch (const Error& error) {
    throw Error(ErrorCode::data, fmt::format("{}{}", error.what(), way_to_lines(line)));
  }
  TESSERA_CHECK(object.is_object(), ErrorCode::data,
                "{}: a JSON {}, and not an object; each line of JSON lines has one{}", place,
                object.type_name(), way_to_lines(line));
  return object;
}

}  // namespace tessera::tasks
