// Picks a text out of a row.
#include "cli/text_lines.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "tasks/columnar/json_rows.h"

namespace tessera::cli {

Argument text_column_argument(std::string* column) {
  return {.name = "--column",
          .target = column,
          .help =
              "Each line is a JSON object, and this is the key of its text; so a text may have "
              "line breaks",
          .type = "NAME"};
}

std::string text_of_line(std::string line, const std::string& column, const std::string& place) {
  if (column.empty()) return line;
  const nlohmann::ordered_json row = tasks::json_row(line, place);
  const auto found = row.find(column);
  TESSERA_CHECK(found != row.end() && found->is_string(), ErrorCode::data, "{}: no text '{}'",
                place, column);
  return found->get<std::string>();
}

}  // namespace tessera::cli
