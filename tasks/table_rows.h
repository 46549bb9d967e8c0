// Finds rows in the bytes of a file, and columns in a row. Internal to the tables.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tasks/table.h"

namespace tessera::tasks {

// The end of the row that begins at `begin`: behind its newline, or the end of the text. None if a
// quote is not closed.
std::optional<std::size_t> row_end(std::string_view text, std::size_t begin, TableFormat format);

// All columns of a row (without its newline), or the problem with it.
struct Fields {
  std::vector<std::string> values;
  std::string problem;  // empty: none
};
Fields split_row(std::string_view row, TableFormat format);

// The values of these keys of a JSON object: texts unchanged, other values as JSON writes them.
Fields pick_json(std::string_view row, const std::vector<std::string>& keys);

// Where text stops being UTF-8 (RFC 3629: no overlong forms, no surrogates), or none.
std::optional<std::size_t> malformed_utf8(std::string_view text);

}  // namespace tessera::tasks
