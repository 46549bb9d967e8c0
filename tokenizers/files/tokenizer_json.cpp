// Reads tokenizer.json, the file of the `tokenizers` package.
#include "base/error.h"
#include "tokenizers/files/files.h"
#include "tokenizers/text/json_fields.h"

namespace tessera::tokenizers {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// True if words may be kept as bytes instead of GPT-2's alphabet: nothing between the pre-tokenizer
// and the vocabulary reads the characters.
bool keeps_bytes(const json& file) {
  if (!has(file, "pre_tokenizer") || !ends_in_byte_level(file["pre_tokenizer"])) return false;
  const json& model = file["model"];
  const bool byte_pair = has(model, "merges") && (!has(model, "type") || model["type"] == "BPE");
  const auto plain = [&](const char* name) {
    return !has(model, name) || (model[name].is_string() && model[name].get<std::string>().empty());
  };
  return byte_pair && plain("continuing_subword_prefix") && plain("end_of_word_suffix") &&
         (!has(model, "byte_fallback") || model["byte_fallback"] == false);
}

// A fingerprint of the parts that determine the ids: the file without the processing of finished
// sequences.
std::uint64_t fingerprint_of_file(json file) {
  for (const char* name : {"truncation", "padding", "post_processor", "decoder", "version"}) {
    file.erase(name);
  }
  return fingerprint_of(file.dump(-1, ' ', false, json::error_handler_t::replace));
}

}  // namespace

std::shared_ptr<const Tokenizer> tokenizer_from_json(const fs::path& path) {
  return tokenizer_of_json(read_tokenizer_json(path), path);
}

std::shared_ptr<const Tokenizer> tokenizer_of_json(const json& file, const fs::path& path,
                                                   ModelOptions options) {
  const std::string source = fmt::format("'{}'", path.string());
  const bool bytes = keeps_bytes(file.contains("model") ? file : json{{"model", nullptr}});
  options.byte_alphabet = bytes;
  PipelineParts parts;
  parts.model = make_vocabulary_model(member(file, "model", source), options, source + ": model");
  if (has(file, "normalizer")) {
    parts.normalizer = make_normalizer(file["normalizer"], source + ": normalizer");
  }
  if (has(file, "pre_tokenizer")) {
    parts.pre_tokenizer =
        make_pre_tokenizer(file["pre_tokenizer"], bytes, source + ": pre_tokenizer");
    parts.looks_at_beginning = looks_at_beginning(file["pre_tokenizer"]);
  }
  if (has(file, "added_tokens")) {
    parts.added = AddedTokens(file["added_tokens"], *parts.model, parts.normalizer.get(),
                              source + ": added_tokens");
  }
  if (has(file, "post_processor")) {
    parts.post_processor = PostProcessor(file["post_processor"], source + ": post_processor");
  }
  if (has(file, "decoder")) parts.decoder = Decoder(file["decoder"], source + ": decoder");
  if (has(file, "truncation")) {
    parts.truncate_left =
        string_or(file["truncation"], "direction", "Right", source + ": truncation") == "Left";
  }
  name_special_tokens(SpecialNames(path.parent_path()), parts);
  if (has(file, "padding")) {
    parts.padding_id = static_cast<std::int32_t>(
        integer_or(file["padding"], "pad_id", 0, 0, largest_vocabulary - 1, source + ": padding"));
  }
  parts.fingerprint = fingerprint_of_file(file);
  parts.name = path.parent_path().filename().empty()
                   ? path.filename().string()
                   : (path.parent_path().filename() / path.filename()).string();
  return std::make_shared<PipelineTokenizer>(std::move(parts));
}

}  // namespace tessera::tokenizers
