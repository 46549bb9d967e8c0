// Reads and checks configurations before anything is made of them.
#include "models/load/image_models.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "models/config/config_file.h"
#include "models/model_folder.h"
#include "models/weights_bound.h"

namespace tessera::models {
namespace {

std::string source_in(const std::string& folder) {
  return (std::filesystem::path(folder) / "config.json").string();
}

}  // namespace

ViTConfig load_vit_config(const std::string& folder) {
  require_model_folder(folder);
  ViTConfig config = ViTConfig::parse(read_config(folder), source_in(folder));
  check_weights_bound(folder, config.to_json("ViTModel", float32));
  check_matrix_bound(folder, config.patches() + 1, config.hidden_size);
  return config;
}

CLIPConfig load_clip_config(const std::string& folder) {
  require_model_folder(folder);
  CLIPConfig config = CLIPConfig::parse(read_config(folder), source_in(folder));
  const nlohmann::json whole = config.to_json(float32);
  check_weights_bound(folder, whole["text_config"]);
  check_weights_bound(folder, whole["vision_config"]);
  check_matrix_bound(folder, config.text.max_position_embeddings, config.text.hidden_size);
  check_matrix_bound(folder, config.vision.patches() + 1, config.vision.hidden_size);
  return config;
}

}  // namespace tessera::models
