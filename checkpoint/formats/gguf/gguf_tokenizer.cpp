// Chooses the file that describes the tokenizer, and writes its settings.
#include "checkpoint/formats/gguf/gguf_tokenizer.h"

#include <fmt/format.h>
#include <filesystem>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "checkpoint/formats/gguf/gguf_config.h"
#include "checkpoint/io/json.h"

namespace tessera::checkpoint::formats {

namespace {

using nlohmann::json;

constexpr std::uint64_t tokenizer_limit = std::uint64_t{256} << 20;
constexpr float padding_score = -10000.0F;  // as llama.cpp's converter
constexpr float added_score = -1000.0F;

class TokenizerWriter {
 public:
  TokenizerWriter(const Contents& contents, const json& config, std::int64_t vocabulary,
                  GgufMetadata& metadata, std::set<std::string>& used,
                  std::vector<std::string>& notes)
      : contents_(contents),
        config_(config),
        size_(vocabulary),
        metadata_(metadata),
        used_(used),
        notes_(notes) {}

  void run() {
    settings_ = read_json("tokenizer_config.json").value_or(json::object());
    std::optional<GgufVocabulary> vocabulary = find_vocabulary();
    if (!vocabulary) {
      metadata_.text("tokenizer.ggml.model", "none");
      notes_.emplace_back(
          "no tokenizer.json or tokenizer.model is beside the weights: the GGUF file has no "
          "tokenizer, and takes the numbers of tokens only");
      write_special_tokens();
      return;
    }
    vocabulary_ = std::move(*vocabulary);
    complete();
    metadata_.text("tokenizer.ggml.model", vocabulary_.model);
    metadata_.text("tokenizer.ggml.pre", vocabulary_.pre);
    metadata_.texts("tokenizer.ggml.tokens", vocabulary_.tokens);
    if (!vocabulary_.scores.empty()) {
      metadata_.reals("tokenizer.ggml.scores", vocabulary_.scores);
    }
    metadata_.numbers("tokenizer.ggml.token_type", vocabulary_.kinds);
    if (!vocabulary_.merges.empty()) metadata_.texts("tokenizer.ggml.merges", vocabulary_.merges);
    write_special_tokens();
    write_chat_template();
  }

 private:
  std::optional<std::string> read(const std::string& name) {
    std::optional<std::string> text = gguf_text_of(contents_, name);
    if (text) used_.insert(name);
    return text;
  }

  std::optional<json> read_json(const std::string& name) {
    const std::optional<std::string> text = read(name);
    if (!text) return std::nullopt;
    json value = parse_json(*text, name);
    TESSERA_CHECK(value.is_object(), ErrorCode::checkpoint, "{} is not a JSON object", name);
    return value;
  }

  // tokenizer.model has SentencePiece's own scores; tokenizer.json has tokens that were added.
  std::optional<GgufVocabulary> find_vocabulary() {
    std::optional<GgufVocabulary> found;
    if (const auto tokenizer = read_json("tokenizer.json")) {
      found = vocabulary_of_json(*tokenizer);
      if (found->model != "llama") return found;
    }
    const std::optional<std::string> model = read("tokenizer.model");
    if (!model) return found;
    GgufVocabulary pieces = vocabulary_of_sentencepiece(*model);
    if (!found) return pieces;
    for (std::size_t i = pieces.tokens.size(); i < found->tokens.size(); ++i) {
      pieces.tokens.push_back(found->tokens[i]);
      pieces.kinds.push_back(found->kinds[i]);
      pieces.scores.push_back(added_score);
    }
    pieces.adds_beginning = found->adds_beginning;
    return pieces;
  }

  // llama.cpp takes the size of the vocabulary from the list of tokens.
  void complete() {
    const auto size = static_cast<std::size_t>(size_);
    TESSERA_CHECK(vocabulary_.tokens.size() <= size, ErrorCode::checkpoint,
                  "the tokenizer has {} tokens, the model {}; they do not belong together",
                  vocabulary_.tokens.size(), size);
    const std::size_t given = vocabulary_.tokens.size();
    vocabulary_.tokens.resize(size);
    vocabulary_.kinds.resize(size, GgufVocabulary::unused);
    if (!vocabulary_.scores.empty()) vocabulary_.scores.resize(size, padding_score);
    for (std::size_t i = 0; i < size; ++i) {
      if (vocabulary_.kinds[i] == GgufVocabulary::unused && vocabulary_.tokens[i].empty()) {
        vocabulary_.tokens[i] = fmt::format("[PAD{}]", i);
      }
      numbers_.emplace(vocabulary_.tokens[i], static_cast<std::uint32_t>(i));
    }
    if (given < size) {
      notes_.push_back(
          fmt::format("{} tokens of padding follow the tokenizer's {}", size - given, given));
    }
  }

  // The number of a special token: by its text in tokenizer_config.json, else by its number in
  // config.json, where several may end a text.
  std::optional<std::uint32_t> special(const std::string& name) const {
    json token = settings_.value(name, json());
    if (token.is_object()) token = token.value("content", json());
    if (token.is_string()) {
      const auto found = numbers_.find(token.get<std::string>());
      if (found != numbers_.end()) return found->second;
    }
    json id = config_.value(name + "_id", json());
    if (id.is_array() && !id.empty()) id = json(id[0]);
    if (!id.is_number_integer() || id < 0 || id >= size_) return std::nullopt;
    return id.get<std::uint32_t>();
  }

  // The tokens that end a text, if there are several: GGUF has a setting for one.
  void write_ends() {
    const json generation = read_json("generation_config.json").value_or(json::object());
    json ends = generation.value("eos_token_id", json());
    if (ends.is_null()) ends = config_.value("eos_token_id", json());
    if (ends.is_array() && ends.size() > 1) {
      metadata_.text(gguf_ends_key, json{{"eos_token_id", ends}}.dump());
    }
  }

  void write_special_tokens() {
    write_ends();
    constexpr std::pair<const char*, const char*> names[] = {{"bos_token", "bos"},
                                                             {"eos_token", "eos"},
                                                             {"unk_token", "unknown"},
                                                             {"pad_token", "padding"}};
    for (const auto& [name, key] : names) {
      if (const auto id = special(name)) {
        metadata_.number(fmt::format("tokenizer.ggml.{}_token_id", key), *id);
      }
    }
    const json& begins = settings_.value("add_bos_token", json());
    const json& ends = settings_.value("add_eos_token", json());
    if (begins.is_boolean()) {
      metadata_.boolean("tokenizer.ggml.add_bos_token", begins.get<bool>());
    } else if (vocabulary_.adds_beginning) {
      metadata_.boolean("tokenizer.ggml.add_bos_token", *vocabulary_.adds_beginning);
    }
    if (ends.is_boolean()) metadata_.boolean("tokenizer.ggml.add_eos_token", ends.get<bool>());
    const json& prefix = settings_.value("add_prefix_space", json());
    if (prefix.is_boolean()) {
      metadata_.boolean("tokenizer.ggml.add_space_prefix", prefix.get<bool>());
    }
  }

  void write_chat_template() {
    if (const auto text = read("chat_template.jinja")) {
      metadata_.text("tokenizer.chat_template", *text);
      return;
    }
    const json chat = settings_.value("chat_template", json());
    if (chat.is_string()) {
      metadata_.text("tokenizer.chat_template", chat.get<std::string>());
      return;
    }
    if (!chat.is_array()) return;
    for (const json& each : chat) {  // several, with names
      if (each.is_object() && each.value("name", json()) == "default" &&
          each.value("template", json()).is_string()) {
        metadata_.text("tokenizer.chat_template", each["template"].get<std::string>());
        return;
      }
    }
  }

  const Contents& contents_;
  const json& config_;
  std::int64_t size_;
  GgufMetadata& metadata_;
  std::set<std::string>& used_;
  std::vector<std::string>& notes_;
  json settings_;
  GgufVocabulary vocabulary_;
  std::unordered_map<std::string, std::uint32_t> numbers_;
};

}  // namespace

std::optional<std::string> gguf_text_of(const Contents& contents, const std::string& name) {
  if (const auto text = contents.texts.find(name); text != contents.texts.end()) {
    return text->second;
  }
  const auto file = contents.files.find(name);
  if (file == contents.files.end()) return std::nullopt;
  const std::filesystem::path& path = file->second;
  const std::filesystem::path folder = path.has_parent_path() ? path.parent_path() : ".";
  return read_whole(open_member(folder, path.filename().string()), tokenizer_limit);
}

void write_gguf_tokenizer(const Contents& contents, const json& config, std::int64_t vocabulary,
                          GgufMetadata& metadata, std::set<std::string>& used,
                          std::vector<std::string>& notes) {
  TokenizerWriter(contents, config, vocabulary, metadata, used, notes).run();
}

}  // namespace tessera::checkpoint::formats
