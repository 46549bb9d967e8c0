// Finds the text of each line.
#include "tasks/columnar/json_lines.h"

#include <nlohmann/json.hpp>
#include <string_view>

#include "base/error.h"
#include "tasks/columnar/json_rows.h"
#include "tasks/conversations/conversation.h"

namespace tessera::tasks {
namespace {

std::string text_in(std::string_view line, const std::string& column, const std::string& place) {
  const nlohmann::ordered_json object = json_row(line, place);
  const nlohmann::ordered_json* const text = member_at(object, column);
  if (text == nullptr) {
    std::string names;
    for (const auto& item : object.items()) names += (names.empty() ? "" : ", ") + item.key();
    fail(ErrorCode::data, "{}: no column {}; the line has {}", place, column,
         names.empty() ? "none" : names);
  }
  TESSERA_CHECK(text->is_string(), ErrorCode::data, "{}: column {} is {}, not a text{}", place,
                column, text->is_null() ? "null" : text->type_name(),
                text->is_null() ? "; leave such rows out" : "");
  return text->get<std::string>();
}

}  // namespace

std::int64_t write_json_line_tokens(TextReader& reader, const std::string& column,
                                    const Tokenizer& tokenizer, int workers, const TokenOutput& out,
                                    const std::function<void()>& between) {
  TokenStreamWriter writer(out.path, tokenizer, TextStamp{}, out.shard);
  TextAppender texts(tokenizer, workers, writer);
  for_each_json_line(reader, [&](std::string_view line, const std::string& place) {
    if (between) between();
    texts.add(text_in(line, column, place));
  });
  texts.finish();
  TESSERA_CHECK(out.shard.count > 0 || writer.tokens() > 0, ErrorCode::data, "{} gives no tokens",
                reader.name());
  writer.finish();
  return writer.tokens();
}

}  // namespace tessera::tasks
