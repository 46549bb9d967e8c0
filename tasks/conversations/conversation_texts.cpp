// Renders rows, and says which one a template refuses.
#include "tasks/conversations/conversation_texts.h"

#include <algorithm>

#include "base/error.h"

namespace tessera::tasks {

const tokenizers::ChatTemplate& ConversationTexts::template_of(const ConversationRow& row,
                                                               const std::string& place) {
  if (!templates_) {
    TESSERA_CHECK(!tokenizer_.empty(), ErrorCode::configuration,
                  "{}: messages need a tokenizer with a chat template", place);
    templates_ = tokenizers::ChatTemplates::load(tokenizer_);
  }
  return templates_->choose(row.conversation);
}

namespace {

template <class Work>
auto at_place(const std::string& place, const Work& work) {
  try {
    return work();
  } catch (const Error& problem) {
    throw Error(problem.code(), place + ": " + problem.what());
  }
}

}  // namespace

ConversationText ConversationTexts::text(const ConversationRow& row, const std::string& place) {
  if (row.conversation.messages.is_null()) return {row.prompt + row.completion, true};
  const tokenizers::ChatTemplate& chosen = template_of(row, place);
  return at_place(
      place, [&] { return ConversationText{chosen.render(row.conversation, {.now = now_}).text}; });
}

// A conversation and its beginnings as texts.
struct ConversationTexts::Renderer {
  const tokenizers::ChatTemplate& chosen;
  const tokenizers::Conversation& conversation;
  std::int64_t now;
  std::string whole;

  // The length of the text of the first messages, with the beginning of an answer behind them if
  // `prompts`.
  [[nodiscard]] std::size_t length_of(std::size_t messages, bool prompts) const {
    if (messages == conversation.messages.size()) return whole.size();
    tokenizers::Conversation part = conversation;
    const auto end = part.messages.begin() + static_cast<std::ptrdiff_t>(messages);
    part.messages.erase(end, part.messages.end());
    const std::string text =
        chosen.render(part, {.add_generation_prompt = prompts, .now = now}).text;
    TESSERA_CHECK(whole.starts_with(text), ErrorCode::data,
                  "the chat template gives message {} another text than the whole conversation "
                  "has there, so the place of the answer is not known; give a template that has "
                  "the answers in {{% generation %}} blocks, or set data.loss_on: all",
                  messages);
    return text.size();
  }
};

ConversationText ConversationTexts::answered_text(const ConversationRow& row,
                                                  const std::string& place) {
  if (row.conversation.messages.is_null()) {
    ConversationText made{row.prompt + row.completion, true};
    made.answers.emplace_back(row.prompt.size(), made.text.size());
    return made;
  }
  const tokenizers::ChatTemplate& chosen = template_of(row, place);
  return at_place(place, [&] {
    tokenizers::RenderedChat whole =
        chosen.render(row.conversation, {.now = now_, .finds_generations = true});
    ConversationText made{std::move(whole.text)};
    if (row.prompt_messages == 0 && chosen.marks_generations()) {
      made.answers = std::move(whole.generations);
      return made;
    }
    const Renderer renderer{chosen, row.conversation, now_, made.text};
    if (row.prompt_messages > 0) {
      made.answers.emplace_back(renderer.length_of(row.prompt_messages, true), made.text.size());
      return made;
    }
    const auto& messages = row.conversation.messages;
    for (std::size_t i = 0; i < messages.size(); ++i) {
      if (messages[i].at("role") != "assistant") continue;
      TESSERA_CHECK(
          i > 0, ErrorCode::data,
          "the first message is the assistant's; begin with one of a user or the system, or put "
          "a chat_template.jinja with {{% generation %}} blocks beside the tokenizer");
      const std::size_t end = renderer.length_of(i + 1, false);
      made.answers.emplace_back(std::min(renderer.length_of(i, true), end), end);
    }
    return made;
  });
}

ConversationTokens tokens_of_answers(const ConversationText& text, const Tokenizer& tokenizer) {
  std::string bytes = text.text;
  auto answers = text.answers;
  const auto end_of_text = text.needs_end ? tokenizer.end_of_text() : std::nullopt;
  if (text.needs_end && !end_of_text) {
    if (!answers.empty() && answers.back().second == bytes.size()) ++answers.back().second;
    bytes += '\n';
  }
  std::vector<std::size_t> places;
  for (const auto& [begin, end] : answers) {
    places.push_back(begin);
    places.push_back(end);
  }
  CutTokens cut = tokenizer.encode_cut(bytes, places);
  ConversationTokens made{std::move(cut.ids), {}};
  made.counts.resize(made.ids.size());
  for (std::size_t i = 0; i < answers.size(); ++i) {
    if (answers[i].first == answers[i].second) continue;
    std::fill(made.counts.begin() + static_cast<std::ptrdiff_t>(cut.cuts[2 * i].ended),
              made.counts.begin() + static_cast<std::ptrdiff_t>(cut.cuts[2 * i + 1].begun), true);
  }
  if (end_of_text) {
    made.ids.push_back(*end_of_text);
    made.counts.push_back(!answers.empty() && answers.back().second == bytes.size());
  }
  return made;
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
