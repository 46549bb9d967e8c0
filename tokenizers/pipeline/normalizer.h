// Changes to a text before it is cut: the `normalizer` of a tokenizer file.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace tessera::tokenizers {

// Any number of threads may use it.
class Normalizer {
 public:
  virtual ~Normalizer() = default;
  // The normal form of valid UTF-8: the text itself if nothing changes, otherwise the text written
  // into `buffer`. `text` must not lie in `buffer`.
  [[nodiscard]] virtual std::string_view apply(std::string_view text,
                                               std::string& buffer) const = 0;
  // True if the text's first character is removed, so that the rest does not begin where the text
  // began.
  [[nodiscard]] virtual bool drops_beginning(std::string_view text) const;
};

// Chosen by the `type` of the JSON. Throws Error(data) beginning with `source`.
std::unique_ptr<Normalizer> make_normalizer(const nlohmann::json& json, const std::string& source);

// One file each in normalizers/.
std::unique_ptr<Normalizer> make_bert_normalizer(const nlohmann::json& json,
                                                 const std::string& source);
std::unique_ptr<Normalizer> make_replacement(const nlohmann::json& json, const std::string& source);
std::unique_ptr<Normalizer> make_precompiled(const nlohmann::json& json, const std::string& source);

}  // namespace tessera::tokenizers
