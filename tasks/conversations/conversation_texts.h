// Conversations as texts to encode.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/data/tokenizer.h"
#include "tasks/conversations/conversation.h"
#include "tokenizers/chat/template_files.h"

namespace tessera::tasks {

// A text, and whether the tokenizer's token that ends a text comes behind it: a template writes its
// own ends.
struct ConversationText {
  std::string text;
  bool needs_end = false;
  // Its answers, from answered_text(): the bytes [begin, end) of each, ascending.
  std::vector<std::pair<std::size_t, std::size_t>> answers = {};
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
  // The same with its answers. Of a prompt and a completion: the text behind the prompt and the
  // generation prompt. Of messages: what the template has in {% generation %} blocks. In a template
  // without these: for each message of the assistant the text behind that of the messages before it
  // and the generation prompt, up to the end of the text of the messages up to it; Error(data) if
  // these texts are not beginnings of the whole one, and if the assistant speaks first.
  [[nodiscard]] ConversationText answered_text(const ConversationRow& row,
                                               const std::string& place);

 private:
  struct Renderer;
  [[nodiscard]] const tokenizers::ChatTemplate& template_of(const ConversationRow& row,
                                                            const std::string& place);

  std::string tokenizer_;
  std::int64_t now_;
  std::optional<tokenizers::ChatTemplates> templates_;
};

// The tokens of a conversation, and which of them count in the loss.
struct ConversationTokens {
  std::vector<std::int32_t> ids;
  std::vector<bool> counts;
};
// A token counts if one of its bytes is an answer's, and so does the token behind the last answer
// that ends a text. Error(data) if the tokenizer changes the text so that the places are not known.
ConversationTokens tokens_of_answers(const ConversationText& text, const Tokenizer& tokenizer);

// Stands for the templates of a tokenizer's folder in the name of what is made with them; 0 if it
// has none that can be read.
std::uint64_t templates_fingerprint(const std::string& tokenizer);

}  // namespace tessera::tasks
