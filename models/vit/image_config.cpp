// Checks of sizes of images.
#include "models/vit/image_config.h"

namespace tessera::models {

nlohmann::json with_square_sizes(const nlohmann::json& config, const ConfigSource& source) {
  const ConfigReader reader(config, source);  // an object, or it says so
  nlohmann::json squared = config;
  for (const char* key : {"image_size", "patch_size"}) {
    const auto size = squared.find(key);
    if (size == squared.end() || !size->is_array()) continue;
    reader.check_key(size->size() == 2 && (*size)[0] == (*size)[1], key,
                     "is {}; only squares are supported: one number, or the same one twice",
                     size->dump());
    const nlohmann::json side = (*size)[0];
    *size = side;
  }
  return squared;
}

void check_patches(const ConfigReader& reader, std::int64_t image, std::int64_t patch) {
  constexpr std::int64_t most_on_a_side = 1024;
  reader.check_key(image % patch == 0, "image_size", "= {} is not a multiple of patch_size = {}",
                   image, patch);
  reader.check_key(image / patch <= most_on_a_side, "image_size",
                   "= {} has more than {} patches of patch_size = {} on a side", image,
                   most_on_a_side, patch);
}

}  // namespace tessera::models
