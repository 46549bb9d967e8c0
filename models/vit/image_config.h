// The keys of a config.json that describe images. transformers takes a number or two for the size
// of an image and of a patch; both must be equal here.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>

#include "models/config/config_reader.h"
#include "models/config/config_table.h"

namespace tessera::models {

// `config` with a number instead of a list of two equal ones. Error(configuration) for two that
// differ.
nlohmann::json with_square_sizes(const nlohmann::json& config, const ConfigSource& source);
// Error(configuration) unless images consist of whole patches, not too many of them.
void check_patches(const ConfigReader& reader, std::int64_t image, std::int64_t patch);

// A configuration with image_size, patch_size and num_channels.
template <class Config>
void add_image_rows(ConfigTable<Config>& rows) {
  rows.add("image_size", &Config::image_size, "Rows and columns of an image.", width_of());
  rows.add("patch_size", &Config::patch_size, "Rows and columns of a patch.", width_of());
  rows.add("num_channels", &Config::num_channels, "Channels of an image.", width_of());
}

}  // namespace tessera::models
