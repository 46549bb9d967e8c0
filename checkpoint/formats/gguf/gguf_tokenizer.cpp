// Chooses the file that describes the tokenizer, and writes its settings.
#include "checkpoint/formats/gguf/gguf_tokenizer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "base/counted.h"
#include "base/error.h"
#include "base/text/ascii_lower.h"
#include "base/text/printable.h"
#include "checkpoint/formats/gguf/gguf_config.h"
#include "checkpoint/formats/gguf/gguf_tokenizer_json.h"
#include "checkpoint/io/json.h"

namespace tessera::checkpoint::formats {

namespace {

using nlohmann::json;

constexpr std::uint64_t tokenizer_limit = std::uint64_t{256} << 20;
constexpr float padding_score = -10000.0F;  // as llama.cpp's converter
constexpr float added_score = -1000.0F;

// Tokens at which llama.cpp ends a text because of their texts, whatever the settings are.
constexpr std::array<std::string_view, 15> known_ends{
    "<|eot_id|>", "<|im_end|>",    "<|end|>", "<|return|>", "<|call|>", "<end_of_turn>",
    "</s>",       "<|endoftext|>", "<EOT>",   "<|eom_id|>", "[EOT]",    "<|end_of_text|>",
    "[EOS]",      "<eos>",         "_<EOT>"};

class TokenizerWriter {
 public:
  TokenizerWriter(const Contents& contents, const json& config, const std::string& name,
                  std::int64_t vocabulary, GgufMetadata& metadata, std::set<std::string>& used,
                  std::vector<std::string>& notes)
      : contents_(contents),
        config_(config),
        name_(ascii_lower(name)),
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
    add_further_tokens();
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
    write_surroundings();
    note_neighbours();
    write_chat_template();
    notes_.insert(notes_.end(), vocabulary_.notes.begin(), vocabulary_.notes.end());
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
    join_pieces(pieces, *found);
    return found;
  }

  // tokenizer.json says what transformers does; the other file has the scores.
  void join_pieces(const GgufVocabulary& pieces, GgufVocabulary& found) {
    std::size_t others = 0;
    const std::size_t known = found.tokens.size();
    found.tokens.resize(std::max(known, pieces.tokens.size()));
    found.kinds.resize(found.tokens.size(), GgufVocabulary::unused);
    found.scores.resize(found.tokens.size(), added_score);
    std::fill(found.scores.begin(), found.scores.end(), added_score);
    for (std::size_t i = 0; i < pieces.tokens.size(); ++i) {
      const bool same = found.tokens[i] == pieces.tokens[i];
      if (i >= known || found.tokens[i].empty()) {
        found.tokens[i] = pieces.tokens[i];
      } else if (!same) {
        ++others;
        continue;
      }
      found.scores[i] = pieces.scores[i];
      const bool added = found.kinds[i] == GgufVocabulary::control ||
                         found.kinds[i] == GgufVocabulary::user_defined;
      if (!added) found.kinds[i] = pieces.kinds[i];
    }
    if (others > 0) {
      notes_.push_back(fmt::format(
          "{} differ between tokenizer.json and tokenizer.model; those of tokenizer.json "
          "are taken, as in transformers",
          counted(others, "token")));
    }
  }

  // Tokens that were added beside the files above: transformers takes them, too.
  void add_further_tokens() {
    const json* const decoder = &part_of(settings_, "added_tokens_decoder");
    if (decoder->is_object()) {
      for (const auto& [number, token] : decoder->items()) {
        const bool digits = number.find_first_not_of("0123456789") == std::string::npos;
        if (!digits || number.empty() || number.size() > 9) continue;
        add_token(text_at(token, "content"), std::stoll(number), flag_at(token, "special", false));
      }
    }
    const json more = read_json("added_tokens.json").value_or(json::object());
    for (const auto& [token, number] : more.items()) {
      if (number.is_number_integer()) add_token(token, number.get<std::int64_t>(), true);
    }
  }

  void add_token(const std::string& token, std::int64_t number, bool special) {
    if (token.empty() || number < 0 || number >= size_) return;
    const auto place = static_cast<std::size_t>(number);
    if (place >= vocabulary_.tokens.size()) {
      vocabulary_.tokens.resize(place + 1);
      vocabulary_.kinds.resize(place + 1, GgufVocabulary::unused);
      if (!vocabulary_.scores.empty()) vocabulary_.scores.resize(place + 1, added_score);
    }
    if (!vocabulary_.tokens[place].empty()) return;
    vocabulary_.tokens[place] = token;
    vocabulary_.kinds[place] = special ? GgufVocabulary::control : GgufVocabulary::user_defined;
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
      if (vocabulary_.tokens[i].empty()) continue;
      const auto [first, fresh] =
          numbers_.emplace(vocabulary_.tokens[i], static_cast<std::uint32_t>(i));
      TESSERA_CHECK(
          fresh, ErrorCode::checkpoint,
          "the tokenizer has '{}' with the numbers {} and {}, and llama.cpp reads no such "
          "file; rename one of them in tokenizer.json",
          printable(vocabulary_.tokens[i]), first->second, i);
    }
    for (std::size_t i = 0; i < size; ++i) {
      if (!vocabulary_.tokens[i].empty()) continue;
      std::string name = fmt::format("[PAD{}]", i);
      while (!numbers_.emplace(name, static_cast<std::uint32_t>(i)).second) name += '_';
      vocabulary_.tokens[i] = std::move(name);
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

  // The tokens that end a text: of generation_config.json, else of config.json.
  json ends_of_text() {
    const json generation = read_json("generation_config.json").value_or(json::object());
    json ends = generation.value("eos_token_id", json());
    if (ends.is_null()) ends = config_.value("eos_token_id", json());
    return ends.is_array() ? ends : ends.is_null() ? json::array() : json::array({ends});
  }

  // llama.cpp ends a text at three tokens by their numbers (eos, eot, eom), and at some more by
  // their texts. All of them are kept under a key of this program, to be read back.
  void write_ends(const std::optional<std::uint32_t>& end) {
    const json ends = ends_of_text();
    if (ends.size() > 1) metadata_.text(gguf_ends_key, json{{"eos_token_id", ends}}.dump());
    std::vector<std::uint32_t> further;
    for (const json& each : ends) {
      if (!each.is_number_integer() || each < 0 || each >= size_) continue;
      const auto id = each.get<std::uint32_t>();
      const bool known = !vocabulary_.tokens.empty() &&
                         std::find(known_ends.begin(), known_ends.end(), vocabulary_.tokens[id]) !=
                             known_ends.end();
      if (id == end || known || std::find(further.begin(), further.end(), id) != further.end()) {
        continue;
      }
      further.push_back(id);
    }
    constexpr std::array<const char*, 2> keys{"tokenizer.ggml.eot_token_id",
                                              "tokenizer.ggml.eom_token_id"};
    for (std::size_t i = 0; i < std::min(keys.size(), further.size()); ++i) {
      metadata_.number(keys[i], further[i]);
    }
    if (further.size() <= keys.size()) return;
    further.erase(further.begin(), further.begin() + keys.size());
    notes_.push_back(
        fmt::format("llama.cpp has places for three of the tokens that end a text; it does not end "
                    "at {} of eos_token_id",
                    fmt::join(further, ", ")));
  }

  // The number of a token of a template.
  [[nodiscard]] std::optional<std::uint32_t> number_of(const std::string& token) const {
    const auto found = numbers_.find(token);
    return found == numbers_.end() ? std::nullopt : std::optional(found->second);
  }

  void write_special_tokens() {
    begin_ = special("bos_token");
    end_ = special("eos_token");
    if (!end_) {
      const json ends = ends_of_text();
      if (!ends.empty() && ends[0].is_number_integer() && ends[0] >= 0 && ends[0] < size_) {
        end_ = ends[0].get<std::uint32_t>();
      }
    }
    if (!begin_) begin_ = number_of(vocabulary_.beginning);
    if (!end_) end_ = number_of(vocabulary_.end);
    write_ends(end_);
    const std::pair<std::optional<std::uint32_t>, const char*> tokens[] = {
        {begin_, "bos"},
        {end_, "eos"},
        {special("unk_token"), "unknown"},
        {special("pad_token"), "padding"}};
    for (const auto& [id, key] : tokens) {
      if (id) metadata_.number(fmt::format("tokenizer.ggml.{}_token_id", key), *id);
    }
    const std::int64_t taken = vocabulary_.model == "gpt2" ? 11 : 2;  // llama.cpp's defaults
    if (!end_ && !vocabulary_.tokens.empty() && taken < size_) {
      notes_.push_back(
          fmt::format("no file says which token ends a text, and llama.cpp takes number {} for it; "
                      "set eos_token_id in config.json",
                      taken));
    }
  }

  // Whether a token comes before and after a text, as tokenizer_config.json or the template says.
  void write_surroundings() {
    const auto write = [&](const char* setting, const char* key, const std::optional<bool>& own,
                           const std::string& token, const std::optional<std::uint32_t>& id,
                           const char* what) {
      const json& wanted = part_of(settings_, setting);
      if (!wanted.is_boolean() && !own) return;
      const bool adds = wanted.is_boolean() ? wanted.get<bool>() : *own;
      metadata_.boolean(fmt::format("tokenizer.ggml.{}", key), adds);
      const auto number = number_of(token);
      if (!adds || !number || number == id) return;
      notes_.push_back(fmt::format("llama.cpp puts {} {} a text, and tokenizer.json '{}'",
                                   id ? fmt::format("token {}", *id) : "no token", what,
                                   printable(token)));
    };
    write("add_bos_token", "add_bos_token", vocabulary_.adds_beginning, vocabulary_.beginning,
          begin_, "before");
    write("add_eos_token", "add_eos_token", vocabulary_.adds_end, vocabulary_.end, end_, "after");
    const json& prefix = part_of(settings_, "add_prefix_space");
    if (vocabulary_.model == "llama") {
      const bool of_json = vocabulary_.adds_beginning.has_value();  // which says it itself
      metadata_.boolean("tokenizer.ggml.add_space_prefix",
                        prefix.is_boolean() && !of_json ? prefix.get<bool>()
                                                        : vocabulary_.adds_space.value_or(true));
    } else if (prefix == true && std::find(vocabulary_.notes.begin(), vocabulary_.notes.end(),
                                           gguf_prefix_space_note) == vocabulary_.notes.end()) {
      vocabulary_.notes.emplace_back(gguf_prefix_space_note);
    }
  }

  // llama.cpp knows from the name of a Phi-3 that its special tokens take the spaces after them.
  void note_neighbours() {
    const bool strips =
        name_.find("phi-3") != std::string::npos || name_.find("phi3") != std::string::npos;
    std::vector<std::string> tokens = vocabulary_.takes_neighbours;
    for (const std::string& token : vocabulary_.strips_right) {
      const bool kept = token == "<unk>" || token == "<s>" || token == "<|endoftext|>";
      if (!strips || kept) tokens.push_back(token);
    }
    if (tokens.empty()) return;
    vocabulary_.notes.push_back(
        fmt::format("llama.cpp finds added tokens anywhere and keeps the spaces around them, and "
                    "tokenizer.json "
                    "has lstrip, rstrip or single_word for {} of them, such as '{}'",
                    tokens.size(), printable(tokens.front())));
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
    std::vector<std::string> names;
    for (const json& each : chat) {  // several, with names
      std::string name = text_at(each, "name");
      const std::string text = text_at(each, "template");
      if (name.empty() || text.empty()) continue;
      if (name == "default") {
        metadata_.text("tokenizer.chat_template", text);
        continue;
      }
      const auto is_plain = [](unsigned char c) { return c < 0x80 && std::isalnum(c) != 0; };
      for (char& c : name) c = is_plain(static_cast<unsigned char>(c)) ? c : '_';  // as llama.cpp's
      if (std::find(names.begin(), names.end(), name) != names.end()) continue;
      metadata_.text("tokenizer.chat_template." + name, text);
      names.push_back(std::move(name));
    }
    if (!names.empty()) metadata_.texts("tokenizer.chat_templates", names);
  }

  const Contents& contents_;
  const json& config_;
  std::string name_;  // of the model, in small letters
  std::int64_t size_;
  GgufMetadata& metadata_;
  std::set<std::string>& used_;
  std::vector<std::string>& notes_;
  json settings_;
  GgufVocabulary vocabulary_;
  std::unordered_map<std::string, std::uint32_t> numbers_;
  std::optional<std::uint32_t> begin_, end_;
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

void write_gguf_tokenizer(const Contents& contents, const json& config, const std::string& name,
                          std::int64_t vocabulary, GgufMetadata& metadata,
                          std::set<std::string>& used, std::vector<std::string>& notes) {
  TokenizerWriter(contents, config, name, vocabulary, metadata, used, notes).run();
}

}  // namespace tessera::checkpoint::formats
