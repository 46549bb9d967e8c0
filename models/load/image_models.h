// The configurations of image models in folders.
#pragma once

#include <string>

#include "models/clip/clip_config.h"
#include "models/vit/vit_config.h"

namespace tessera::models {

// Reads FOLDER/config.json. Error(configuration) with the key for what is not supported, and
// Error(checkpoint) if the folder's weights do not belong to it.
ViTConfig load_vit_config(const std::string& folder);
CLIPConfig load_clip_config(const std::string& folder);

}  // namespace tessera::models
