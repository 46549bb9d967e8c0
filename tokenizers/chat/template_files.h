// The chat templates of a tokenizer's folder.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "tokenizers/chat/chat_template.h"

namespace tessera::tokenizers {

// The templates by their names; most tokenizers have one, "default".
class ChatTemplates {
 public:
  // Those of a tokenizer (its folder or a file in it), as transformers finds them:
  // chat_template.jinja and additional_chat_templates/*.jinja, or else chat_template in
  // tokenizer_config.json, a text or a list of named ones. The variables bos_token, eos_token and
  // so on are those of tokenizer_config.json, or else of special_tokens_map.json. A file that is
  // given takes the place of all templates. Throws Error(data) for a damaged file, and
  // Error(configuration) if there is no template.
  static ChatTemplates load(const std::string& tokenizer, const std::string& file = "");

  // The template of this conversation: tool_use, if there is one and the conversation has tools,
  // else default.
  [[nodiscard]] const ChatTemplate& choose(const Conversation& conversation) const;
  [[nodiscard]] std::uint64_t fingerprint() const;

 private:
  std::string source_;
  std::map<std::string, ChatTemplate> templates_;
};

}  // namespace tessera::tokenizers
