// Checked access to config.json.
#include "models/config_reader.h"

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>

namespace tessera::models {

ConfigReader::ConfigReader(const nlohmann::json& config, std::string source)
    : config_(config), source_(std::move(source)) {
  check(config.is_object(), "a JSON object with the model's configuration is wanted, this is {}",
        config.type_name());
}

const nlohmann::json* ConfigReader::find(std::string_view key) const {
  const auto found = config_.find(key);
  return found == config_.end() || found->is_null() ? nullptr : &*found;
}

void ConfigReader::refuse(std::string_view key, const nlohmann::json& value,
                          std::string_view wanted) const {
  fail(ErrorCode::configuration, "{}: {} is {}; {} is wanted", source_, key, value.dump(), wanted);
}

void ConfigReader::missing(std::string_view key) const {
  fail(ErrorCode::configuration, "{}: {} is missing", source_, key);
}

std::int64_t ConfigReader::positive(std::string_view key,
                                    std::optional<std::int64_t> fallback) const {
  const nlohmann::json* value = find(key);
  if (value == nullptr) return fallback ? *fallback : (missing(key), 0);
  constexpr std::int64_t limit = std::int64_t{1} << 31;  // keeps every product of two sizes exact
  const bool fits = value->is_number_integer() && *value >= 1 && *value < limit;
  if (!fits) refuse(key, *value, "a whole number from 1 to 2147483647");
  return value->get<std::int64_t>();
}

double ConfigReader::number(std::string_view key, std::optional<double> fallback) const {
  const nlohmann::json* value = find(key);
  if (value == nullptr) return fallback ? *fallback : (missing(key), 0);
  if (!value->is_number() || !std::isfinite(value->get<double>())) refuse(key, *value, "a number");
  return value->get<double>();
}

double ConfigReader::positive_number(std::string_view key, std::optional<double> fallback) const {
  const double value = number(key, fallback);
  if (value <= 0) refuse(key, value, "a number above 0");
  return value;
}

double ConfigReader::probability(std::string_view key, double fallback) const {
  const double value = number(key, fallback);
  if (value < 0 || value >= 1) refuse(key, value, "a number from 0 to below 1");
  return value;
}

bool ConfigReader::flag(std::string_view key, bool fallback) const {
  const nlohmann::json* value = find(key);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) refuse(key, *value, "true or false");
  return value->get<bool>();
}

std::string ConfigReader::text(std::string_view key, std::optional<std::string> fallback) const {
  const nlohmann::json* value = find(key);
  if (value == nullptr) return fallback ? *fallback : (missing(key), "");
  if (!value->is_string()) refuse(key, *value, "a text");
  return value->get<std::string>();
}

std::string ConfigReader::choice(std::string_view key, const std::vector<std::string>& known,
                                 std::string fallback) const {
  std::string value = text(key, std::move(fallback));
  if (std::ranges::find(known, value) == known.end()) {
    refuse(key, value, fmt::format("one of {}", fmt::join(known, ", ")));
  }
  return value;
}

void ConfigReader::only(std::string_view key, bool supported) const {
  check(flag(key, supported) == supported, "{} = {} is not built; {} is", key, !supported,
        supported);
}

const nlohmann::json* ConfigReader::object(std::string_view key) const {
  const nlohmann::json* value = find(key);
  if (value != nullptr && !value->is_object()) refuse(key, *value, "an object or null");
  return value;
}

void complete_config(nlohmann::json& config, std::string_view model_class,
                     std::string_view model_type, DType weights) {
  config["architectures"] = {model_class};
  config["model_type"] = model_type;
  config["torch_dtype"] = name_of(weights);
  config.erase("dtype");  // the newer spelling of torch_dtype: one of the two
  for (const char* token : {"bos_token_id", "eos_token_id"}) {
    if (!config.contains(token)) config[token] = nullptr;
  }
}

}  // namespace tessera::models
