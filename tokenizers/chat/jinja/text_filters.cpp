// Filters that make texts.
#include <algorithm>
#include <stdexcept>
#include <utility>

#include "tokenizers/chat/jinja/builtins.h"
#include "tokenizers/chat/values/characters.h"
#include "tokenizers/chat/values/printing.h"
#include "tokenizers/text/json_fields.h"
#include "tokenizers/text/unicode.h"

namespace tessera::tokenizers::jinja {
namespace {

// A filter of a text alone.
template <class Change>
Value changed(Interpreter& interpreter, const Value& subject, Arguments arguments,
              const Change& change) {
  const Parameters none(interpreter, std::move(arguments), {});
  std::string text = change(interpreter.text_of(subject));
  interpreter.charge_bytes(text.size());
  return text;
}

Value filter_string(Interpreter& interpreter, const Value& subject, Arguments arguments) {
  return changed(interpreter, subject, std::move(arguments), [](std::string text) { return text; });
}
Value filter_upper(Interpreter& interpreter, const Value& subject, Arguments arguments) {
  return changed(interpreter, subject, std::move(arguments), &upper);
}
Value filter_lower(Interpreter& interpreter, const Value& subject, Arguments arguments) {
  return changed(interpreter, subject, std::move(arguments), &lower);
}
Value filter_capitalize(Interpreter& interpreter, const Value& subject, Arguments arguments) {
  return changed(interpreter, subject, std::move(arguments), &capitalized);
}

// Jinja's, which begins words behind spaces, hyphens and opening brackets.
std::string with_titles(std::string_view text) {
  std::string result;
  std::size_t at = 0;
  const auto is_gap = [&](std::size_t i) {
    std::size_t behind = i;
    return is_space(next_character(text, behind)) ||
           std::string_view("-({[<").find(text[i]) != std::string_view::npos;
  };
  while (at < text.size()) {
    const bool gap = is_gap(at);
    std::size_t end = at;
    while (end < text.size() && is_gap(end) == gap) end += character_length(text[end]);
    if (gap) {
      result += text.substr(at, end - at);
    } else {
      const std::size_t first = character_length(text[at]);
      result += upper(text.substr(at, first)) + lower(text.substr(at + first, end - at - first));
    }
    at = end;
  }
  return result;
}

Value filter_title(Interpreter& interpreter, const Value& subject, Arguments arguments) {
  return changed(interpreter, subject, std::move(arguments), &with_titles);
}

Value filter_trim(Interpreter& interpreter, const Value& subject, Arguments arguments) {
  const Parameters given(interpreter, std::move(arguments), {"chars"});
  const std::string text = interpreter.text_of(subject);
  if (!given.has_text(0)) return std::string(stripped_left(stripped_right(text)));
  const std::string characters = given.text(0, "");
  return std::string(stripped_left(stripped_right(text, characters), characters));
}

Value filter_replace(Interpreter& interpreter, const Value& subject, Arguments arguments) {
  const Parameters given(interpreter, std::move(arguments), {"old", "new", "count"});
  const std::string text = interpreter.text_of(subject);
  Arguments words;
  words.positional = {interpreter.text_of(given.required(0)),
                      interpreter.text_of(given.required(1))};
  if (given.has_text(2)) words.positional.push_back(*given[2]);
  const Value whole(text);
  return find_method(whole, "replace")(interpreter, whole, std::move(words));
}

Value filter_indent(Interpreter& interpreter, const Value& subject, Arguments arguments) {
  const Parameters given(interpreter, std::move(arguments), {"width", "first", "blank"});
  std::string indent;
  if (given[0] != nullptr && given[0]->is_text()) {
    indent = given[0]->text();
  } else {
    const std::int64_t width = given.integer(0, 4);
    if (width > 1000) interpreter.refuse("an indentation of {}", width);
    indent.assign(static_cast<std::size_t>(std::max<std::int64_t>(width, 0)), ' ');
  }
  const std::string text = interpreter.text_of(subject) + "\n";
  const bool blank = given.truth(2, false);
  // As Jinja: blank lines have no indentation unless asked for; the first line by itself.
  const std::vector<std::string_view> lines = lines_of(text, false);
  interpreter.charge_bytes(text.size() + lines.size() * indent.size());
  std::string result;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const bool indented = i == 0 ? given.truth(1, false) : blank || !lines[i].empty();
    if (i > 0) result += '\n';
    result += (indented ? indent : "") + std::string(lines[i]);
  }
  return result;
}

Value filter_tojson(Interpreter& interpreter, const Value& subject, Arguments arguments) {
  return interpreter.json_of(subject, std::move(arguments));
}

Value filter_safe(Interpreter& interpreter, const Value& subject, Arguments arguments) {
  const Parameters none(interpreter, std::move(arguments), {});
  return interpreter.make<Markup>(interpreter.text_of(subject));
}

constexpr NamedFunction filters_of_texts[] = {
    {"string", &filter_string},   {"upper", &filter_upper},
    {"lower", &filter_lower},     {"capitalize", &filter_capitalize},
    {"title", &filter_title},     {"trim", &filter_trim},
    {"replace", &filter_replace}, {"indent", &filter_indent},
    {"tojson", &filter_tojson},   {"safe", &filter_safe},
};

}  // namespace

Function find_text_filter(std::string_view name) {
  const auto* const row = std::find_if(std::begin(filters_of_texts), std::end(filters_of_texts),
                                       [&](const NamedFunction& one) { return one.name == name; });
  return row != std::end(filters_of_texts) ? row->function : nullptr;
}

std::string Interpreter::json_of(const Value& value, Arguments arguments) {
  const Parameters given(*this, std::move(arguments),
                         {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style{.ascii = given.truth(0, false), .sorted = given.truth(3, false)};
  if (given[1] != nullptr && given[1]->is_text()) {
    style.indent = given[1]->text();
  } else if (given.has_text(1)) {
    const std::int64_t width = given.integer(1, 0);
    if (width > 100) refuse("an indentation of {}", width);
    style.indent = std::string(static_cast<std::size_t>(std::max<std::int64_t>(width, 0)), ' ');
  }
  if (given.has_text(2)) {
    const std::vector<Value> both = items_of(*given[2]);
    if (both.size() != 2 || !both[0].is_text() || !both[1].is_text()) {
      refuse("separators are two texts");
    }
    style.item_separator = both[0].text();
    style.key_separator = both[1].text();
  }
  try {
    std::string text = to_json(value, style);
    charge_bytes(text.size());
    return text;
  } catch (const std::invalid_argument& problem) {
    refuse("{}; it cannot become JSON", problem.what());
  }
}

}  // namespace tessera::tokenizers::jinja
