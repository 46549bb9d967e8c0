// Chat templates: conversations as the text that a model was trained on. The language is Jinja's,
// the settings, variables and functions are those of transformers' apply_chat_template().
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::tokenizers {

struct Conversation {
  nlohmann::ordered_json messages;         // objects with a role; not empty
  nlohmann::ordered_json tools = nullptr;  // a list of JSON schemas, or null
  nlohmann::ordered_json documents = nullptr;
  // Further variables by name, as enable_thinking: an object or null. They go before special
  // tokens of the same name.
  nlohmann::ordered_json variables = nullptr;
};

struct RenderOptions {
  bool add_generation_prompt = false;  // the beginning of the answer behind the last message
  std::int64_t now = 0;                // of strftime_now(): seconds since 1970, in UTC
  bool finds_generations = false;
};

struct RenderedChat {
  std::string text;
  // With finds_generations: the bytes [begin, end) that {% generation %} blocks made, in order.
  std::vector<std::pair<std::size_t, std::size_t>> generations = {};
};

// A parsed template. Threads may render at the same time.
class ChatTemplate {
 public:
  // `source` begins the messages: "chat template FILE". Throws Error(data) with the line for text
  // that is not a template, and for statements that chat templates do not have (include, extends,
  // ..).
  ChatTemplate(std::string_view text, std::string source,
               std::map<std::string, std::string> special_tokens = {});
  ~ChatTemplate();
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;

  // As transformers, it drops members of messages that are null, and gives reasoning_content also
  // the names `thinking` and the other way round. Throws Error(data) with the template's line: what
  // the template refuses, what it misuses, unknown filters and tests; more than 20 million steps,
  // 64 MiB of output, or 800 nested calls.
  [[nodiscard]] RenderedChat render(const Conversation& conversation,
                                    const RenderOptions& options = {}) const;

  // It has {% generation %} blocks.
  [[nodiscard]] bool marks_generations() const;
  // Equal for equal templates with equal special tokens.
  [[nodiscard]] std::uint64_t fingerprint() const;

 private:
  struct Parsed;
  std::unique_ptr<const Parsed> parsed_;
};

}  // namespace tessera::tokenizers
