// Renders rows, and says which one a template refuses.
#include "tasks/conversations/conversation_texts.h"

#include "base/error.h"

namespace tessera::tasks {

ConversationText ConversationTexts::text(const ConversationRow& row, const std::string& place) {
  if (row.conversation.messages.is_null()) return {row.prompt + row.completion, true};
  if (!templates_) {
    TESSERA_CHECK(!tokenizer_.empty(), ErrorCode::configuration,
                  "{}: messages need a tokenizer with a chat template", place);
    templates_ = tokenizers::ChatTemplates::load(tokenizer_);
  }
  const tokenizers::ChatTemplate& chosen = templates_->choose(row.conversation);
  try {
    return {chosen.render(row.conversation, {.now = now_}).text, false};
  } catch (const Error& problem) {
    throw Error(problem.code(), place + ": " + problem.what());
  }
}

std::uint64_t templates_fingerprint(const std::string& tokenizer) {
  if (tokenizer.empty()) return 0;
  try {
    return tokenizers::ChatTemplates::load(tokenizer).fingerprint();
  } catch (const Error&) {  // a row of messages says what is wrong with it
    return 0;
  }
}

}  // namespace tessera::tasks
