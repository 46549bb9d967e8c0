// The functions that make the rows of the table of Accelerate's keys.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "training/recipe/accelerate/keys.h"

namespace tessera::training::accelerate {

using Entry = AccelerateEntry;
using Config = AccelerateConfig;
using Row = AccelerateKey;
using Examples = std::vector<AccelerateExample>;

inline constexpr const char* fsdp_group = "fsdp_config";
inline constexpr const char* parallelism_group = "parallelism_config";

YamlNode scalar(std::string text, const std::string& where);
// "fsdp_sharding_strategy: 1".
std::string said(const Entry& entry);
void set(Config& config, const Entry& entry, const std::string& recipe_key, YamlNode value);
void note(Config& config, const Entry& entry, std::string_view text);

// A key whose value sets one of the recipe's keys.
Row setting(std::string group, std::string name, const std::string& recipe_key, std::string help,
            Examples taken, std::vector<std::string> refused = {});
// A key that always has one value here; a file with another value gets a note.
Row holds_always(std::string group, std::string name, bool so, std::string help);
// A key without an effect here; its usual values get no note.
Row without_effect(std::string name, std::string help, Examples taken);
// A key for hardware or software that Tessera does not use.
Row unused(std::string group, std::string name, std::string help, Examples taken);
Row also_written(std::vector<std::string> aliases, Row row);
Row of_version(int version, Row row);
Row refused_above(std::string group, std::string name, std::int64_t most, std::string help);

// The parts of the table.
std::vector<Row> rows_of_the_world();
std::vector<Row> rows_without_effect();
std::vector<Row> rows_of_elsewhere();
std::vector<Row> rows_of_strategy();
std::vector<Row> rows_of_schedule();
std::vector<Row> rows_of_state();
std::vector<Row> rows_of_parallelism();

}  // namespace tessera::training::accelerate
