// Literal texts are searched for directly, without a regular expression.
#include "tokenizers/text/pattern_field.h"

#include <utility>

#include "base/error.h"
#include "tokenizers/text/json_fields.h"
#include "tokenizers/text/unicode.h"

namespace tessera::tokenizers {

bool PatternField::Search::find(std::string_view text, std::size_t from,
                                Pattern::Matcher::Match& match) {
  if (matcher_) return from <= text.size() && matcher_->find(text, from, match);
  const std::string& literal = field_.literal_;
  const std::size_t found = text.find(literal, from);
  if (found == std::string_view::npos) return false;
  match = {found, found + literal.size()};
  return true;
}

std::string_view PatternField::replace_all(std::string_view text, std::string_view content,
                                           std::string& buffer) const {
  Search search(*this);
  Pattern::Matcher::Match match;
  std::size_t kept = 0;
  bool changed = false;
  for (std::size_t from = 0; search.find(text, from, match);) {
    if (!changed) buffer.clear();
    changed = true;
    buffer.append(text, kept, match.begin - kept);
    buffer += content;
    TESSERA_CHECK(buffer.size() <= 256 * text.size() + 65536, ErrorCode::data,
                  "the tokenizer's replacements make a text more than 256 times as long");
    kept = match.end;
    // After an empty match the search continues at the next character.
    from = match.end;
    if (match.end == match.begin) from += from < text.size() ? character_length(text[from]) : 1;
    if (from > text.size()) break;
  }
  if (!changed) return text;
  buffer.append(text, kept);
  return buffer;
}

PatternField pattern_field(const nlohmann::json& object, const std::string& source) {
  const nlohmann::json& pattern = member(object, "pattern", source);
  const std::string where = source + ".pattern";
  if (has(pattern, "String")) {
    std::string text = string_of(pattern, "String", where);
    // An empty text matches between all characters, as an empty expression does.
    return text.empty() ? PatternField(Pattern(text, where)) : PatternField(std::move(text));
  }
  if (has(pattern, "Regex"))
    return PatternField(Pattern(string_of(pattern, "Regex", where), where));
  fail(ErrorCode::data, "{}: neither {{\"String\": ..}} nor {{\"Regex\": ..}}", where);
}

}  // namespace tessera::tokenizers
