// Reads and checks the fields of a Hugging Face config.json. A wrong type or value is an
// Error(configuration) that names the source, the key, the value and the required value.
#pragma once

#include <fmt/format.h>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/error.h"
#include "models/config/config_key.h"

namespace tessera::models {

// A key may be a path ("rope_scaling.factor"); absent and null are the same.
class ConfigReader {
 public:
  // `config` must outlive the reader.
  ConfigReader(const nlohmann::json& config, ConfigSource source);

  // The value of `key`, which must be of its type and range; null if it is not given.
  [[nodiscard]] const nlohmann::json* value(const ConfigKey& key) const;
  // Fields of other small files. Without a fallback, an absent field is an error.
  [[nodiscard]] std::int64_t positive(std::string_view key,
                                      std::optional<std::int64_t> fallback = {}) const;
  [[nodiscard]] bool flag(std::string_view key, bool fallback) const;
  [[nodiscard]] std::string text(std::string_view key,
                                 std::optional<std::string> fallback = {}) const;
  // The value must be `supported` or absent; anything else is refused.
  void only(std::string_view key, bool supported) const;
  void only(std::string_view key, double supported) const;

  [[nodiscard]] bool has(std::string_view key) const { return find(key) != nullptr; }
  // True if the key is present and null.
  [[nodiscard]] bool is_null(std::string_view key) const;
  [[nodiscard]] std::string source() const { return source_.where(""); }
  [[nodiscard]] std::string name_of_key(const std::string& key) const { return source_.name(key); }

  // "WHERE: text" unless the condition holds.
  template <class... Args>
  void check(bool condition, fmt::format_string<Args...> format, Args&&... args) const {
    if (condition) return;
    fail(ErrorCode::configuration, "{}: {}", source(),
         fmt::format(format, std::forward<Args>(args)...));
  }
  // "WHERE: KEY text", with the place where the key was given.
  template <class... Args>
  void check_key(bool condition, std::string_view key, fmt::format_string<Args...> format,
                 Args&&... args) const {
    if (condition) return;
    const std::string name(key);
    fail(ErrorCode::configuration, "{}: {} {}", source_.where(name), source_.name(name),
         fmt::format(format, std::forward<Args>(args)...));
  }

 private:
  [[nodiscard]] const nlohmann::json* find(std::string_view key) const;  // null when absent or null
  [[noreturn]] void refuse(std::string_view key, const nlohmann::json& value,
                           std::string_view wanted) const;

  const nlohmann::json& config_;
  ConfigSource source_;
};

// Adds the model's class and type, and the dtype of its weights.
void name_model(nlohmann::json& config, std::string_view model_class, std::string_view model_type,
                DType weights);
// Adds the keys that end every config.json: class, type, dtype of the weights, and special tokens
// (null if the original has none, because transformers' defaults for them belong to other
// vocabularies).
void complete_config(nlohmann::json& config, std::string_view model_class,
                     std::string_view model_type, DType weights);

}  // namespace tessera::models
