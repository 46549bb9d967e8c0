// Checked access to config.json.
#include "models/config/config_reader.h"

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>

namespace tessera::models {
namespace {

// The required value in words if `value` is not of the key's type and range; otherwise empty.
std::string unmet_wish(const ConfigKey& key, const nlohmann::json& value) {
  constexpr std::int64_t limit = std::int64_t{1} << 31;  // keeps every product of two sizes exact
  switch (key.type) {
    case ConfigKey::Type::whole: {
      const auto least = static_cast<std::int64_t>(key.range.low.value_or(0));
      const auto most =
          static_cast<std::int64_t>(key.range.high.value_or(static_cast<double>(limit - 1)));
      const bool fits = value.is_number_integer() && value >= least && value <= most;
      return fits ? "" : fmt::format("a whole number from {} to {}", least, most);
    }
    case ConfigKey::Type::number: {
      const bool fits = value.is_number() && std::isfinite(value.get<double>()) &&
                        key.range.holds(value.get<double>());
      return fits ? "" : fmt::format("a number {}", key.range.text());
    }
    case ConfigKey::Type::flag:
      return value.is_boolean() ? "" : "true or false";
    case ConfigKey::Type::choice:
      break;
  }
  if (!value.is_string()) {
    return fmt::format("a text, one of {}", fmt::join(key.choices, ", "));
  }
  const auto found = std::ranges::find(key.choices, value.get<std::string>());
  return found != key.choices.end() ? "" : fmt::format("one of {}", fmt::join(key.choices, ", "));
}

}  // namespace

ConfigSource::ConfigSource(std::string file)
    : where([file = std::move(file)](const std::string&) { return file; }),
      name([](const std::string& key) { return key; }) {}

ConfigReader::ConfigReader(const nlohmann::json& config, ConfigSource source)
    : config_(config), source_(std::move(source)) {
  TESSERA_CHECK(config.is_object(), ErrorCode::configuration,
                "{}: the model's configuration must be a JSON object, not {}", source_.where(""),
                config.type_name());
}

const nlohmann::json* ConfigReader::find(std::string_view key) const {
  const nlohmann::json* object = &config_;
  for (std::size_t begin = 0;;) {
    const std::size_t dot = key.find('.', begin);
    const auto found = object->find(key.substr(begin, dot - begin));
    if (found == object->end() || found->is_null()) return nullptr;
    if (dot == std::string_view::npos) return &*found;
    if (!found->is_object()) refuse(key.substr(0, dot), *found, "an object or null");
    object = &*found;
    begin = dot + 1;
  }
}

bool ConfigReader::is_null(std::string_view key) const {
  const auto found = config_.find(key);
  return found != config_.end() && found->is_null();
}

void ConfigReader::refuse(std::string_view key, const nlohmann::json& value,
                          std::string_view wanted) const {
  check_key(false, key, "is {}; it must be {}", value.dump(), wanted);
  misuse("a check that cannot hold did");
}

const nlohmann::json* ConfigReader::value(const ConfigKey& key) const {
  const nlohmann::json* given = find(key.name);
  if (given == nullptr) return nullptr;
  const std::string wish = unmet_wish(key, *given);
  if (!wish.empty()) refuse(key.name, *given, wish);
  return given;
}

std::int64_t ConfigReader::positive(std::string_view key,
                                    std::optional<std::int64_t> fallback) const {
  ConfigKey whole;
  whole.name = key;
  whole.range = at_least(1);
  const nlohmann::json* given = value(whole);
  check_key(given != nullptr || fallback.has_value(), key, "is missing");
  return given != nullptr ? given->get<std::int64_t>() : *fallback;
}

bool ConfigReader::flag(std::string_view key, bool fallback) const {
  ConfigKey flag;
  flag.name = key;
  flag.type = ConfigKey::Type::flag;
  const nlohmann::json* given = value(flag);
  return given != nullptr ? given->get<bool>() : fallback;
}

std::string ConfigReader::text(std::string_view key, std::optional<std::string> fallback) const {
  const nlohmann::json* given = find(key);
  check_key(given != nullptr || fallback.has_value(), key, "is missing");
  if (given == nullptr) return *fallback;
  if (!given->is_string()) refuse(key, *given, "a text");
  return given->get<std::string>();
}

void ConfigReader::only(std::string_view key, bool supported) const {
  const nlohmann::json* value = find(key);
  if (value == nullptr) return;
  if (!value->is_boolean()) refuse(key, *value, "true or false");
  check_key(*value == supported, key, "= {} is not supported; use {}", !supported, supported);
}

void ConfigReader::only(std::string_view key, double supported) const {
  const nlohmann::json* value = find(key);
  if (value == nullptr) return;
  check_key(*value == supported, key, "= {} is not supported; use {}", value->dump(), supported);
}

void name_model(nlohmann::json& config, std::string_view model_class, std::string_view model_type,
                DType weights) {
  config["architectures"] = {model_class};
  config["model_type"] = model_type;
  config["torch_dtype"] = name_of(weights);
  config.erase("dtype");  // the newer spelling of torch_dtype: one of the two
}

void complete_config(nlohmann::json& config, std::string_view model_class,
                     std::string_view model_type, DType weights) {
  name_model(config, model_class, model_type, weights);
  for (const char* token : {"bos_token_id", "eos_token_id"}) {
    if (!config.contains(token)) config[token] = nullptr;
  }
}

}  // namespace tessera::models
