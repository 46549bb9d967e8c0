// From tokens back to text: the `decoder` of a tokenizer file.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace tessera::tokenizers {

// A step takes the tokens of a sequence and returns the resulting texts.
using DecoderStep = std::function<std::vector<std::string>(std::vector<std::string>)>;

class Decoder {
 public:
  Decoder() = default;  // none: tokens with a space between
  // Chosen by the `type` of the JSON. Throws Error(data) beginning with `source`.
  Decoder(const nlohmann::json& json, const std::string& source);
  [[nodiscard]] std::string decode(std::vector<std::string> tokens) const;

 private:
  std::vector<DecoderStep> steps_;
};

}  // namespace tessera::tokenizers
