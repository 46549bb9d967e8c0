// Finds templates and special tokens in files.
#include "tokenizers/chat/template_files.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <system_error>
#include <vector>

#include "base/error.h"
#include "tokenizers/files/files.h"
#include "tokenizers/text/json_fields.h"

namespace tessera::tokenizers {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// The text of a token: a string, or an object with it.
void take_token(const json& token, const std::string& name,
                std::map<std::string, std::string>& tokens) {
  if (token.is_string()) tokens[name] = token.get<std::string>();
  if (!token.is_object()) return;
  const auto content = token.find("content");
  if (content != token.end() && content->is_string()) tokens[name] = content->get<std::string>();
}

std::map<std::string, std::string> special_tokens_in(const fs::path& folder, const json& settings) {
  std::map<std::string, std::string> tokens;
  // The older file counts where the newer list of tokens is absent.
  const json older = has(settings, "added_tokens_decoder")
                         ? json()
                         : read_beside(folder, "special_tokens_map.json");
  for (const json* file : {&settings, &older}) {
    for (const char* const name : {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token",
                                   "cls_token", "mask_token"}) {
      if (has(*file, name)) take_token((*file)[name], name, tokens);
    }
    // Tokens with names of a model's own.
    for (const char* const group : {"extra_special_tokens", "model_specific_special_tokens"}) {
      if (!has(*file, group) || !(*file)[group].is_object()) continue;
      for (const auto& [name, token] : (*file)[group].items()) take_token(token, name, tokens);
    }
  }
  return tokens;
}

using Texts = std::map<std::string, std::pair<std::string, std::string>>;  // source and template

void add_file(const fs::path& path, const std::string& name, Texts& texts) {
  texts[name] = {fmt::format("chat template '{}'", path.string()), read_tokenizer_file(path)};
}

Texts texts_in(const fs::path& folder, const json& settings) {
  Texts texts;
  std::error_code none;
  if (fs::is_regular_file(folder / "chat_template.jinja", none)) {
    add_file(folder / "chat_template.jinja", "default", texts);
  }
  for (const fs::directory_entry& entry :
       fs::directory_iterator(folder / "additional_chat_templates", none)) {
    if (entry.path().extension() != ".jinja") continue;
    add_file(entry.path(), entry.path().stem().string(), texts);
  }
  if (!texts.empty() || !has(settings, "chat_template")) return texts;
  const std::string place = fmt::format("'{}'", (folder / "tokenizer_config.json").string());
  const json& listed = settings["chat_template"];
  const auto source = [&](const std::string& name) {
    return fmt::format("chat template {} in {}", shown(name), place);
  };
  if (listed.is_string()) {
    texts["default"] = {source("default"), listed.get<std::string>()};
    return texts;
  }
  TESSERA_CHECK(listed.is_array(), ErrorCode::data,
                "{}: chat_template is neither a text nor a list of named templates", place);
  for (const json& one : listed) {
    const std::string name = string_of(one, "name", place);
    texts[name] = {source(name), string_of(one, "template", place)};
  }
  return texts;
}

}  // namespace

ChatTemplates ChatTemplates::load(const std::string& tokenizer, const std::string& file) {
  ChatTemplates loaded;
  std::error_code none;
  const fs::path path = tokenizer;
  const bool is_folder = fs::is_directory(path, none);
  const fs::path folder = is_folder                         ? path
                          : path.has_parent_path()          ? path.parent_path()
                          : fs::is_regular_file(path, none) ? fs::path(".")
                                                            : fs::path();
  const json settings = folder.empty() ? json() : read_beside(folder, "tokenizer_config.json");
  Texts texts;
  if (!file.empty()) {
    TESSERA_CHECK(fs::is_regular_file(file, none), ErrorCode::configuration,
                  "chat template '{}': there is no such file", file);
    add_file(file, "default", texts);
  } else if (!folder.empty()) {
    texts = texts_in(folder, settings);
  }
  loaded.source_ = tokenizer;
  TESSERA_CHECK(!texts.empty(), ErrorCode::configuration,
                "tokenizer {} has no chat template; put a chat_template.jinja beside it, or name a "
                "file with one",
                tokenizer);
  const auto tokens =
      folder.empty() ? std::map<std::string, std::string>() : special_tokens_in(folder, settings);
  for (const auto& [name, text] : texts) {
    loaded.templates_.emplace(name, ChatTemplate(text.second, text.first, tokens));
  }
  return loaded;
}

const ChatTemplate& ChatTemplates::choose(const Conversation& conversation) const {
  auto found = templates_.end();
  if (!conversation.tools.is_null()) found = templates_.find("tool_use");
  if (found == templates_.end()) found = templates_.find("default");
  if (found != templates_.end()) return found->second;
  std::vector<std::string> names;
  for (const auto& [name, one] : templates_) names.push_back(shown(name));
  fail(ErrorCode::configuration, "tokenizer {} has the chat templates {}, and none is the default",
       source_, fmt::join(names, ", "));
}

std::uint64_t ChatTemplates::fingerprint() const {
  std::string all;
  for (const auto& [name, one] : templates_) all += fmt::format("{} {} ", name, one.fingerprint());
  return fingerprint_of(all);
}

}  // namespace tessera::tokenizers
