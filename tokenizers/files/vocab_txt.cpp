// vocab.txt of BERT: one token in each line; its id is the line's number from 0.
// tokenizer_config.json beside it has the normalisation; BERT's own applies where it has none.

#include "base/error.h"
#include "tokenizers/files/files.h"
#include "tokenizers/text/json_fields.h"

namespace tessera::tokenizers {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

json vocabulary_of_lines(const std::string& text, const std::string& source) {
  json vocabulary = json::object();
  std::int64_t id = 0;
  for (std::size_t at = 0; at < text.size(); ++id) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    std::string token = text.substr(at, end - at);
    if (token.ends_with('\r')) token.pop_back();
    // If a token occurs twice, the last line counts, as in other readers.
    vocabulary[token] = static_cast<std::uint64_t>(id);
    at = end + 1;
  }
  TESSERA_CHECK(!vocabulary.empty(), ErrorCode::data, "{}: the file is empty", source);
  return vocabulary;
}

json special_token(const std::string& name) {
  return {{"content", name}, {"special", true}, {"normalized", false}};
}

}  // namespace

std::shared_ptr<const Tokenizer> tokenizer_from_vocabulary(const fs::path& path) {
  const std::string source = fmt::format("'{}'", path.string());
  const std::string text = read_tokenizer_file(path);
  const SpecialNames names(path.parent_path());
  const json& settings = names.configuration;
  const std::string where =
      fmt::format("'{}'", (path.parent_path() / "tokenizer_config.json").string());
  const json normalizer = {
      {"clean_text", true},
      {"handle_chinese_chars", bool_or(settings, "tokenize_chinese_chars", true, where)},
      {"strip_accents", has(settings, "strip_accents") ? settings["strip_accents"] : json()},
      {"lowercase", bool_or(settings, "do_lower_case", true, where)}};
  const auto name = [&](const char* key, const char* otherwise) {
    if (has(settings, key) && settings[key].is_string()) return settings[key].get<std::string>();
    return std::string(otherwise);
  };
  const std::string unknown = name("unk_token", "[UNK]");
  PipelineParts parts;
  parts.model = make_word_piece(
      {{"vocab", vocabulary_of_lines(text, source)}, {"unk_token", unknown}}, source);
  parts.normalizer = make_bert_normalizer(normalizer, where);
  parts.pre_tokenizer = {make_bert_stage(nullptr, source)};
  const std::string before = name("cls_token", "[CLS]");
  const std::string after = name("sep_token", "[SEP]");
  json added = json::array();
  for (const std::string& token :
       {name("pad_token", "[PAD]"), unknown, before, after, name("mask_token", "[MASK]")}) {
    if (parts.model->id_of(token)) added.push_back(special_token(token));
  }
  parts.added = AddedTokens(added, *parts.model, nullptr, source);
  const auto first = parts.model->id_of(before);
  const auto last = parts.model->id_of(after);
  TESSERA_CHECK(first && last, ErrorCode::data,
                "{}: '{}' or '{}', which are around every sequence, is not in the vocabulary",
                source, shown(before), shown(after));
  parts.post_processor =
      PostProcessor(std::vector<std::int32_t>{*first}, std::vector<std::int32_t>{*last});
  parts.decoder = Decoder({{"type", "WordPiece"}}, source);
  name_special_tokens(names, parts);
  parts.fingerprint = fingerprint_of(text + normalizer.dump() + added.dump());
  parts.name = path.filename().string();
  return std::make_shared<PipelineTokenizer>(std::move(parts));
}

}  // namespace tessera::tokenizers
