// Reads small JSON files strictly.
#include "models/config/config_file.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "checkpoint/io/file.h"
#include "checkpoint/io/json.h"

namespace tessera::models {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t config_limit = std::uint64_t{16} << 20;

nlohmann::json read_object(const fs::path& path) {
  nlohmann::json config =
      checkpoint::parse_json(checkpoint::read_file(path, config_limit), path.string());
  TESSERA_CHECK(config.is_object(), ErrorCode::checkpoint, "{}: not a JSON object", path.string());
  return config;
}

}  // namespace

nlohmann::json read_config(const std::string& folder) {
  const fs::path path = fs::path(folder) / "config.json";
  TESSERA_CHECK(checkpoint::path_exists(path), ErrorCode::checkpoint,
                "{}: cannot be read; a model folder has a config.json", path.string());
  return read_object(path);
}

std::optional<nlohmann::json> read_optional_config(const std::string& folder,
                                                   const std::string& name) {
  const fs::path path = fs::path(folder) / name;
  if (!checkpoint::path_exists(path)) return std::nullopt;
  return read_object(path);
}

}  // namespace tessera::models
