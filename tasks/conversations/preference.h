// A row of a data set as a prompt with two answers, of which one is preferred.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tasks/conversations/conversation.h"

namespace tessera::tasks {

struct PreferenceColumns {
  std::string prompt;  // empty: the beginning that both have in common
  std::string chosen, rejected;
};

// Both have the same prompt, and an answer that may be empty.
struct PreferenceRow {
  ConversationRow chosen, rejected;
};

// The columns of a row with these names: chosen, rejected and, if it is there, prompt. `named` are
// those that the user gives: prompt, chosen and rejected, or the last two, or none. Error(data) or
// Error(configuration) that begins with `place` if there are none.
PreferenceColumns preference_columns(const std::vector<std::string>& columns,
                                     const std::vector<std::string>& named,
                                     const std::string& place);

// All three are texts, or all are lists of messages. Without a prompt, or with one that is a text
// beside answers of messages, the answers are whole conversations or texts: the prompt is their
// longest common beginning of messages, or of characters without a space at its end. The rest is as
// in conversation_of(). Error(data) that begins with `place` for anything else.
PreferenceRow preference_of(const nlohmann::ordered_json& row, const PreferenceColumns& columns,
                            const std::string& place);

}  // namespace tessera::tasks
