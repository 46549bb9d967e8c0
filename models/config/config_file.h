// config.json and similar files in a model's folder.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

namespace tessera::models {

// The object in FOLDER/config.json. Error(checkpoint) if the file is missing, or is not one JSON
// object with every key once.
nlohmann::json read_config(const std::string& folder);
// The same for another file of the folder, which may be missing.
std::optional<nlohmann::json> read_optional_config(const std::string& folder,
                                                   const std::string& name);

}  // namespace tessera::models
