// Conversations as texts to encode.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "tasks/conversations/conversation.h"
#include "tokenizers/chat/template_files.h"

namespace tessera::tasks {

// A text, and whether the tokenizer's token that ends a text comes behind it: a template writes its
// own ends.
struct ConversationText {
  std::string text;
  bool needs_end = false;
};

// The text of each row: messages by the chat template of a tokenizer's folder, which is loaded when
// the first conversation needs it; a prompt and a completion that are texts one behind the other.
class ConversationTexts {
 public:
  // `tokenizer` is the argument of load_tokenizer(); empty: there is none. `now` is the time of
  // strftime_now(), in seconds since 1970: that of the data file, so that a row has one text.
  ConversationTexts(std::string tokenizer, std::int64_t now)
      : tokenizer_(std::move(tokenizer)), now_(now) {}

  // Error(data) that begins with `place` if the template refuses the row; Error(configuration)
  // without a template.
  [[nodiscard]] ConversationText text(const ConversationRow& row, const std::string& place);

 private:
  std::string tokenizer_;
  std::int64_t now_;
  std::optional<tokenizers::ChatTemplates> templates_;
};

// Stands for the templates of a tokenizer's folder in the name of what is made with them; 0 if it
// has none that can be read.
std::uint64_t templates_fingerprint(const std::string& tokenizer);

}  // namespace tessera::tasks
