// Reads prompts and the files of a model that say how a prompt begins and ends.
#include "cli/commands/generate/prompts.h"

#include <chrono>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "cli/text_lines.h"
#include "engine/data/corpus.h"
#include "models/config/config_file.h"
#include "tokenizers/load.h"

namespace tessera::cli {

std::shared_ptr<const Tokenizer> tokenizer_of(const std::string& folder,
                                              const models::LanguageModel& model) {
  if (tokenizers::is_tokenizer_folder(folder)) {
    auto tokenizer = tokenizers::load_tokenizer(folder);
    check_vocabulary(folder, std::string(tokenizer->name()), tokenizer->vocabulary_size(),
                     model.vocabulary(), true);
    return tokenizer;
  }
  auto bytes = make_tokenizer("bytes");
  TESSERA_CHECK(model.vocabulary() == bytes->vocabulary_size(), ErrorCode::usage,
                "{}: no tokenizer (tokenizer.json, vocab.txt, tokenizer.model) for this "
                "model's vocabulary of {}; put it there, or give --prompt-ids",
                folder, model.vocabulary());
  return bytes;
}

Ids end_of_text_ids(const std::string& folder) {
  const auto generation = models::read_optional_config(folder, "generation_config.json");
  for (const nlohmann::json& config :
       {generation.value_or(nlohmann::json::object()), models::read_config(folder)}) {
    const auto eos = config.find("eos_token_id");
    if (eos == config.end() || eos->is_null()) continue;
    Ids ids;
    for (const nlohmann::json& id : eos->is_array() ? *eos : nlohmann::json::array({*eos})) {
      TESSERA_CHECK(id.is_number_integer(), ErrorCode::configuration,
                    "{}: eos_token_id is {}; must be a token id or a list of them", folder,
                    eos->dump());
      ids.push_back(id.get<std::int64_t>());
    }
    return ids;
  }
  return {};
}

std::vector<std::string> read_prompts(const std::string& name, const std::string& column) {
  std::ifstream file;
  if (name != "-") {
    file.open(name);
    TESSERA_CHECK(file.is_open(), ErrorCode::data, "{}: cannot be read: {}", name,
                  describe_errno("open", errno));
  }
  std::istream& stream = name == "-" ? std::cin : file;
  std::vector<std::string> prompts;
  for (std::string line; std::getline(stream, line);) {
    const std::string place = fmt::format("{}: line {}", name, prompts.size() + 1);
    std::string text = line.empty() ? line : text_of_line(std::move(line), column, place);
    TESSERA_CHECK(!text.empty(), ErrorCode::data, "{} is empty; each line is a prompt", place);
    prompts.push_back(std::move(text));
  }
  TESSERA_CHECK(!stream.bad() && !prompts.empty(), ErrorCode::data, "{}: no prompts there", name);
  return prompts;
}

Chat::Chat(const std::string& folder, std::optional<std::string> system)
    : templates_(tokenizers::ChatTemplates::load(folder)), system_(std::move(system)) {}

std::string Chat::text_of(std::string_view message) const {
  tokenizers::Conversation conversation;
  conversation.messages = nlohmann::ordered_json::array();
  if (system_) conversation.messages.push_back({{"role", "system"}, {"content", *system_}});
  conversation.messages.push_back({{"role", "user"}, {"content", message}});
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return templates_.choose(conversation)
      .render(conversation, {.add_generation_prompt = true,
                             .now = std::chrono::duration_cast<std::chrono::seconds>(now).count()})
      .text;
}

}  // namespace tessera::cli
