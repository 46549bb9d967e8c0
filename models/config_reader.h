// Reads the fields of a Hugging Face config.json, each checked: a wrong type or value is an
// Error(configuration) that names the source, the key, the value and what is wanted.
#pragma once

#include <fmt/format.h>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/dtype.h"
#include "kernels/base/error.h"

namespace tessera::models {

class ConfigReader {
 public:
  // `config` must outlive the reader.
  ConfigReader(const nlohmann::json& config, std::string source);

  // A value that is absent or null takes the fallback; without a fallback it is an error.
  [[nodiscard]] std::int64_t positive(std::string_view key,
                                      std::optional<std::int64_t> fallback = {}) const;
  [[nodiscard]] double number(std::string_view key, std::optional<double> fallback = {}) const;
  [[nodiscard]] double positive_number(std::string_view key,
                                       std::optional<double> fallback = {}) const;
  [[nodiscard]] double probability(std::string_view key, double fallback) const;  // in [0, 1)
  [[nodiscard]] bool flag(std::string_view key, bool fallback) const;
  [[nodiscard]] std::string text(std::string_view key,
                                 std::optional<std::string> fallback = {}) const;
  // A text that must be one of `known`.
  [[nodiscard]] std::string choice(std::string_view key, const std::vector<std::string>& known,
                                   std::string fallback) const;
  // The value must be `supported` or absent; anything else is refused.
  void only(std::string_view key, bool supported) const;

  // The object under `key`, or null when it is absent or null.
  [[nodiscard]] const nlohmann::json* object(std::string_view key) const;
  [[nodiscard]] bool has(std::string_view key) const { return find(key) != nullptr; }
  [[nodiscard]] const std::string& source() const { return source_; }

  template <class... Args>
  void check(bool condition, fmt::format_string<Args...> format, Args&&... args) const {
    if (condition) return;
    fail(ErrorCode::configuration, "{}: {}", source_,
         fmt::format(format, std::forward<Args>(args)...));
  }

 private:
  [[nodiscard]] const nlohmann::json* find(std::string_view key) const;  // null when absent or null
  [[noreturn]] void refuse(std::string_view key, const nlohmann::json& value,
                           std::string_view wanted) const;
  [[noreturn]] void missing(std::string_view key) const;

  const nlohmann::json& config_;
  std::string source_;
};

// The keys that every config.json ends with: class, type, dtype of the weights, and special tokens
// (null where the original has none, because the defaults that transformers would put there belong
// to other vocabularies).
void complete_config(nlohmann::json& config, std::string_view model_class,
                     std::string_view model_type, DType weights);

}  // namespace tessera::models
