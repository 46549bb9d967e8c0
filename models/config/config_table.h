// Describes an architecture's configuration once: a row for each key of its config.json with the
// member that holds it, its range, its default and its meaning. The table reads a config.json,
// writes one, and gives the recipe its keys. Included by *_config.cpp files.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "models/config/config_reader.h"

namespace tessera::models {

template <class Config>
class ConfigTable {
 public:
  class Row {
   public:
    // The default follows from keys of the rows above; `words` describes it to the user.
    Row& follows(std::string words, std::function<nlohmann::json(const Config&)> value) {
      key_.fallback = std::move(words);
      derive_ = std::move(value);
      return *this;
    }
    // The same for a null value; an absent key still takes the table's default.
    Row& follows_where_null(std::function<nlohmann::json(const Config&)> value) {
      derive_ = std::move(value);
      where_null_ = true;
      return *this;
    }
    // A recipe takes the value from elsewhere if it is not given.
    Row& has_role(ConfigKey::Role role) {
      key_.role = role;
      return *this;
    }
    Row& reserves(std::int64_t positions) {
      key_.reserved = positions;
      return *this;
    }
    // Without a default: omitted if it is not given.
    Row& optional() {
      key_.fallback = "none";
      key_.has_value = false;
      return *this;
    }

   private:
    friend class ConfigTable;
    ConfigKey key_;
    std::function<nlohmann::json(const Config&)> get_;
    std::function<void(Config&, const nlohmann::json&)> set_;
    std::function<nlohmann::json(const Config&)> derive_;
    bool where_null_ = false;
  };

  // `defaults` holds the default values.
  ConfigTable() = default;
  explicit ConfigTable(Config defaults) : defaults_(std::move(defaults)) {}

  // A number or a flag. `member` may belong to a part of Config: a function from Config& and const
  // Config&.
  template <class Member>
  Row& add(const std::string& name, Member member, const std::string& help, Range range = {}) {
    using Held = std::remove_cvref_t<std::invoke_result_t<Member, Config&>>;
    Row row;
    row.key_.nullable = !std::is_arithmetic_v<Held>;
    using Value = decltype(unwrapped(std::declval<Held>()));
    row.key_.type = std::is_same_v<Value, bool>     ? ConfigKey::Type::flag
                    : std::is_same_v<Value, double> ? ConfigKey::Type::number
                                                    : ConfigKey::Type::whole;
    row.key_.range = range;
    row.get_ = [member](const Config& config) -> nlohmann::json {
      const Held held = std::invoke(member, config);
      if constexpr (std::is_arithmetic_v<Held>) {
        return held;
      } else {
        return held ? nlohmann::json(*held) : nlohmann::json();
      }
    };
    row.set_ = [member](Config& config, const nlohmann::json& value) {
      if (value.is_null()) {
        std::invoke(member, config) = Held();
      } else {
        std::invoke(member, config) = value.get<Value>();
      }
    };
    return push(std::move(row), name, help);
  }

  // One of a few texts.
  template <class Member>
  Row& choice(const std::string& name, Member member, const std::vector<std::string>& choices,
              const std::string& help) {
    Row row;
    row.key_.type = ConfigKey::Type::choice;
    row.key_.choices = choices;
    row.get_ = [member](const Config& config) -> nlohmann::json {
      return std::invoke(member, config);
    };
    row.set_ = [member](Config& config, const nlohmann::json& value) {
      std::invoke(member, config) = value.get<std::string>();
    };
    return push(std::move(row), name, help);
  }

  Row& vocabulary(std::int64_t Config::*member) {
    return add("vocab_size", member, "Tokens in the vocabulary.", at_least(1))
        .has_role(ConfigKey::Role::vocabulary);
  }
  Row& positions(const std::string& name, std::int64_t Config::*member) {
    return add(name, member, "The longest sequence.", at_least(1))
        .has_role(ConfigKey::Role::positions);
  }
  Row& dropout(const std::string& name, double Config::*member, const std::string& help) {
    return add(name, member, help, from_up_to(0, 1)).has_role(ConfigKey::Role::dropout);
  }

  // The configuration's values of the rows' keys, with defaults for the rest.
  [[nodiscard]] Config read(const ConfigReader& reader) const {
    Config config = defaults_;
    for (const Row& row : rows_) {
      const nlohmann::json* value = reader.value(row.key_);
      if (value != nullptr) {
        row.set_(config, *value);
      } else if (row.key_.nullable && reader.is_null(row.key_.name)) {
        row.set_(config, nullptr);
      } else if (row.derive_ && (!row.where_null_ || reader.is_null(row.key_.name))) {
        row.set_(config, row.derive_(config));
      }
    }
    return config;
  }
  // Adds the values that `config` does not give.
  void complete(const ConfigReader& reader, nlohmann::json& config) const {
    const Config whole = read(reader);
    for (const Row& row : rows_) {
      const std::string& name = row.key_.name;
      if (row.key_.has_value && !config.contains(name)) config[name] = row.get_(whole);
    }
  }
  // Writes every row's value, except those of optional rows.
  void write(const Config& config, nlohmann::json& json) const {
    for (const Row& row : rows_) {
      if (row.key_.has_value) json[row.key_.name] = row.get_(config);
    }
  }
  [[nodiscard]] std::vector<ConfigKey> keys() const {
    std::vector<ConfigKey> keys;
    for (const Row& row : rows_) keys.push_back(row.key_);
    return keys;
  }

 private:
  static bool unwrapped(bool);
  static double unwrapped(double);
  static std::int64_t unwrapped(std::int64_t);
  template <class T>
  static T unwrapped(std::optional<T>);

  Row& push(Row row, const std::string& name, const std::string& help) {
    row.key_.name = name;
    row.key_.help = help;
    const nlohmann::json value = row.get_(defaults_);
    row.key_.fallback = value.is_string() ? value.get<std::string>() : value.dump();
    rows_.push_back(std::move(row));
    return rows_.back();
  }

  Config defaults_;
  std::vector<Row> rows_;
};

}  // namespace tessera::models
