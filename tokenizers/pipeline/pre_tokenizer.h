// Cuts a text into words: the `pre_tokenizer` of a tokenizer file, a chain of stages that pass
// pieces on.
#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::tokenizers {

// A piece of a text, valid UTF-8 until it has become bytes. Valid only until take() returns.
struct Piece {
  std::string_view text;
  bool first = false;  // begins where the whole text begins
};

class PieceSink {
 public:
  virtual ~PieceSink() = default;
  virtual void take(const Piece& piece) = 0;
};

// Used by one thread: a stage keeps its working memory.
class PreTokenizerStage : public PieceSink {
 public:
  void set_next(PieceSink& next) { next_ = &next; }

 protected:
  // Empty pieces are dropped.
  void give(std::string_view text, bool first) {
    if (!text.empty()) next_->take({text, first});
  }

 private:
  PieceSink* next_ = nullptr;
};

// Makes a stage for another thread. The function owns what stages share.
using MakeStage = std::function<std::unique_ptr<PreTokenizerStage>()>;

// Chosen by the `type` of the JSON; null gives no stages. With `bytes_as_they_are`, a ByteLevel at
// the end does not write bytes in GPT-2's alphabet. Throws Error(data) beginning with `source`.
std::vector<MakeStage> make_pre_tokenizer(const nlohmann::json& json, bool bytes_as_they_are,
                                          const std::string& source);
// True if ByteLevel makes the words of this pre-tokenizer.
bool ends_in_byte_level(const nlohmann::json& json);
// True if one of the stages reads Piece::first.
bool looks_at_beginning(const nlohmann::json& json);

// One file each in pre_tokenizers/.
MakeStage make_bert_stage(const nlohmann::json& json, const std::string& source);
MakeStage make_split_stage(const nlohmann::json& json, const std::string& source);
MakeStage make_metaspace_stage(const nlohmann::json& json, const std::string& source);
MakeStage make_byte_level_stage(const nlohmann::json& json, bool bytes_as_they_are,
                                const std::string& source);
MakeStage make_whitespace_stage(const nlohmann::json& json, const std::string& source);
MakeStage make_whitespace_split_stage(const nlohmann::json& json, const std::string& source);
MakeStage make_punctuation_stage(const nlohmann::json& json, const std::string& source);
MakeStage make_digits_stage(const nlohmann::json& json, const std::string& source);
MakeStage make_delimiter_stage(const nlohmann::json& json, const std::string& source);
MakeStage make_scripts_stage(const nlohmann::json& json, const std::string& source);
MakeStage make_fixed_length_stage(const nlohmann::json& json, const std::string& source);

}  // namespace tessera::tokenizers
