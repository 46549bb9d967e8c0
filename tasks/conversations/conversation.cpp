// The forms in which data sets write conversations.
#include "tasks/conversations/conversation.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "checkpoint/io/json.h"

namespace tessera::tasks {
namespace {

using nlohmann::ordered_json;

// ShareGPT's names of speakers.
constexpr std::array<std::pair<std::string_view, std::string_view>, 9> roles = {
    {{"human", "user"},
     {"user", "user"},
     {"gpt", "assistant"},
     {"assistant", "assistant"},
     {"chatgpt", "assistant"},
     {"system", "system"},
     {"tool", "tool"},
     {"observation", "tool"},
     {"function_response", "tool"}}};

const ordered_json& member_in(const ordered_json& row, const std::string& column,
                              const std::string& place) {
  const ordered_json* const found = member_at(row, column);
  TESSERA_CHECK(found != nullptr, ErrorCode::data, "{}: no column {}", place, column);
  TESSERA_CHECK(!found->is_null(), ErrorCode::data, "{}: column {} is null; leave such rows out",
                place, column);
  return *found;
}

ordered_json message_of(const ordered_json& given, const std::string& place) {
  TESSERA_CHECK(given.is_object(), ErrorCode::data, "{}: a message is {}, not an object", place,
                given.type_name());
  const bool has_role = given.contains("role") && !given["role"].is_null();
  const bool has_from = given.contains("from") && !given["from"].is_null();
  TESSERA_CHECK(has_role || has_from, ErrorCode::data,
                "{}: a message has neither role and content nor from and value", place);
  const ordered_json& speaker = given[has_role ? "role" : "from"];
  TESSERA_CHECK(speaker.is_string(), ErrorCode::data, "{}: the role of a message is {}, not a text",
                place, speaker.type_name());
  if (has_role) return given;
  const auto known = std::find_if(roles.begin(), roles.end(), [&](const auto& one) {
    return one.first == speaker.get_ref<const std::string&>();
  });
  TESSERA_CHECK(
      known != roles.end(), ErrorCode::data,
      "{}: a message is from {}, and not from a speaker of ShareGPT's; write it with role "
      "and content",
      place, speaker.dump(-1, ' ', true, ordered_json::error_handler_t::replace));
  TESSERA_CHECK(given.contains("value") && given["value"].is_string(), ErrorCode::data,
                "{}: a message with from has no text in value", place);
  ordered_json message = ordered_json::object();
  message["role"] = std::string(known->second);
  message["content"] = given["value"];
  return message;
}

ordered_json messages_of(const ordered_json& list, const std::string& column,
                         const std::string& place) {
  TESSERA_CHECK(list.is_array() && !list.empty(), ErrorCode::data,
                "{}: column {} is {}, not a list of messages", place, column,
                list.is_array() ? "an empty list" : list.type_name());
  ordered_json messages = ordered_json::array();
  for (const ordered_json& one : list) messages.push_back(message_of(one, place));
  return messages;
}

// JSON, or a text of it.
ordered_json json_in(const ordered_json& row, const char* column, const std::string& place) {
  const auto found = row.find(column);
  if (found == row.end() || !found->is_string()) return found == row.end() ? nullptr : *found;
  const auto& text = found->get_ref<const std::string&>();
  if (text.empty()) return nullptr;
  try {
    (void)checkpoint::parse_json(text, column);
  } catch (const Error& problem) {
    fail(ErrorCode::data, "{}: the text of column {}", place, problem.what());
  }
  return ordered_json::parse(text);
}

}  // namespace

std::vector<std::string> member_names(const ordered_json& object) {
  std::vector<std::string> names;
  for (const auto& item : object.items()) names.push_back(item.key());
  return names;
}

const ordered_json* member_at(const ordered_json& object, std::string_view path) {
  if (!object.is_object()) return nullptr;
  if (const auto found = object.find(path); found != object.end()) return &*found;
  const std::size_t dot = path.find('.');
  if (dot == std::string_view::npos) return nullptr;
  const auto found = object.find(path.substr(0, dot));
  return found == object.end() ? nullptr : member_at(*found, path.substr(dot + 1));
}

ConversationColumns conversation_columns(const std::vector<std::string>& columns,
                                         const std::vector<std::string>& named,
                                         const std::string& place) {
  if (named.size() == 1) return {named.front()};
  if (named.size() == 2) return {named[0], named[1]};
  TESSERA_CHECK(named.empty(), ErrorCode::configuration,
                "{}: {} columns are named; a conversation is one column of messages, or a prompt "
                "and a completion",
                place, named.size());
  const auto has = [&](const char* name) {
    return std::find(columns.begin(), columns.end(), name) != columns.end();
  };
  for (const char* const name : {"messages", "conversations"}) {
    if (has(name)) return {name};
  }
  TESSERA_CHECK(has("prompt") && has("completion"), ErrorCode::data,
                "{}: no column messages, none conversations, and not prompt and completion; it has "
                "{}",
                place, columns.empty() ? "none" : fmt::format("{}", fmt::join(columns, ", ")));
  return {"prompt", "completion"};
}

ConversationRow conversation_of(const ordered_json& row, const ConversationColumns& columns,
                                const std::string& place) {
  ConversationRow made;
  const ordered_json& first = member_in(row, columns.messages, place);
  if (columns.completion.empty()) {
    made.conversation.messages = messages_of(first, columns.messages, place);
  } else {
    const ordered_json& second = member_in(row, columns.completion, place);
    TESSERA_CHECK(first.is_string() == second.is_string(), ErrorCode::data,
                  "{}: {} and {} are a text and a list; both are texts, or both messages", place,
                  columns.messages, columns.completion);
    if (first.is_string()) {
      made.prompt = first.get<std::string>();
      made.completion = second.get<std::string>();
      return made;
    }
    made.conversation.messages = messages_of(first, columns.messages, place);
    made.prompt_messages = made.conversation.messages.size();
    for (ordered_json& one : messages_of(second, columns.completion, place)) {
      made.conversation.messages.push_back(std::move(one));
    }
  }
  made.conversation.tools = json_in(row, tools_column, place);
  TESSERA_CHECK(made.conversation.tools.is_null() || made.conversation.tools.is_array(),
                ErrorCode::data, "{}: column tools is {}, not a list of tools", place,
                made.conversation.tools.type_name());
  made.conversation.variables = json_in(row, variables_column, place);
  TESSERA_CHECK(made.conversation.variables.is_null() || made.conversation.variables.is_object(),
                ErrorCode::data, "{}: column {} is {}, not an object", place, variables_column,
                made.conversation.variables.type_name());
  return made;
}

}  // namespace tessera::tasks
