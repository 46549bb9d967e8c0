// Methods of Python's texts, lists and mappings.
#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "tokenizers/chat/jinja/builtins.h"
#include "tokenizers/chat/values/characters.h"
#include "tokenizers/text/unicode.h"

namespace tessera::tokenizers::jinja {
namespace {

enum class Side : std::uint8_t { left, right, both };

std::string without(std::string_view text, Side side,
                    const std::optional<std::string>& characters) {
  if (side != Side::right)
    text = characters ? stripped_left(text, *characters) : stripped_left(text);
  if (side != Side::left)
    text = characters ? stripped_right(text, *characters) : stripped_right(text);
  return std::string(text);
}

template <Side side>
Value strip(Interpreter& interpreter, const Value& subject, Arguments arguments) {
  const Parameters given(interpreter, std::move(arguments), {"chars"});
  std::optional<std::string> characters;
  if (given.has_text(0)) characters = given.text(0, "");
  return without(subject.text(), side, characters);
}

template <std::string (*change)(std::string_view)>
Value change_text(Interpreter& interpreter, const Value& subject, Arguments arguments) {
  const Parameters none(interpreter, std::move(arguments), {});
  std::string text = change(subject.text());
  interpreter.charge_bytes(text.size());
  return text;
}

Value pieces(Interpreter& interpreter, const std::vector<std::string_view>& parts) {
  std::vector<Value> items;
  for (const std::string_view part : parts) {
    interpreter.charge_bytes(part.size());
    items.emplace_back(std::string(part));
  }
  return interpreter.sequence(std::move(items));
}

// split() without a separator: words between white space. `most`: of splits, below 0 any.
std::vector<std::string_view> words_of(std::string_view text, std::int64_t most, bool from_right) {
  std::vector<std::string_view> parts;
  text = stripped_left(stripped_right(text));
  std::vector<std::pair<std::size_t, std::size_t>> words;
  for (std::size_t at = 0; at < text.size();) {
    std::size_t end = at;
    while (end < text.size() && spaces_end(text, end) == end) end += character_length(text[end]);
    words.emplace_back(at, end);
    at = spaces_end(text, end);
  }
  const std::size_t all = words.size();
  if (most < 0 || all == 0 || std::cmp_less_equal(all - 1, most)) {
    for (const auto& [begin, end] : words) parts.push_back(text.substr(begin, end - begin));
    return parts;
  }
  const auto splits = static_cast<std::size_t>(most);
  if (from_right) {
    parts.push_back(text.substr(0, words[all - splits - 1].second));
    for (std::size_t i = all - splits; i < all; ++i) {
      parts.push_back(text.substr(words[i].first, words[i].second - words[i].first));
    }
  } else {
    for (std::size_t i = 0; i < splits; ++i) {
      parts.push_back(text.substr(words[i].first, words[i].second - words[i].first));
    }
    parts.push_back(text.substr(words[splits].first));
  }
  return parts;
}

std::vector<std::string_view> split_by(std::string_view text, std::string_view separator,
                                       std::int64_t most, bool from_right) {
  std::vector<std::string_view> parts;
  const auto may_split = [&] { return most < 0 || std::cmp_less(parts.size(), most); };
  if (from_right) {
    for (std::size_t at = 0;
         may_split() && (at = text.rfind(separator)) != std::string_view::npos;) {
      parts.push_back(text.substr(at + separator.size()));
      text = text.substr(0, at);
    }
    parts.push_back(text);
    std::reverse(parts.begin(), parts.end());
    return parts;
  }
  for (std::size_t at = 0; may_split() && (at = text.find(separator)) != std::string_view::npos;) {
    parts.push_back(text.substr(0, at));
    text = text.substr(at + separator.size());
  }
  parts.push_back(text);
  return parts;
}

template <bool from_right>
Value split(Interpreter& interpreter, const Value& subject, Arguments arguments) {
  const Parameters given(interpreter, std::move(arguments), {"sep", "maxsplit"});
  const std::int64_t most = given.integer(1, -1);
  interpreter.charge(static_cast<std::int64_t>(subject.text().size() / 16));
  if (!given.has_text(0)) return pieces(interpreter, words_of(subject.text(), most, from_right));
  const std::string separator = given.text(0, "");
  if (separator.empty()) interpreter.refuse("split takes no empty separator");
  return pieces(interpreter, split_by(subject.text(), separator, most, from_right));
}

Value split_lines(Interpreter& interpreter, const Value& subject, Arguments arguments) {
  const Parameters given(interpreter, std::move(arguments), {"keepends"});
  return pieces(interpreter, lines_of(subject.text(), given.truth(0, false)));
}

template <bool from_right>
Value partition(Interpreter& interpreter, const Value& subject, Arguments arguments) {
  const Parameters given(interpreter, std::move(arguments), {"sep"});
  const std::string& text = subject.text();
  const std::string separator = given.required_text(0);
  if (separator.empty()) interpreter.refuse("partition takes no empty separator");
  const std::size_t at = from_right ? text.rfind(separator) : text.find(separator);
  interpreter.charge_bytes(text.size());
  std::vector<Value> parts;
  if (at != std::string::npos) {
    parts = {text.substr(0, at), separator, text.substr(at + separator.size())};
  } else if (from_right) {
    parts = {"", "", text};
  } else {
    parts = {text, "", ""};
  }
  return interpreter.sequence(std::move(parts), SequenceKind::tuple);
}

// A text, or a tuple of which one must fit.
template <bool at_end>
Value begins_or_ends(Interpreter& interpreter, const Value& subject, Arguments arguments) {
  const Parameters given(interpreter, std::move(arguments), {"prefix"});
  const Value& wanted = given.required(0);
  std::vector<Value> all = {wanted};
  const bool several = wanted.is_sequence() && wanted.sequence().kind == SequenceKind::tuple;
  if (several) all = wanted.sequence().items;
  const std::string& text = subject.text();
  bool found = false;
  for (const Value& one : all) {
    if (one.is_undefined()) interpreter.refuse("{}", one.problem());
    if (!one.is_text()) interpreter.refuse("a text does not begin or end with a {}", one.type());
    found = found || (at_end ? text.ends_with(one.text()) : text.starts_with(one.text()));
  }
  return found;
}

template <bool at_end>
Value remove_affix(Interpreter& interpreter, const Value& subject, Arguments arguments) {
  const Parameters given(interpreter, std::move(arguments), {"affix"});
  const std::string affix = given.required_text(0);
  std::string_view text = subject.text();
  if (at_end && text.ends_with(affix)) text.remove_suffix(affix.size());
  if (!at_end && text.starts_with(affix)) text.remove_prefix(affix.size());
  return std::string(text);
}

Value replace(Interpreter& interpreter, const Value& subject, Arguments arguments) {
  const Parameters given(interpreter, std::move(arguments), {"old", "new", "count"});
  const std::string& text = subject.text();
  const std::string old = given.required_text(0);
  const std::string with = given.required_text(1);
  const std::int64_t wanted = given.integer(2, -1);
  std::int64_t left = wanted < 0 ? std::numeric_limits<std::int64_t>::max() : wanted;
  std::string result;
  std::size_t at = 0;
  while (left > 0 && at <= text.size()) {
    // An empty text is before each character and at the end.
    const std::size_t found = old.empty() ? at : text.find(old, at);
    if (found == std::string::npos) break;
    --left;
    interpreter.charge(1);
    if (result.size() + with.size() > (std::size_t{1} << 26))
      interpreter.charge_bytes(std::size_t{1} << 27);
    result += text.substr(at, found - at) + with;
    at = found + old.size();
    if (!old.empty()) continue;
    if (at >= text.size()) break;
    const std::size_t next = at + byte_of(std::string_view(text).substr(at), 1);
    result += text.substr(at, next - at);
    at = next;
  }
  result += text.substr(std::min(at, text.size()));
  interpreter.charge_bytes(result.size());
  return result;
}

std::int64_t place(std::string_view text, std::size_t byte) {
  return byte == std::string_view::npos ? -1 : length_of(text.substr(0, byte));
}

template <bool from_right, bool required>
Value find(Interpreter& interpreter, const Value& subject, Arguments arguments) {
  const Parameters given(interpreter, std::move(arguments), {"sub"});
  const std::string wanted = given.required_text(0);
  const std::string& text = subject.text();
  const std::size_t byte = from_right ? text.rfind(wanted) : text.find(wanted);
  if (required && byte == std::string::npos) interpreter.refuse("a text is not found");
  return place(text, byte);
}

Value count_text(Interpreter& interpreter, const Value& subject, Arguments arguments) {
  const Parameters given(interpreter, std::move(arguments), {"sub"});
  const std::string wanted = given.required_text(0);
  if (wanted.empty()) return length_of(subject.text()) + 1;
  return static_cast<std::int64_t>(split_by(subject.text(), wanted, -1, false).size()) - 1;
}

Value join(Interpreter& interpreter, const Value& subject, Arguments arguments) {
  const Parameters given(interpreter, std::move(arguments), {"iterable"});
  const std::string& separator = subject.text();
  std::string result;
  bool first = true;
  for (const Value& item : interpreter.items_of(given.required(0))) {
    if (!item.is_text()) interpreter.refuse("join takes texts, and there is a {}", item.type());
    interpreter.charge_growth(result.size(), item.text().size() + separator.size());
    if (!std::exchange(first, false)) result += separator;
    result += item.text();
  }
  return result;
}

// Replacement fields without formats: {}, {0} and {name}.
Value format(Interpreter& interpreter, const Value& subject, Arguments arguments) {
  const std::string& text = subject.text();
  std::string result;
  std::size_t next = 0;
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (text[at] != '{' && text[at] != '}') {
      result += text[at];
      continue;
    }
    if (at + 1 < text.size() && text[at + 1] == text[at]) {
      result += text[at++];
      continue;
    }
    const std::size_t end = text.find('}', at);
    if (text[at] == '}' || end == std::string::npos) interpreter.refuse("format: a single brace");
    const std::string field = text.substr(at + 1, end - at - 1);
    at = end;
    const bool number = field.find_first_not_of("0123456789") == std::string::npos;
    if (!number && field.find_first_of(".[!:{") != std::string::npos) {
      interpreter.refuse("format: fields with attributes or formats are not supported");
    }
    if (number && field.size() > 4) interpreter.refuse("format: there is no such argument");
    const Value* value = nullptr;
    if (number) {
      const std::size_t index = field.empty() ? next++ : std::stoul(field);
      if (index < arguments.positional.size()) value = &arguments.positional[index];
    } else {
      for (const auto& [name, one] : arguments.named) {
        if (name == field) value = &one;
      }
    }
    if (value == nullptr) interpreter.refuse("format: an argument is missing");
    result += interpreter.text_of(*value);
    interpreter.charge_bytes(result.size());
  }
  return result;
}

// The names of properties are those of all_are().
#define TESSERA_PROPERTY(property)                                                         \
  {                                                                                        \
    "is" property,                                                                         \
        [](Interpreter& interpreter, const Value& subject, Arguments arguments) -> Value { \
          const Parameters none(interpreter, std::move(arguments), {});                    \
          return all_are(subject.text(), property);                                        \
        }                                                                                  \
  }

const NamedFunction text_methods[] = {
    {"strip", &strip<Side::both>},
    {"lstrip", &strip<Side::left>},
    {"rstrip", &strip<Side::right>},
    {"split", &split<false>},
    {"rsplit", &split<true>},
    {"splitlines", &split_lines},
    {"partition", &partition<false>},
    {"rpartition", &partition<true>},
    {"startswith", &begins_or_ends<false>},
    {"endswith", &begins_or_ends<true>},
    {"removeprefix", &remove_affix<false>},
    {"removesuffix", &remove_affix<true>},
    {"replace", &replace},
    {"find", &find<false, false>},
    {"rfind", &find<true, false>},
    {"index", &find<false, true>},
    {"rindex", &find<true, true>},
    {"count", &count_text},
    {"join", &join},
    {"format", &format},
    {"upper", &change_text<upper>},
    {"lower", &change_text<lower>},
    {"capitalize", &change_text<capitalized>},
    {"title", &change_text<titled>},
    TESSERA_PROPERTY("alpha"),
    TESSERA_PROPERTY("alnum"),
    TESSERA_PROPERTY("ascii"),
    TESSERA_PROPERTY("decimal"),
    TESSERA_PROPERTY("digit"),
    TESSERA_PROPERTY("numeric"),
    TESSERA_PROPERTY("space"),
    TESSERA_PROPERTY("lower"),
    TESSERA_PROPERTY("upper"),
    TESSERA_PROPERTY("printable"),
};

#undef TESSERA_PROPERTY

Value list_index(Interpreter& interpreter, const Value& subject, Arguments arguments) {
  const Parameters given(interpreter, std::move(arguments), {"value"});
  const std::vector<Value> items = interpreter.items_of(subject);
  const auto found = std::find_if(items.begin(), items.end(), [&](const Value& one) {
    return interpreter.same(one, given.required(0));
  });
  if (found == items.end()) interpreter.refuse("a value is not in the list");
  return static_cast<std::int64_t>(found - items.begin());
}

Value list_count(Interpreter& interpreter, const Value& subject, Arguments arguments) {
  const Parameters given(interpreter, std::move(arguments), {"value"});
  const std::vector<Value> items = interpreter.items_of(subject);
  return static_cast<std::int64_t>(std::count_if(items.begin(), items.end(), [&](const Value& one) {
    return interpreter.same(one, given.required(0));
  }));
}

constexpr NamedFunction list_methods[] = {{"index", &list_index}, {"count", &list_count}};

Value mapping_get(Interpreter& interpreter, const Value& subject, Arguments arguments) {
  const Parameters given(interpreter, std::move(arguments), {"key", "default"});
  interpreter.charge(static_cast<std::int64_t>(subject.mapping().items.size() / 16));
  if (const Value* const found = subject.mapping().find(given.required(0))) return *found;
  return given[1] != nullptr ? *given[1] : Value(None{});
}

template <bool keys, bool values>
Value mapping_view(Interpreter& interpreter, const Value& subject, Arguments arguments) {
  const Parameters none(interpreter, std::move(arguments), {});
  std::vector<Value> items;
  for (const auto& [key, value] : subject.mapping().items) {
    items.push_back(keys && values ? interpreter.sequence({key, value}, SequenceKind::tuple)
                    : keys         ? key
                                   : value);
  }
  return interpreter.sequence(std::move(items), SequenceKind::view);
}

Value mapping_copy(Interpreter& interpreter, const Value& subject, Arguments arguments) {
  const Parameters none(interpreter, std::move(arguments), {});
  return subject;
}

constexpr NamedFunction mapping_methods[] = {{"get", &mapping_get},
                                             {"items", &mapping_view<true, true>},
                                             {"keys", &mapping_view<true, false>},
                                             {"values", &mapping_view<false, true>},
                                             {"copy", &mapping_copy}};

template <std::size_t count>
Function find_in(const NamedFunction (&rows)[count], std::string_view name) {
  const auto* const row = std::find_if(std::begin(rows), std::end(rows),
                                       [&](const NamedFunction& one) { return one.name == name; });
  return row != std::end(rows) ? row->function : nullptr;
}

}  // namespace

Function find_method(const Value& subject, std::string_view name) {
  if (subject.is_text()) return find_in(text_methods, name);
  if (subject.is_mapping()) return find_in(mapping_methods, name);
  if (!subject.is_sequence() || subject.sequence().kind == SequenceKind::view) return nullptr;
  return find_in(list_methods, name);
}

bool is_changing_method(const Value& subject, std::string_view name) {
  constexpr std::array<std::string_view, 5> of_mappings = {"clear", "pop", "popitem", "setdefault",
                                                           "update"};
  constexpr std::array<std::string_view, 8> of_lists = {"append", "clear",  "extend",  "insert",
                                                        "pop",    "remove", "reverse", "sort"};
  const auto among = [&](const auto& names) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  if (subject.is_mapping()) return among(of_mappings);
  return subject.is_sequence() && subject.sequence().kind == SequenceKind::list && among(of_lists);
}

}  // namespace tessera::tokenizers::jinja
