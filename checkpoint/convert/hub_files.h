// The small files that a Hugging Face folder has beside weights and config.json when it is
// published: generation_config.json and README.md, the model card.
#pragma once

#include <filesystem>
#include <string>

#include "checkpoint/formats/format.h"

namespace tessera::checkpoint {

inline constexpr const char* model_card_file = "README.md";

struct CardSource {
  std::filesystem::path source;  // the checkpoint that is converted
  std::string format;            // in words for the card: "full", "gguf"
  // The weights are not those of one model that a card of the source's describes: an adapter was
  // merged, or several were averaged.
  bool changes_weights = false;
  std::string name;  // of the result
};

// Adds to the contents of a conversion to a Hugging Face folder what they lack. A README.md and a
// generation_config.json of the source are kept as they are. Only for contents whose config.json
// names a model_type.
void add_hub_files(formats::Contents& contents, const CardSource& source);

// True if a conversion wrote this model card and it has not been edited since. Another conversion
// may replace it.
bool is_written_card(const std::string& text);

}  // namespace tessera::checkpoint
