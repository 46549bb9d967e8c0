// Compares the parts of a tokenizer.json with what llama.cpp does with a vocabulary: those that
// give a text other ids there are noted.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <algorithm>
#include <limits>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "base/counted.h"
#include "base/text/printable.h"
#include "checkpoint/formats/gguf/gguf_tokenizer.h"
#include "checkpoint/formats/gguf/gguf_tokenizer_json.h"

namespace tessera::checkpoint::formats {

namespace {

using nlohmann::json;

constexpr std::size_t longest_token = 1024;  // whose parts are looked at: the work is its square
constexpr std::string_view space_mark = "\xe2\x96\x81";  // in the place of a space

// The bytes of the first character.
std::size_t character_at(std::string_view text) {
  std::size_t length = 1;
  while (length < text.size() && (static_cast<unsigned char>(text[length]) & 0xc0U) == 0x80U) {
    ++length;
  }
  return length;
}

// The merges of a BPE model: pairs, by their rank.
class GgufMerges {
 public:
  explicit GgufMerges(const std::vector<std::string>& merges) {
    for (const std::string& merge : merges) ranks_.emplace(merge, ranks_.size());
  }

  [[nodiscard]] bool has(std::string_view left, std::string_view right) const {
    return rank(left, right) != none;
  }

  // True if the merges make the whole token of its characters.
  [[nodiscard]] bool reach(std::string_view token) const {
    if (token.size() > longest_token) return false;
    std::vector<std::string> symbols;
    for (std::size_t at = 0; at < token.size();) {
      const std::size_t length = character_at(token.substr(at));
      symbols.emplace_back(token.substr(at, length));
      at += length;
    }
    while (symbols.size() > 1) {
      std::size_t best = 0;
      std::size_t lowest = none;
      for (std::size_t i = 0; i + 1 < symbols.size(); ++i) {
        const std::size_t own = rank(symbols[i], symbols[i + 1]);
        if (own < lowest) {
          lowest = own;
          best = i;
        }
      }
      if (lowest == none) return false;
      symbols[best] += symbols[best + 1];
      symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    }
    return true;
  }

 private:
  static constexpr std::size_t none = std::numeric_limits<std::size_t>::max();
  [[nodiscard]] std::size_t rank(std::string_view left, std::string_view right) const {
    std::string pair(left);
    pair += ' ';
    pair += right;
    const auto found = ranks_.find(pair);
    return found == ranks_.end() ? none : found->second;
  }
  std::unordered_map<std::string, std::size_t> ranks_;
};

// The character that stands for a byte in BPE over bytes.
std::string character_of_byte(unsigned byte) {
  unsigned code = byte;
  const auto stays = [](unsigned b) {
    return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
  };
  if (!stays(byte)) {
    code = 256;
    for (unsigned other = 0; other < byte; ++other) code += stays(other) ? 0 : 1;
  }
  if (code < 0x80) return {static_cast<char>(code)};
  return {static_cast<char>(0xc0U | (code >> 6U)), static_cast<char>(0x80U | (code & 0x3fU))};
}

class TokenizerNotes {
 public:
  TokenizerNotes(const json& tokenizer, const std::vector<std::string>& merges,
                 GgufVocabulary& vocabulary)
      : tokenizer_(tokenizer),
        model_(part_of(tokenizer, "model")),
        merges_(merges),
        vocabulary_(vocabulary),
        over_bytes_(vocabulary.model == "gpt2") {}

  void run() {
    note_normalizers();
    note_pre_tokenizers();
    note_model();
    note_merges();
    note_template();
    note_limits();
    for (const json& added : part_of(tokenizer_, "added_tokens")) {
      const std::string token = text_at(added, "content");
      if (flag_at(added, "lstrip", false) || flag_at(added, "single_word", false)) {
        vocabulary_.takes_neighbours.push_back(token);
      } else if (flag_at(added, "rstrip", false)) {
        vocabulary_.strips_right.push_back(token);
      }
    }
  }

 private:
  template <class... Args>
  void note(fmt::format_string<Args...> format, Args&&... args) {
    vocabulary_.notes.push_back(fmt::format(format, std::forward<Args>(args)...));
  }

  void note_normalizers() {
    std::vector<std::string> others;
    for (const json* part : components(part_of(tokenizer_, "normalizer"), "normalizers")) {
      const std::string type = text_at(*part, "type");
      if (!over_bytes_ && type == "Prepend" && text_at(*part, "prepend") == space_mark) {
        vocabulary_.adds_space = true;
      } else if (!over_bytes_ && type == "Replace" &&
                 text_at(part_of(*part, "pattern"), "String") == " " &&
                 text_at(*part, "content") == space_mark) {
        marks_spaces_ = true;
      } else {
        others.push_back(printable(type));
      }
    }
    if (others.empty()) return;
    note(
        "llama.cpp has no normalizer: a text that {} of tokenizer.json changes has other ids there",
        fmt::join(others, ", "));
  }

  void note_pre_tokenizers() {
    std::vector<std::string> others;
    for (const json* part : components(part_of(tokenizer_, "pre_tokenizer"), "pretokenizers")) {
      const std::string type = text_at(*part, "type");
      if (over_bytes_) {
        if (type == "ByteLevel" && flag_at(*part, "add_prefix_space", true)) note_prefix_space();
      } else if (type == "Metaspace" && text_at(*part, "replacement") == space_mark) {
        read_metaspace(*part);
      } else {
        others.push_back(printable(type));
      }
    }
    if (over_bytes_) return;
    if (!vocabulary_.adds_space) vocabulary_.adds_space = false;
    if (!others.empty()) {
      note(
          "llama.cpp does not cut texts before it merges them, as {} of tokenizer.json does: such "
          "texts have other ids there",
          fmt::join(others, ", "));
    }
    if (!marks_spaces_) {
      note("llama.cpp reads a space as {}, which tokenizer.json does not", space_mark);
    }
  }

  void note_prefix_space() { vocabulary_.notes.emplace_back(gguf_prefix_space_note); }

  void read_metaspace(const json& part) {
    marks_spaces_ = true;
    std::string scheme = text_at(part, "prepend_scheme");
    if (scheme.empty()) scheme = flag_at(part, "add_prefix_space", true) ? "always" : "never";
    if (scheme != "never" && !vocabulary_.adds_space) {
      vocabulary_.adds_space = true;
      note(
          "llama.cpp puts a space before a text also where the text begins with one{}, which "
          "Metaspace of tokenizer.json does not: such texts have other ids there",
          scheme == "first" ? " or follows a special token" : "");
    }
    if (!flag_at(part, "split", true)) return;
    for (std::size_t i = 0; i < vocabulary_.tokens.size(); ++i) {
      const std::string& token = vocabulary_.tokens[i];
      if (vocabulary_.kinds[i] != GgufVocabulary::normal ||
          token.find(space_mark, 1) == token.npos) {
        continue;
      }
      note(
          "llama.cpp merges over the ends of words, where Metaspace of tokenizer.json splits: "
          "tokens such as '{}' are found there alone",
          printable(token));
      return;
    }
  }

  void note_model() {
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      if (text_at(model_, key).empty()) continue;
      note("llama.cpp does not know {} '{}' of tokenizer.json: words have other ids there", key,
           printable(text_at(model_, key)));
    }
    const json& dropout = part_of(model_, "dropout");
    if (dropout.is_number() && dropout > 0) {
      note("llama.cpp leaves out no merges at random, as dropout {} of tokenizer.json does",
           dropout.dump());
    }
    if (over_bytes_) {
      note_unknown_bytes();
      return;
    }
    const auto bytes =
        std::count(vocabulary_.kinds.begin(), vocabulary_.kinds.end(), GgufVocabulary::byte);
    if (bytes < 256) note("{}", gguf_missing_bytes_note(static_cast<std::size_t>(bytes)));
  }

  void note_unknown_bytes() {
    const std::string unknown = text_at(model_, "unk_token");
    if (unknown.empty()) return;
    const std::unordered_set<std::string> tokens(vocabulary_.tokens.begin(),
                                                 vocabulary_.tokens.end());
    std::size_t missing = 0;
    for (unsigned byte = 0; byte < 256; ++byte)
      missing += tokens.contains(character_of_byte(byte)) ? 0 : 1;
    if (missing == 0) return;
    note("llama.cpp passes over the {} that have no token, for which tokenizer.json gives '{}'",
         counted(missing, "byte"), printable(unknown));
  }

  // A token that the merges do not make of its characters; empty if there is none.
  [[nodiscard]] std::string unreached(const GgufMerges& merges) const {
    for (std::size_t i = 0; i < vocabulary_.tokens.size(); ++i) {
      if (vocabulary_.kinds[i] != GgufVocabulary::normal) continue;
      if (!merges.reach(vocabulary_.tokens[i])) return vocabulary_.tokens[i];
    }
    return {};
  }

  void note_merges() {
    const bool ignores = flag_at(model_, "ignore_merges", false);
    const std::string& pre = vocabulary_.pre;
    const bool ignores_there = over_bytes_ && (pre == "llama-bpe" || pre == "tekken");
    if (over_bytes_ && ignores == ignores_there) return;
    const GgufMerges merges(merges_);
    if (ignores != ignores_there) {
      const std::string token = unreached(merges);
      if (!token.empty() && pre == "llama-bpe") {
        vocabulary_.pre = "smaug-bpe";  // the same words, and merges for each
      } else if (!token.empty()) {
        note(
            "llama.cpp {} for this kind of tokenizer, and ignore_merges of tokenizer.json is {}: "
            "words such as '{}', which the merges do not make, have other ids there",
            ignores_there ? "takes a word that is a token without merges" : "merges every word",
            ignores, printable(token));
      }
    }
    if (!over_bytes_) note_pairs(merges);
  }

  // SentencePiece merges any two tokens whose text is a token, and tokenizer.json those of its
  // list. The list has them all if it was made from a model of SentencePiece.
  void note_pairs(const GgufMerges& merges) {
    const std::unordered_set<std::string> tokens(vocabulary_.tokens.begin(),
                                                 vocabulary_.tokens.end());
    for (std::size_t i = 0; i < vocabulary_.tokens.size(); ++i) {
      const std::string& token = vocabulary_.tokens[i];
      const bool looked_at =
          vocabulary_.kinds[i] == GgufVocabulary::normal && token.size() <= longest_token;
      if (!looked_at) continue;
      for (std::size_t at = token.empty() ? 0 : character_at(token); at < token.size();
           at += character_at(std::string_view(token).substr(at))) {
        const std::string left = token.substr(0, at);
        const std::string right = token.substr(at);
        if (!tokens.contains(left) || !tokens.contains(right) || merges.has(left, right)) continue;
        note(
            "llama.cpp merges any two tokens whose text is a token, such as '{}' and '{}', which "
            "tokenizer.json does not merge: texts with them may have other ids there",
            printable(left), printable(right));
        return;
      }
    }
  }

  void note_template() {
    std::vector<std::string> before, after, others;
    for (const json* part : components(part_of(tokenizer_, "post_processor"), "processors")) {
      const std::string type = text_at(*part, "type");
      if (type == "TemplateProcessing") {
        bool met_text = false;
        for (const json& piece : part_of(*part, "single")) {
          const json& token = part_of(piece, "SpecialToken");
          met_text = met_text || !part_of(piece, "Sequence").is_null();
          if (!token.is_null()) (met_text ? after : before).push_back(text_at(token, "id"));
        }
      } else if (type == "RobertaProcessing" || type == "BertProcessing") {
        for (const auto& [key, list] : {std::pair{"cls", &before}, {"sep", &after}}) {
          const json& pair = part_of(*part, key);
          if (pair.is_array() && !pair.empty() && pair[0].is_string()) list->push_back(pair[0]);
        }
      } else if (type != "ByteLevel") {
        others.push_back(printable(type));
      }
    }
    vocabulary_.adds_beginning = !before.empty();
    vocabulary_.adds_end = !after.empty();
    if (!before.empty()) vocabulary_.beginning = before.back();
    if (!after.empty()) vocabulary_.end = after.front();
    if (before.size() > 1 || after.size() > 1) {
      note("llama.cpp puts one token before a text and one after it, and tokenizer.json {} and {}",
           before.size(), after.size());
    }
    if (!others.empty()) {
      note(
          "llama.cpp does not know the post-processor {} of tokenizer.json: what it adds to a text "
          "is missing there",
          fmt::join(others, ", "));
    }
  }

  void note_limits() {
    const json& truncation = part_of(tokenizer_, "truncation");
    if (truncation.is_object()) {
      note("llama.cpp cuts no texts, as truncation of tokenizer.json does at {} tokens",
           part_of(truncation, "max_length").dump());
    }
    if (part_of(part_of(tokenizer_, "padding"), "strategy").is_object()) {
      note("llama.cpp fills no texts up, as padding of tokenizer.json does");
    }
  }

  const json& tokenizer_;
  const json& model_;
  const std::vector<std::string>& merges_;
  GgufVocabulary& vocabulary_;
  bool over_bytes_;
  bool marks_spaces_ = false;
};

}  // namespace

std::string gguf_missing_bytes_note(std::size_t byte_tokens) {
  return fmt::format(
      "llama.cpp fails for characters that are not in the vocabulary: it has tokens for {} of 256 "
      "bytes",
      byte_tokens);
}

void describe_gguf_tokenizer(const json& tokenizer, const std::vector<std::string>& merges,
                             GgufVocabulary& vocabulary) {
  TokenizerNotes(tokenizer, merges, vocabulary).run();
}

}  // namespace tessera::checkpoint::formats
