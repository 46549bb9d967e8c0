// Reads Accelerate's configuration files (YAML or JSON, of fsdp_version 1 and 2): their settings
// for a recipe and for the launch, and the keys without a meaning here.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "training/recipe/recipe.h"
#include "training/recipe/yaml/yaml_tree.h"

namespace tessera::training {

struct AccelerateKey;

// A key in a file.
struct AccelerateEntry {
  const AccelerateKey* key = nullptr;
  std::string written;  // its name there
  std::string where;    // "accelerate.yaml:7"
  YamlNode value;
};

// Its base class, OuterSettings, holds the settings for the recipe's keys, from the file and from
// Accelerate's defaults.
struct AccelerateConfig : OuterSettings {
  std::string source;
  int version = 1;                     // of FSDP
  bool fsdp = false;                   // distributed_type: FSDP
  std::vector<AccelerateEntry> given;  // in the file's order, without empty keys
  std::optional<int> machines, machine_rank;
  std::optional<std::string> gpu_ids, master_address;
  std::optional<int> master_port;
};

// Throws Error(configuration) with file and line for an unknown key (and the nearest name), for a
// value that its key does not take, and for a feature that Tessera does not have.
AccelerateConfig read_accelerate_config(const std::filesystem::path& path);
AccelerateConfig parse_accelerate_config(std::string_view text, const std::string& source);

// In this variable tessera launch --config-file passes the file to the ranks.
inline constexpr const char* config_file_variable = "TESSERA_CONFIG_FILE";
// The file of --config-file, else the launcher's; empty: none.
std::string chosen_config_file(const std::string& option);

// A recipe under a configuration file, which may be empty. A key of the file overrides the
// recipe's, and an override on the command line wins over both. The file's changes are in the
// recipe's notes.
Recipe load_recipe(const std::filesystem::path& path, const std::vector<std::string>& overrides,
                   const std::string& config_file);
// The notes from reading the recipe and its configuration file, for a run of this many ranks.
std::vector<std::string> configuration_notes(const Recipe& recipe, int world_size);

}  // namespace tessera::training
