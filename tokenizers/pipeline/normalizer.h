// What is done to a text before it is cut: the `normalizer` of a tokenizer file.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace tessera::tokenizers {

// Used by any number of threads.
class Normalizer {
 public:
  virtual ~Normalizer() = default;
  // The normal form of valid UTF-8: the text itself where nothing changes, else what was written
  // into `buffer`, which is not what `text` lies in.
  [[nodiscard]] virtual std::string_view apply(std::string_view text,
                                               std::string& buffer) const = 0;
  // Whether the text's first character goes, so that what is left no longer begins where it began.
  [[nodiscard]] virtual bool drops_beginning(std::string_view text) const;
};

// By the `type` of the JSON. Throws Error(data) beginning with `source`.
std::unique_ptr<Normalizer> make_normalizer(const nlohmann::json& json, const std::string& source);

// One file each in normalizers/.
std::unique_ptr<Normalizer> make_bert_normalizer(const nlohmann::json& json,
                                                 const std::string& source);
std::unique_ptr<Normalizer> make_replacement(const nlohmann::json& json, const std::string& source);
std::unique_ptr<Normalizer> make_precompiled(const nlohmann::json& json, const std::string& source);

}  // namespace tessera::tokenizers
