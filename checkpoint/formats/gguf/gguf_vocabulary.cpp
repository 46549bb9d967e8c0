// Vocabularies from tokenizer.json and from SentencePiece's model files.
#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "base/text/printable.h"
#include "checkpoint/formats/gguf/gguf_tokenizer.h"
#include "checkpoint/formats/gguf/gguf_tokenizer_json.h"

namespace tessera::checkpoint::formats {

namespace {

using nlohmann::json;
using Kind = GgufVocabulary::Kind;

constexpr std::int64_t most_tokens = std::int64_t{1} << 24;
constexpr const char* tokenizer_way_out =
    "; without tokenizer.json beside the weights, a file without a tokenizer is written";

// The rules that llama.cpp has by name, by the regular expression of tokenizer.json.
struct SplitRule {
  std::string_view pattern;
  const char* pre;
};
constexpr std::array<SplitRule, 3> split_rules{{
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     "llama-bpe"},
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     "qwen2"},
    {R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     "tekken"},
}};

[[noreturn]] void refuse_tokenizer(const std::string& problem) {
  fail(ErrorCode::checkpoint, "tokenizer.json {}{}", problem, tokenizer_way_out);
}

[[noreturn]] void refuse_rule() {
  refuse_tokenizer(
      "splits words by a rule that llama.cpp does not have under a name that this program knows "
      "(gpt-2, smollm, llama-bpe, qwen2, tekken)");
}

// The regular expression of a Split whose matches become words; refuses others.
std::string pattern_of(const json& split) {
  const std::string behavior = text_at(split, "behavior");
  const bool inverted = flag_at(split, "invert", false);
  // "Removed" and inverted are the words themselves, as the rules match every character.
  const bool isolates = behavior == "Isolated" ? !inverted : behavior == "Removed" && inverted;
  std::string pattern = text_at(part_of(split, "pattern"), "Regex");
  if (!isolates || pattern.empty()) refuse_rule();
  return pattern;
}

// The name of the rule that cuts words; empty for a tokenizer that is not BPE over bytes.
std::string pre_of(const json& tokenizer) {
  const auto parts = components(part_of(tokenizer, "pre_tokenizer"), "pretokenizers");
  const auto is_byte_level = [](const json* part) { return text_at(*part, "type") == "ByteLevel"; };
  if (std::none_of(parts.begin(), parts.end(), is_byte_level)) return {};
  std::string pattern;
  bool cuts = false, digits = false;
  for (const json* part : parts) {
    const std::string type = text_at(*part, "type");
    if (type == "ByteLevel") {
      cuts = cuts || flag_at(*part, "use_regex", true);
    } else if (type == "Split") {
      if (!pattern.empty()) refuse_tokenizer("splits twice, for which llama.cpp has no rule");
      pattern = pattern_of(*part);
    } else if (part == parts.front() && type == "Digits" &&
               flag_at(*part, "individual_digits", false)) {
      digits = true;
    } else {
      refuse_rule();
    }
  }
  if (cuts && pattern.empty()) return digits ? "smollm" : "gpt-2";
  for (const SplitRule& rule : split_rules) {
    if (!cuts && !digits && pattern == rule.pattern) return rule.pre;
  }
  refuse_rule();
}

bool is_byte_token(std::string_view token) {
  return token.size() == 6 && token.starts_with("<0x") && token.ends_with(">");
}

void put_token(GgufVocabulary& vocabulary, const std::string& token, const json& id, Kind kind) {
  if (!id.is_number_integer() || id < 0 || id >= most_tokens) {
    refuse_tokenizer(fmt::format("has token '{}' with the number {}", printable(token), id.dump()));
  }
  const auto place = id.get<std::size_t>();
  if (place >= vocabulary.tokens.size()) {
    vocabulary.tokens.resize(place + 1);
    vocabulary.kinds.resize(place + 1, Kind::unused);
  }
  vocabulary.tokens[place] = token;
  vocabulary.kinds[place] = kind;
}

// Both spellings: "a b" and ["a", "b"].
std::pair<std::string, std::string> merge_of(const json& merge) {
  if (merge.is_string()) {
    const auto& text = merge.get_ref<const std::string&>();
    const std::size_t space = text.find(' ', 1);
    if (space != std::string::npos) return {text.substr(0, space), text.substr(space + 1)};
  } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() &&
             merge[1].is_string()) {
    return {merge[0].get<std::string>(), merge[1].get<std::string>()};
  }
  refuse_tokenizer("has a merge that is not a pair of tokens");
}

// SentencePiece merges the pair whose result has the highest score, so the order of the merges
// gives the scores: SentencePiece's own are the same numbers.
void score_by_merges(GgufVocabulary& vocabulary, const json& merges) {
  std::unordered_map<std::string, float> ranks;
  float rank = 0;
  for (const json& merge : merges) {
    const auto [left, right] = merge_of(merge);
    ranks.emplace(left + right, rank);
    rank -= 1;
  }
  for (std::size_t i = 0; i < vocabulary.tokens.size(); ++i) {
    const auto found = ranks.find(vocabulary.tokens[i]);
    // A single character has no merge, and never competes with one.
    vocabulary.scores.push_back(vocabulary.kinds[i] != Kind::normal ? 0.0F
                                : found == ranks.end()              ? rank - 1
                                                                    : found->second);
  }
}

// Reads the fields of a message in protobuf's encoding.
class ProtobufReader {
 public:
  explicit ProtobufReader(std::string_view bytes) : bytes_(bytes) {}

  struct Field {
    std::uint64_t number = 0;
    std::uint64_t value = 0;  // a varint, or the bits of a fixed number
    std::string_view text;    // bytes with a length
  };
  // False: there is no further field.
  bool next(Field& field) {
    if (bytes_.empty()) return false;
    const std::uint64_t tag = varint();
    field = {tag >> 3, 0, {}};
    switch (tag & 7) {
      case 0:
        field.value = varint();
        return true;
      case 1:
        field.value = fixed(8);
        return true;
      case 2:
        field.text = take(varint());
        return true;
      case 5:
        field.value = fixed(4);
        return true;
      default:
        refuse();
    }
  }

 private:
  [[noreturn]] static void refuse() {
    fail(ErrorCode::checkpoint, "tokenizer.model is not a model of SentencePiece");
  }
  std::string_view take(std::uint64_t length) {
    if (length > bytes_.size()) refuse();
    const std::string_view part = bytes_.substr(0, static_cast<std::size_t>(length));
    bytes_.remove_prefix(part.size());
    return part;
  }
  std::uint64_t fixed(std::size_t length) {
    std::uint64_t value = 0;
    std::memcpy(&value, take(length).data(), length);
    return value;
  }
  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<unsigned char>(take(1)[0]);
      value |= static_cast<std::uint64_t>(byte & 0x7fU) << shift;
      if (byte < 0x80) return value;
    }
    refuse();
  }
  std::string_view bytes_;
};

}  // namespace

GgufVocabulary vocabulary_of_json(const json& tokenizer) {
  const json& model = part_of(tokenizer, "model");
  const json& tokens = part_of(model, "vocab");
  if (text_at(model, "type") != "BPE" || !tokens.is_object()) {
    refuse_tokenizer("is not BPE");
  }
  GgufVocabulary vocabulary;
  vocabulary.pre = pre_of(tokenizer);
  const bool bytes = !vocabulary.pre.empty();
  if (!bytes && !flag_at(model, "byte_fallback", false)) {
    refuse_tokenizer("is BPE neither over bytes nor with byte_fallback");
  }
  vocabulary.model = bytes ? "gpt2" : "llama";
  const std::string unknown = text_at(model, "unk_token");
  for (const auto& [token, id] : tokens.items()) {
    const Kind kind = bytes                  ? Kind::normal
                      : token == unknown     ? Kind::unknown
                      : is_byte_token(token) ? Kind::byte
                                             : Kind::normal;
    put_token(vocabulary, token, id, kind);
  }
  for (const json& added : part_of(tokenizer, "added_tokens")) {
    const std::string token = text_at(added, "content");
    if (!bytes && token == unknown) continue;
    put_token(vocabulary, token, part_of(added, "id"),
              flag_at(added, "special", false) ? Kind::control : Kind::user_defined);
  }
  std::vector<std::string> merges;
  for (const json& merge : part_of(model, "merges")) {
    auto [left, right] = merge_of(merge);
    merges.push_back(left + ' ' + right);
  }
  if (!bytes) {
    vocabulary.pre = "default";
    score_by_merges(vocabulary, part_of(model, "merges"));
  }
  describe_gguf_tokenizer(tokenizer, merges, vocabulary);
  if (bytes) vocabulary.merges = std::move(merges);
  return vocabulary;
}

namespace {

// Sets and notes what the model does to a text before it merges.
void describe_normalizer(std::string_view spec, GgufVocabulary& vocabulary) {
  ProtobufReader reader(spec);
  ProtobufReader::Field part;
  bool maps = false, adds_space = true, drops_spaces = true, marks_spaces = true;  // the defaults
  while (reader.next(part)) {
    if (part.number == 2) maps = !part.text.empty();
    if (part.number == 3) adds_space = part.value != 0;
    if (part.number == 4) drops_spaces = part.value != 0;
    if (part.number == 5) marks_spaces = part.value != 0;
  }
  vocabulary.adds_space = adds_space;
  const auto note = [&](const char* text) { vocabulary.notes.emplace_back(text); };
  if (maps) {
    note(
        "llama.cpp does not apply the normalizer of tokenizer.model: a text that it changes has "
        "other ids there");
  }
  if (drops_spaces) {
    note(
        "llama.cpp keeps several spaces in a row and those around a text, and tokenizer.model "
        "drops them: such texts have other ids there");
  }
  if (!marks_spaces)
    note("llama.cpp reads a space as \xe2\x96\x81, which tokenizer.model does not");
}

}  // namespace

GgufVocabulary vocabulary_of_sentencepiece(const std::string& bytes) {
  GgufVocabulary vocabulary;
  vocabulary.model = "llama";
  vocabulary.pre = "default";
  ProtobufReader model(bytes);
  ProtobufReader::Field field;
  constexpr std::uint64_t unigram = 1;
  constexpr std::uint64_t bpe = 2;
  std::uint64_t kind_of_model = unigram;  // the default of TrainerSpec.model_type
  std::string_view normalizer;
  bool marks_ends = false;
  while (model.next(field)) {
    if (field.number == 2) {  // ModelProto.trainer_spec
      ProtobufReader trainer(field.text);
      ProtobufReader::Field part;
      while (trainer.next(part)) {
        if (part.number == 3) kind_of_model = part.value;
        if (part.number == 24) marks_ends = part.value != 0;  // treat_whitespace_as_suffix
      }
    }
    if (field.number == 3) normalizer = field.text;  // ModelProto.normalizer_spec
    if (field.number != 1) continue;                 // ModelProto.pieces
    ProtobufReader piece(field.text);
    ProtobufReader::Field part;
    std::string token;
    float score = 0;
    std::int32_t kind = Kind::normal;
    while (piece.next(part)) {
      if (part.number == 1) token = part.text;
      if (part.number == 2) {
        const auto bits = static_cast<std::uint32_t>(part.value);
        std::memcpy(&score, &bits, sizeof score);
      }
      if (part.number == 3) kind = static_cast<std::int32_t>(part.value);
    }
    vocabulary.tokens.push_back(std::move(token));
    vocabulary.scores.push_back(score);
    vocabulary.kinds.push_back(kind);  // SentencePiece's numbers are llama.cpp's
  }
  TESSERA_CHECK(!vocabulary.tokens.empty(), ErrorCode::checkpoint,
                "tokenizer.model has no tokens; it is damaged");
  TESSERA_CHECK(kind_of_model == bpe, ErrorCode::checkpoint,
                "tokenizer.model is not BPE, and llama.cpp has SentencePiece's BPE only{}",
                tokenizer_way_out);
  describe_normalizer(normalizer, vocabulary);
  if (marks_ends) {
    vocabulary.notes.emplace_back(
        "llama.cpp reads spaces as beginnings of words, and tokenizer.model as their ends");
  }
  const auto bytes_known = std::count(vocabulary.kinds.begin(), vocabulary.kinds.end(), Kind::byte);
  if (bytes_known < 256) {
    vocabulary.notes.push_back(gguf_missing_bytes_note(static_cast<std::size_t>(bytes_known)));
  }
  return vocabulary;
}

}  // namespace tessera::checkpoint::formats
