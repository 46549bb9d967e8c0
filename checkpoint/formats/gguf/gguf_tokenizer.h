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
  std::vector<std::string> merges;  // of "gpt2"
  // The tokens that tokenizer.json puts before and behind a text, and of "llama" a space.
  std::optional<bool> adds_beginning, adds_end, adds_space;
  std::string beginning, end;  // these tokens
  // Added tokens that take the spaces after them, and those that also look at what is before them.
  std::vector<std::string> strips_right, takes_neighbours;
  std::vector<std::string> notes;  // what gives a text other ids in llama.cpp
};

inline constexpr const char* gguf_prefix_space_note =
    "llama.cpp puts no space before a text, as add_prefix_space does: the first word has other ids "
    "there";
std::string gguf_missing_bytes_note(std::size_t byte_tokens);
// Sets what a tokenizer.json does around a text, and `pre` where that depends on more than the rule
// of the words, and notes what llama.cpp does in another way. `merges`: "left right".
void describe_gguf_tokenizer(const nlohmann::json& tokenizer,
                             const std::vector<std::string>& merges, GgufVocabulary& vocabulary);

// From tokenizer.json; Error(checkpoint) if llama.cpp has no such tokenizer.
GgufVocabulary vocabulary_of_json(const nlohmann::json& tokenizer);
// From the bytes of SentencePiece's tokenizer.model.
GgufVocabulary vocabulary_of_sentencepiece(const std::string& bytes);

// Writes tokenizer.ggml.* and the chat template. Adds the names of the files that it used to
// `used`. `name` is the model's, general.name. A model without a tokenizer gets none, and a note.
// `vocabulary` is the model's; tokens that the tokenizer lacks get names of padding.
void write_gguf_tokenizer(const Contents& contents, const nlohmann::json& config,
                          const std::string& name, std::int64_t vocabulary, GgufMetadata& metadata,
                          std::set<std::string>& used, std::vector<std::string>& notes);

}  // namespace tessera::checkpoint::formats
