// What cuts a text into words: the `pre_tokenizer` of a tokenizer file, a chain of stages that hand
// pieces on to one another.
#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::tokenizers {

// A piece of a text, valid UTF-8 until it has become bytes. Lives only until take() returns.
struct Piece {
  std::string_view text;
  bool first = false;  // begins where the whole text begins
};

class PieceSink {
 public:
  virtual ~PieceSink() = default;
  virtual void take(const Piece& piece) = 0;
};

// Of one thread: a stage keeps the memory that it works in.
class PreTokenizerStage : public PieceSink {
 public:
  void set_next(PieceSink& next) { next_ = &next; }

 protected:
  // Empty pieces are nobody's.
  void give(std::string_view text, bool first) {
    if (!text.empty()) next_->take({text, first});
  }

 private:
  PieceSink* next_ = nullptr;
};

// Makes a stage for another thread. What stages share is owned by the function.
using MakeStage = std::function<std::unique_ptr<PreTokenizerStage>()>;

// By the `type` of the JSON; null gives no stages. With `bytes_as_they_are` a ByteLevel at the end
// does not write bytes in GPT-2's alphabet. Throws Error(data) beginning with `source`.
std::vector<MakeStage> make_pre_tokenizer(const nlohmann::json& json, bool bytes_as_they_are,
                                          const std::string& source);
// Whether the words of this pre-tokenizer come out of ByteLevel.
bool ends_in_byte_level(const nlohmann::json& json);
// Whether one of the stages looks at Piece::first.
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
MakeStage make_fixed_length_stage(const nlohmann::json& json, const std::string& source);

}  // namespace tessera::tokenizers
