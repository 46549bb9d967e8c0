// Finds the prompt of two answers.
#include "tasks/conversations/preference.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace tessera::tasks {
namespace {

using nlohmann::ordered_json;

const ordered_json& answer_in(const ordered_json& row, const std::string& column,
                              const std::string& place) {
  const ordered_json* const found = member_at(row, column);
  TESSERA_CHECK(found != nullptr, ErrorCode::data, "{}: no column {}", place, column);
  TESSERA_CHECK(found->is_string() || found->is_array(), ErrorCode::data,
                "{}: column {} is {}, neither a text nor a list of messages", place, column,
                found->type_name());
  return *found;
}

// Two texts whose first `prompt` bytes are the same.
struct CommonText {
  const std::string& chosen;
  const std::string& rejected;
  std::size_t prompt = 0;
};

CommonText common_text(const std::string& chosen, const std::string& rejected) {
  const std::size_t most = std::min(chosen.size(), rejected.size());
  std::size_t common = 0;
  while (common < most && chosen[common] == rejected[common]) ++common;
  // Not within a character.
  const auto continues = [&](const std::string& text) {
    return common < text.size() && (static_cast<unsigned char>(text[common]) & 0xC0) == 0x80;
  };
  while (common > 0 && (continues(chosen) || continues(rejected))) --common;
  const bool differ = common < chosen.size() && common < rejected.size();
  if (differ && common > 0 && chosen[common - 1] == ' ') --common;
  return {chosen, rejected, common};
}

// The row that has the prompt beside the answers.
ordered_json with_prompt(const ordered_json& row, const PreferenceColumns& columns,
                         const std::string& place) {
  ordered_json made = row;
  const ordered_json& chosen = row.at(columns.chosen);
  const ordered_json& rejected = row.at(columns.rejected);
  if (chosen.is_string()) {
    const CommonText common =
        common_text(chosen.get_ref<const std::string&>(), rejected.get_ref<const std::string&>());
    made[columns.prompt] = common.chosen.substr(0, common.prompt);
    made[columns.chosen] = common.chosen.substr(common.prompt);
    made[columns.rejected] = common.rejected.substr(common.prompt);
    return made;
  }
  const auto differs =
      std::mismatch(chosen.begin(), chosen.end(), rejected.begin(), rejected.end()).first;
  // Equal conversations keep their last message as the answer.
  const bool equal = chosen == rejected && !chosen.empty();
  const auto prompt = (differs - chosen.begin()) - (equal ? 1 : 0);
  TESSERA_CHECK(prompt > 0, ErrorCode::data,
                "{}: columns {} and {} begin with no message in common, which is the prompt; give "
                "whole conversations, or a column prompt",
                place, columns.chosen, columns.rejected);
  const auto part = [](auto begin, auto end) {
    ordered_json list = ordered_json::array();
    std::for_each(begin, end, [&](const ordered_json& one) { list.push_back(one); });
    return list;
  };
  made[columns.prompt] = part(chosen.begin(), chosen.begin() + prompt);
  made[columns.chosen] = part(chosen.begin() + prompt, chosen.end());
  made[columns.rejected] = part(rejected.begin() + prompt, rejected.end());
  return made;
}

// A conversation of a prompt and an answer, which may be an empty list.
ConversationRow with_answer(const ordered_json& row, const PreferenceColumns& columns,
                            const std::string& answer, const std::string& place) {
  const ordered_json& messages = row.at(answer);
  if (!messages.is_array() || !messages.empty()) {
    return conversation_of(row, {columns.prompt, answer}, place);
  }
  ConversationRow made = conversation_of(row, {columns.prompt}, place);
  made.prompt_messages = made.conversation.messages.size();
  return made;
}

}  // namespace

PreferenceColumns preference_columns(const std::vector<std::string>& columns,
                                     const std::vector<std::string>& named,
                                     const std::string& place) {
  const auto has = [&](const char* name) {
    return std::find(columns.begin(), columns.end(), name) != columns.end();
  };
  if (named.size() == 3) return {named[0], named[1], named[2]};
  if (named.size() == 2) return {{}, named[0], named[1]};
  TESSERA_CHECK(named.empty(), ErrorCode::configuration,
                "{}: one column is named; a pair of answers is prompt, chosen and rejected, or "
                "chosen and rejected",
                place);
  TESSERA_CHECK(has("chosen") && has("rejected"), ErrorCode::data,
                "{}: no columns chosen and rejected; it has {}", place,
                columns.empty() ? "none" : fmt::format("{}", fmt::join(columns, ", ")));
  return {has("prompt") ? "prompt" : "", "chosen", "rejected"};
}

PreferenceRow preference_of(const ordered_json& row, const PreferenceColumns& columns,
                            const std::string& place) {
  const ordered_json& chosen = answer_in(row, columns.chosen, place);
  const ordered_json& rejected = answer_in(row, columns.rejected, place);
  TESSERA_CHECK(chosen.is_string() == rejected.is_string(), ErrorCode::data,
                "{}: {} and {} are a text and a list; both are texts, or both messages", place,
                columns.chosen, columns.rejected);
  bool is_explicit = !columns.prompt.empty();
  if (is_explicit) {
    const ordered_json& prompt = answer_in(row, columns.prompt, place);
    is_explicit = chosen.is_string() || prompt.is_array();
  }
  PreferenceColumns of_made = columns;
  if (columns.prompt.empty()) of_made.prompt = "prompt";
  const ordered_json made = is_explicit ? row : with_prompt(row, of_made, place);
  return {with_answer(made, of_made, columns.chosen, place),
          with_answer(made, of_made, columns.rejected, place)};
}

}  // namespace tessera::tasks
