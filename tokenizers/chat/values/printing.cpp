// Numbers, texts, lists and mappings as Python prints them.
#include "tokenizers/chat/values/printing.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <stdexcept>

#include "tokenizers/chat/values/characters.h"
#include "tokenizers/chat/values/object.h"
#include "tokenizers/text/unicode.h"

namespace tessera::tokenizers::jinja {
namespace {

[[noreturn]] void refuse(const Value& value, const char* what) {
  if (value.is_undefined()) throw std::invalid_argument(value.problem());
  throw std::invalid_argument(fmt::format("a {} {}", value.type(), what));
}

// float.__repr__: the shortest digits that give the number back.
std::string digits_of(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[40];
  const auto end =
      std::to_chars(buffer, buffer + sizeof(buffer), value, std::chars_format::scientific).ptr;
  std::string text(buffer, end);
  const std::size_t e = text.find('e');
  const int power = std::atoi(text.c_str() + e + 1);
  if (power < -4 || power >= 16) return text;
  const bool negative = text.front() == '-';
  std::string digits = text.substr(negative ? 1 : 0, e - (negative ? 1 : 0));
  std::erase(digits, '.');
  const std::string_view sign = negative ? "-" : "";
  if (power < 0) {
    return fmt::format("{}0.{}{}", sign, std::string(static_cast<std::size_t>(-power - 1), '0'),
                       digits);
  }
  const auto whole = static_cast<std::size_t>(power) + 1;
  if (digits.size() < whole + 1) digits.append(whole + 1 - digits.size(), '0');
  const std::string_view all = digits;
  return fmt::format("{}{}.{}", sign, all.substr(0, whole), all.substr(whole));
}

std::string quoted_text(std::string_view text) {
  const bool has_single = text.find('\'') != std::string_view::npos;
  const char quote = has_single && text.find('"') == std::string_view::npos ? '"' : '\'';
  std::string out(1, quote);
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t begin = at;
    const char32_t c = next_character(text, at);
    if (c == static_cast<unsigned char>(quote) || c == '\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c == '\n' || c == '\r' || c == '\t') {
      out += c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t";
    } else if (is_printable(c)) {
      out += text.substr(begin, at - begin);
    } else {
      const auto code = static_cast<std::uint32_t>(c);
      out += code < 0x100     ? fmt::format("\\x{:02x}", code)
             : code < 0x10000 ? fmt::format("\\u{:04x}", code)
                              : fmt::format("\\U{:08x}", code);
    }
  }
  return out + quote;
}

std::string json_text(std::string_view text, bool ascii) {
  std::string out = "\"";
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t begin = at;
    const auto c = static_cast<std::uint32_t>(next_character(text, at));
    constexpr std::string_view named = "\"\\\n\r\t\b\f";
    constexpr std::string_view letters = "\"\\nrtbf";
    const std::size_t known = c < 0x80 ? named.find(static_cast<char>(c)) : std::string_view::npos;
    if (known != std::string_view::npos) {
      out += '\\';
      out += letters[known];
    } else if (c < 0x20 || (ascii && c >= 0x7f && c < 0x10000)) {
      out += fmt::format("\\u{:04x}", c);
    } else if (ascii && c >= 0x10000) {
      const std::uint32_t rest = c - 0x10000;
      out += fmt::format("\\u{:04x}\\u{:04x}", 0xd800 + (rest >> 10), 0xdc00 + (rest & 0x3ff));
    } else {
      out += text.substr(begin, at - begin);
    }
  }
  return out + '"';
}

class JsonWriter {
 public:
  explicit JsonWriter(const JsonStyle& style) : style_(style) {
    item_ = style.item_separator.value_or(style.indent ? "," : ", ");
    key_ = style.key_separator.value_or(": ");
  }

  void write(const Value& value, int level, std::string& out) const {
    if (value.is_none()) {
      out += "null";
    } else if (value.is<bool>()) {
      out += value.boolean() ? "true" : "false";
    } else if (value.is<std::int64_t>()) {
      out += fmt::format("{}", value.integer());
    } else if (value.is<double>()) {
      out += number(value.floating());
    } else if (value.is_text()) {
      out += json_text(value.text(), style_.ascii);
    } else if (value.is_mapping()) {
      write_mapping(value.mapping(), level, out);
    } else if (value.is_sequence() && (value.sequence().kind == SequenceKind::list ||
                                       value.sequence().kind == SequenceKind::tuple)) {
      write_list(value.sequence().items, level, out);
    } else {
      refuse(value, "is not JSON");
    }
  }

 private:
  static std::string number(double value) {
    if (std::isnan(value)) return "NaN";
    if (std::isinf(value)) return value < 0 ? "-Infinity" : "Infinity";
    return digits_of(value);
  }

  void begin_line(int level, std::string& out) const {
    if (!style_.indent) return;
    out += '\n';
    for (int i = 0; i < level; ++i) out += *style_.indent;
  }

  void write_list(const std::vector<Value>& items, int level, std::string& out) const {
    out += '[';
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out += item_;
      begin_line(level + 1, out);
      write(items[i], level + 1, out);
    }
    if (!items.empty()) begin_line(level, out);
    out += ']';
  }

  [[nodiscard]] std::string key(const Value& value) const {
    if (value.is_text()) return value.text();
    if (!value.is_number() && !value.is_none()) refuse(value, "cannot be a key of JSON");
    std::string text;
    write(value, 0, text);
    return text;
  }

  void write_mapping(const Mapping& mapping, int level, std::string& out) const {
    std::vector<const std::pair<Value, Value>*> items;
    for (const auto& item : mapping.items) items.push_back(&item);
    if (style_.sorted) {
      std::stable_sort(items.begin(), items.end(), [](const auto* a, const auto* b) {
        int order = 0;
        if (!compare(a->first, b->first, order)) {
          throw std::invalid_argument("keys of different types have no order");
        }
        return order < 0;
      });
    }
    out += '{';
    bool first = true;
    for (const auto* item : items) {
      if (!first) out += item_;
      first = false;
      begin_line(level + 1, out);
      out += json_text(key(item->first), style_.ascii);
      out += key_;
      write(item->second, level + 1, out);
    }
    if (!items.empty()) begin_line(level, out);
    out += '}';
  }

  const JsonStyle& style_;
  std::string item_;
  std::string key_;
};

std::string represent_items(const Sequence& sequence) {
  const bool tuple = sequence.kind == SequenceKind::tuple;
  std::string out(1, tuple ? '(' : '[');
  for (std::size_t i = 0; i < sequence.items.size(); ++i) {
    if (i > 0) out += ", ";
    out += represent(sequence.items[i]);
  }
  if (tuple && sequence.items.size() == 1) out += ',';
  return out + (tuple ? ')' : ']');
}

}  // namespace

std::string print(const Value& value) {
  if (value.is_undefined()) return {};
  if (value.is<Object*>() && value.object()->text() != nullptr) return *value.object()->text();
  return value.is_text() ? value.text() : represent(value);
}

std::string represent(const Value& value) {
  if (value.is_undefined()) return "Undefined";
  if (value.is_none()) return "None";
  if (value.is<bool>()) return value.boolean() ? "True" : "False";
  if (value.is<std::int64_t>()) return fmt::format("{}", value.integer());
  if (value.is<double>()) return digits_of(value.floating());
  if (value.is_text()) return quoted_text(value.text());
  if (value.is_mapping()) {
    std::string out = "{";
    for (const auto& [key, item] : value.mapping().items) {
      out += fmt::format("{}{}: {}", out.size() > 1 ? ", " : "", represent(key), represent(item));
    }
    return out + '}';
  }
  const bool listed = value.is_sequence() && (value.sequence().kind == SequenceKind::list ||
                                              value.sequence().kind == SequenceKind::tuple);
  if (!listed) refuse(value, "has no text");
  return represent_items(value.sequence());
}

std::string to_json(const Value& value, const JsonStyle& style) {
  std::string out;
  JsonWriter(style).write(value, 0, out);
  return out;
}

}  // namespace tessera::tokenizers::jinja
