// Accelerate's configuration files (YAML or JSON, of fsdp_version 1 and 2) as they are: what they
// set of a recipe and of the launch, and what has no meaning here.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "training/recipe/recipe.h"
#include "training/recipe/yaml_tree.h"

namespace tessera::cli {

struct AccelerateKey;

// A key as it stands in a file.
struct AccelerateEntry {
  const AccelerateKey* key = nullptr;
  std::string written;  // its name there
  std::string where;    // "accelerate.yaml:7"
  YamlNode value;
};

// What its keys, and defaults of Accelerate's, say of a recipe's keys are the outer settings.
struct AccelerateConfig : OuterSettings {
  std::string source;
  int version = 1;                     // of FSDP
  bool fsdp = false;                   // distributed_type: FSDP
  std::vector<AccelerateEntry> given;  // in the file's order, without what is empty
  std::optional<int> machines, machine_rank;
  std::optional<std::string> gpu_ids, master_address;
  std::optional<int> master_port;
};

// Throws Error(configuration) with file and line for an unknown key (and the nearest name), a value
// that its key does not take, and what there is nothing for here.
AccelerateConfig read_accelerate_config(const std::filesystem::path& path);
AccelerateConfig parse_accelerate_config(std::string_view text, const std::string& source);

// The variable in which tessera launch --config-file hands the file on to the ranks.
inline constexpr const char* config_file_variable = "TESSERA_CONFIG_FILE";
// The file of --config-file, else that of the launcher; empty: none.
std::string chosen_config_file(const std::string& option);

// A recipe under a configuration file, which may be empty. A key of the file goes before the
// recipe's, an override before both; what the file changes of the recipe is in the recipe's notes.
Recipe load_recipe(const std::filesystem::path& path, const std::vector<std::string>& overrides,
                   const std::string& config_file);
// What reading the recipe and its configuration file had to say, for a run of this many ranks.
std::vector<std::string> configuration_notes(const Recipe& recipe, int world_size);

}  // namespace tessera::cli
