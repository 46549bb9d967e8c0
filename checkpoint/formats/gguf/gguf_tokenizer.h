// The tokenizer of a model as settings of a GGUF file, from the files beside the weights.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/formats/format.h"
#include "checkpoint/formats/gguf/gguf_header.h"

namespace tessera::checkpoint::formats {

// A small file of the contents; none if it is not there.
std::optional<std::string> gguf_text_of(const Contents& contents, const std::string& name);

// A vocabulary as llama.cpp has it.
struct GgufVocabulary {
  // Kinds of tokens, with llama.cpp's numbers.
  enum Kind : std::int32_t {
    normal = 1,
    unknown = 2,
    control = 3,
    user_defined = 4,
    unused = 5,
    byte = 6
  };
  std::string model;  // tokenizer.ggml.model: "gpt2" for BPE over bytes, "llama" for SentencePiece
  std::string pre;    // tokenizer.ggml.pre, the rule that cuts a text into words
  std::vector<std::string> tokens;
  std::vector<float> scores;  // of "llama"
  std::vector<std::int32_t> kinds;
  std::vector<std::string> merges;     // of "gpt2"
  std::optional<bool> adds_beginning;  // the tokenizer puts the first token before a text
};

// From tokenizer.json; Error(checkpoint) if llama.cpp has no such tokenizer.
GgufVocabulary vocabulary_of_json(const nlohmann::json& tokenizer);
// From the bytes of SentencePiece's tokenizer.model.
GgufVocabulary vocabulary_of_sentencepiece(const std::string& bytes);

// Writes tokenizer.ggml.* and the chat template. Adds the names of the files that it used to
// `used`. A model without a tokenizer gets none, and a note. `vocabulary` is the model's; tokens
// that the tokenizer lacks get names of padding.
void write_gguf_tokenizer(const Contents& contents, const nlohmann::json& config,
                          std::int64_t vocabulary, GgufMetadata& metadata,
                          std::set<std::string>& used, std::vector<std::string>& notes);

}  // namespace tessera::checkpoint::formats
