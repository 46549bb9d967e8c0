// The variables of a template, and what transformers does to messages before.
#include "tokenizers/chat/chat_template.h"

#include <algorithm>
#include <array>
#include <limits>
#include <stdexcept>

#include "base/error.h"
#include "tokenizers/chat/jinja/builtins.h"
#include "tokenizers/chat/jinja/interpreter.h"
#include "tokenizers/chat/jinja/parser.h"
#include "tokenizers/text/unicode.h"

namespace tessera::tokenizers {
namespace {

using jinja::Value;
using nlohmann::ordered_json;

bool has_generation(const jinja::Body& body) {
  return std::any_of(body.begin(), body.end(), [](const jinja::Statement& one) {
    return one.kind == jinja::StatementKind::generation ||
           std::any_of(one.bodies.begin(), one.bodies.end(), has_generation);
  });
}

// JSON as values, nested at most as deep as these may be.
class ValueMaker {
 public:
  explicit ValueMaker(const std::string& source) : source_(source) {}

  template <class Make>
  [[nodiscard]] Value bounded(const Make& make) const {
    try {
      return make();
    } catch (const std::length_error& problem) {
      fail(ErrorCode::data, "{}: the conversation: {}", source_, problem.what());
    }
  }

  // NOLINTNEXTLINE(misc-no-recursion): to most_nesting
  [[nodiscard]] Value operator()(const ordered_json& json, int depth = 0) const {
    TESSERA_CHECK(depth < jinja::most_nesting, ErrorCode::data,
                  "{}: the conversation is nested too deep", source_);
    switch (json.type()) {
      case ordered_json::value_t::boolean:
        return json.get<bool>();
      case ordered_json::value_t::number_integer:
        return json.get<std::int64_t>();
      case ordered_json::value_t::number_unsigned:
        TESSERA_CHECK(json.get<std::uint64_t>() <= std::numeric_limits<std::int64_t>::max(),
                      ErrorCode::data, "{}: the number {} is too large", source_, json.dump());
        return json.get<std::int64_t>();
      case ordered_json::value_t::number_float:
        return json.get<double>();
      case ordered_json::value_t::string:
        return text(json.get_ref<const std::string&>());
      case ordered_json::value_t::array: {
        std::vector<Value> items;
        for (const ordered_json& one : json) items.push_back((*this)(one, depth + 1));
        return bounded([&] { return jinja::make_sequence(std::move(items)); });
      }
      case ordered_json::value_t::object: {
        std::vector<std::pair<Value, Value>> items;
        for (const auto& [name, one] : json.items()) {
          items.emplace_back(text(name), (*this)(one, depth + 1));
        }
        return bounded([&] { return jinja::make_mapping(std::move(items)); });
      }
      default:
        return jinja::None{};
    }
  }

 private:
  [[nodiscard]] std::string text(const std::string& bytes) const {
    std::string copy;
    TESSERA_CHECK(as_utf8(bytes, copy).data() == bytes.data(), ErrorCode::data,
                  "{}: a text of the conversation is not UTF-8", source_);
    return bytes;
  }

  const std::string& source_;
};

ordered_json message_for_template(const ordered_json& message) {
  ordered_json kept = ordered_json::object();
  ordered_json reasoning;
  for (const char* const name : {"reasoning_content", "thinking", "reasoning"}) {
    const auto found = message.find(name);
    if (reasoning.is_null() && found != message.end()) reasoning = *found;
  }
  // Their places in the order of the members are those that transformers gives them.
  if (!reasoning.is_null()) kept["thinking"] = reasoning;
  for (const auto& [name, value] : message.items()) {
    if (!value.is_null()) kept[name] = value;
  }
  if (!reasoning.is_null()) kept["reasoning_content"] = reasoning;
  return kept;
}

}  // namespace

struct ChatTemplate::Parsed {
  std::string source;
  std::map<std::string, std::string> special_tokens;
  jinja::Body body;
  bool marks_generations = false;
  std::uint64_t fingerprint = 0;
};

ChatTemplate::ChatTemplate(std::string_view text, std::string source,
                           std::map<std::string, std::string> special_tokens) {
  auto parsed = std::make_unique<Parsed>();
  parsed->body = jinja::parse_template(text, source);
  parsed->marks_generations = has_generation(parsed->body);
  // FNV-1a over the template and the tokens, each with an end.
  std::uint64_t hash = 0xcbf29ce484222325;
  const auto add = [&](std::string_view part) {
    for (const char c : part) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
    hash = (hash ^ 0xff) * 0x100000001b3;  // a byte that UTF-8 does not have
  };
  add(text);
  for (const auto& [name, token] : special_tokens) {
    add(name);
    add(token);
  }
  parsed->fingerprint = hash;
  parsed->source = std::move(source);
  parsed->special_tokens = std::move(special_tokens);
  parsed_ = std::move(parsed);
}

ChatTemplate::~ChatTemplate() = default;
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;

bool ChatTemplate::marks_generations() const {
  return parsed_->marks_generations;
}

std::uint64_t ChatTemplate::fingerprint() const {
  return parsed_->fingerprint;
}

RenderedChat ChatTemplate::render(const Conversation& conversation,
                                  const RenderOptions& options) const {
  const std::string& source = parsed_->source;
  TESSERA_CHECK(conversation.messages.is_array() && !conversation.messages.empty(), ErrorCode::data,
                "{}: a conversation is a list of messages that is not empty", source);
  ordered_json messages = ordered_json::array();
  for (const ordered_json& message : conversation.messages) {
    TESSERA_CHECK(message.is_object(), ErrorCode::data,
                  "{}: a message is an object with a role and a content, not a {}", source,
                  message.type_name());
    messages.push_back(message_for_template(message));
  }
  const ValueMaker value_of(source);
  jinja::Interpreter interpreter(source, {});
  interpreter.notes_generations = options.finds_generations;
  jinja::Interpreter::Variables variables = {
      {"messages", value_of(messages)},
      {"tools", value_of(conversation.tools)},
      {"documents", value_of(conversation.documents)},
      {"add_generation_prompt", options.add_generation_prompt}};
  const auto is_known = [&](const std::string& name) {
    return std::any_of(variables.begin(), variables.end(),
                       [&](const auto& one) { return one.first == name; });
  };
  if (conversation.variables.is_object()) {
    for (const auto& [name, value] : conversation.variables.items()) {
      if (!is_known(name)) variables.emplace_back(name, value_of(value));
    }
  }
  for (const auto& [name, token] : parsed_->special_tokens) {
    if (!is_known(name)) variables.emplace_back(name, Value(token));
  }
  for (auto& [name, function] : jinja::global_functions(interpreter, options.now)) {
    if (!is_known(name)) variables.emplace_back(name, std::move(function));
  }
  RenderedChat chat;
  chat.text = interpreter.run(parsed_->body, std::move(variables));
  for (const jinja::Span& one : interpreter.generations()) {
    chat.generations.emplace_back(one.begin, one.end);
  }
  return chat;
}

}  // namespace tessera::tokenizers
