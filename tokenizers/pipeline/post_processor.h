// The special tokens around a sequence: the `post_processor` of a tokenizer file, for one sequence.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace tessera::tokenizers {

class PostProcessor {
 public:
  PostProcessor() = default;  // none
  // Chosen by the `type` of the JSON. Throws Error(data) beginning with `source`.
  PostProcessor(const nlohmann::json& json, const std::string& source) { add(json, source); }
  // before + sequence + after
  PostProcessor(std::vector<std::int32_t> before, std::vector<std::int32_t> after);

  // The number of tokens added to a sequence.
  [[nodiscard]] std::int64_t added() const;
  [[nodiscard]] std::vector<std::int32_t> apply(std::vector<std::int32_t> ids) const;

 private:
  // A step puts ids around the sequence; `sequence` marks its place.
  static constexpr std::int32_t sequence = -1;
  using Template = std::vector<std::int32_t>;

  void add(const nlohmann::json& json, const std::string& source);
  void add_template(const nlohmann::json& json, const std::string& source);

  std::vector<Template> steps_;
};

}  // namespace tessera::tokenizers
