// One key of an architecture's config.json: its values, its meaning and its default. config_table.h
// ties keys to the members of a configuration.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "models/config/value_range.h"

namespace tessera::models {

struct ConfigKey {
  enum class Type : std::uint8_t { whole, number, flag, choice };
  // Keys whose value a recipe takes from elsewhere if they are not given.
  enum class Role : std::uint8_t { plain, vocabulary, positions, dropout };

  std::string name;  // "rope_scaling.factor" is the key `factor` of an object
  Type type = Type::whole;
  Range range;
  std::vector<std::string> choices;
  std::string help;
  Role role = Role::plain;
  std::int64_t reserved = 0;  // of the role `positions`: those that no token of a text has
  std::string fallback;       // the default in words; "none" for a key that is left out
  bool has_value = true;      // there is a default
  bool nullable = false;      // null is a value of its own, not the default
};

// The place of a configuration, for messages, which begin "WHERE: NAME ...".
struct ConfigSource {
  std::function<std::string(const std::string& key)> where;
  std::function<std::string(const std::string& key)> name;

  // A file, whose keys have their own names.
  ConfigSource(std::string file);  // NOLINT(google-explicit-constructor): most are files
  ConfigSource(const char* file) : ConfigSource(std::string(file)) {}  // NOLINT: the same
  ConfigSource(std::function<std::string(const std::string& key)> where_key,
               std::function<std::string(const std::string& key)> name_key)
      : where(std::move(where_key)), name(std::move(name_key)) {}
};

}  // namespace tessera::models
