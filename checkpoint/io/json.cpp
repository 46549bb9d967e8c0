// A strict JSON reader over nlohmann's event interface.
#include "checkpoint/io/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>
#include <vector>

#include "base/error.h"

namespace tessera::checkpoint {

namespace {

using nlohmann::json;

// Builds the value and refuses duplicate keys and unbounded nesting, which the plain parser
// accepts.
class StrictBuilder final : public json::json_sax_t {
 public:
  bool null() override { return add(nullptr) != nullptr; }
  bool boolean(bool value) override { return add(value) != nullptr; }
  bool number_integer(number_integer_t value) override { return add(value) != nullptr; }
  bool number_unsigned(number_unsigned_t value) override { return add(value) != nullptr; }
  bool number_float(number_float_t value, const string_t&) override {
    return add(value) != nullptr;
  }
  bool string(string_t& value) override { return add(std::move(value)) != nullptr; }
  bool binary(binary_t&) override { return refuse("binary value"); }
  bool key(string_t& name) override {
    if (open_.back()->contains(name)) return refuse(fmt::format("key {} twice", json(name).dump()));
    key_ = std::move(name);
    return true;
  }
  bool start_object(std::size_t) override { return open(json::object()); }
  bool start_array(std::size_t) override { return open(json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool parse_error(std::size_t byte, const std::string& token, const json::exception&) override {
    stopped_at_ = byte;
    return refuse(
        fmt::format("not valid JSON at byte {}{}{}", byte, token.empty() ? "" : ", near ", token));
  }

  [[nodiscard]] const std::string& problem() const { return problem_; }
  // The byte at which text is not valid JSON; 0 for other problems.
  [[nodiscard]] std::size_t stopped_at() const { return stopped_at_; }
  json take() { return std::move(root_); }

 private:
  json* add(json value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    json& parent = *open_.back();
    if (parent.is_array()) {
      parent.push_back(std::move(value));
      return &parent.back();
    }
    return &(parent[key_] = std::move(value));
  }

  bool open(json container) {
    if (open_.size() == json_depth_limit) {
      return refuse(fmt::format("nested deeper than {}", json_depth_limit));
    }
    open_.push_back(add(std::move(container)));
    return true;
  }

  bool close() {
    open_.pop_back();
    return true;
  }

  bool refuse(std::string problem) {
    problem_ = std::move(problem);
    return false;
  }

  json root_;
  std::vector<json*> open_;  // the containers around the next value; parents do not move meanwhile
  std::string key_;
  std::string problem_;
  std::size_t stopped_at_ = 0;
};

// The number of an escape \uXXXX at the beginning; 0 for other text.
unsigned escaped_unit(std::string_view text) {
  if (text.size() < 6 || !text.starts_with("\\u")) return 0;
  unsigned unit = 0;
  const auto read = std::from_chars(text.data() + 2, text.data() + 6, unit, 16);
  return read.ptr == text.data() + 6 ? unit : 0;
}

}  // namespace

std::string json_text_problem(std::string_view text) {
  if (text.starts_with("\xEF\xBB\xBF")) return "begins with a byte order mark";
  if (const auto nul = text.find('\0'); nul != std::string_view::npos) {
    return fmt::format("has a NUL byte at byte {}", nul);
  }
  return {};
}

std::string lone_surrogate_problem(std::string_view text, std::size_t stopped_at) {
  text = text.substr(0, std::min(text.size(), stopped_at));
  for (std::size_t at = text.find('\\'); at < text.size(); at = text.find('\\', at)) {
    const unsigned unit = escaped_unit(text.substr(at));
    const bool high = unit >= 0xd800 && unit < 0xdc00;
    const bool low = unit >= 0xdc00 && unit < 0xe000;
    const unsigned next = high ? escaped_unit(text.substr(at + 6)) : 0;
    const bool pair = next >= 0xdc00 && next < 0xe000;
    if (low || (high && !pair)) {
      return fmt::format(
          "the escape {} at byte {} is half of a pair of surrogates, not a character; write "
          "the whole one, or \\ufffd",
          text.substr(at, 6), at + 1);
    }
    at += pair ? 12 : 2;
  }
  return {};
}

json parse_json(std::string_view text, const std::string& source) {
  const std::string text_problem = json_text_problem(text);
  TESSERA_CHECK(text_problem.empty(), ErrorCode::checkpoint, "'{}' {}; it is damaged", source,
                text_problem);
  StrictBuilder builder;
  const bool parsed = json::sax_parse(text, &builder);
  if (!parsed) {
    const std::string half = lone_surrogate_problem(text, builder.stopped_at());
    TESSERA_CHECK(half.empty(), ErrorCode::checkpoint, "'{}': {}", source, half);
    fail(ErrorCode::checkpoint, "'{}': {}; the file is damaged", source, builder.problem());
  }
  return builder.take();
}

json object_or_null(std::string_view text) {
  try {
    json object = parse_json(text, "");
    if (object.is_object()) return object;
  } catch (const Error&) {
    return nullptr;
  }
  return nullptr;
}

std::string text_member(const json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

}  // namespace tessera::checkpoint
