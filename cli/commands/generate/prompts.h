// The prompts of `tessera generate`: texts, or messages in a model's chat template, as token ids.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/data/tokenizer.h"
#include "models/language_model.h"
#include "tokenizers/chat/template_files.h"

namespace tessera::cli {

using Ids = std::vector<std::int64_t>;

// The folder's tokenizer; without one, bytes if the model's vocabulary allows it. Throws
// Error(usage) if it does not, and Error(data) for a tokenizer of another model.
std::shared_ptr<const Tokenizer> tokenizer_of(const std::string& folder,
                                              const models::LanguageModel& model);

// The ids of eos_token_id in generation_config.json, or else in config.json. Error(configuration)
// if it is neither an id nor a list of ids.
Ids end_of_text_ids(const std::string& folder);

// The lines of a file, or of standard input for "-"; with a column, the texts under this key of
// JSON lines. Throws Error(data): a file that cannot be read, an empty line, no line.
std::vector<std::string> read_prompts(const std::string& file, const std::string& column);

// Makes a conversation of each message of a user: the system's text, if there is one, the message,
// and the beginning of the answer.
class Chat {
 public:
  // Throws Error(configuration) if the tokenizer in the folder has no chat template.
  Chat(const std::string& folder, std::optional<std::string> system);

  // Throws Error(data) with the line of the template that refuses the conversation.
  [[nodiscard]] std::string text_of(std::string_view message) const;

 private:
  tokenizers::ChatTemplates templates_;
  std::optional<std::string> system_;
};

}  // namespace tessera::cli
