// A row of a data set as a conversation.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizers/chat/chat_template.h"

namespace tessera::tasks {

// The names of the members, in their order.
std::vector<std::string> member_names(const nlohmann::ordered_json& object);
// The member with this name, or with this path of names with dots; null: there is none.
const nlohmann::ordered_json* member_at(const nlohmann::ordered_json& object,
                                        std::string_view path);

// Columns that make a conversation, in the order in which they are looked for: messages,
// conversations (ShareGPT's), or prompt and completion. With other names: one column of messages,
// or two of a prompt and a completion.
struct ConversationColumns {
  std::string messages;
  std::string completion = {};  // not empty: `messages` is the prompt
};

// Which tokens of a conversation count in the loss.
enum class LossOn : std::uint8_t { answers, all };

// Columns that are taken along where a row has them.
inline constexpr const char* tools_column = "tools";
inline constexpr const char* variables_column = "chat_template_kwargs";

// The contents of a row: messages for a chat template, or a prompt and a completion as texts.
struct ConversationRow {
  tokenizers::Conversation conversation;  // messages is null: the texts
  std::size_t prompt_messages = 0;        // of a prompt and completion that are messages
  std::string prompt, completion;
};

// The columns of a row with these names; `named` are those that the user gives, or none.
// Error(data) that begins with `place` if there are none.
ConversationColumns conversation_columns(const std::vector<std::string>& columns,
                                         const std::vector<std::string>& named,
                                         const std::string& place);

// Reads messages with role and content, ShareGPT's with from and value (human and gpt are the roles
// user and assistant), tools as a list or as JSON in a text, and chat_template_kwargs, an object of
// further variables. Error(data) that begins with `place` for anything else.
ConversationRow conversation_of(const nlohmann::ordered_json& row,
                                const ConversationColumns& columns, const std::string& place);

}  // namespace tessera::tasks
