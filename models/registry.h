// The architectures that can be built from a config.json: one row each.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>

#include "models/language_model.h"
#include "models/text_encoder.h"

namespace tessera::models {

struct Architecture {
  std::string_view model_type;  // config.json's `model_type`, and the recipe's model.architecture
  std::unique_ptr<LanguageModel> (*make)(const nlohmann::json& config, const std::string& source);
};

std::span<const Architecture> architectures();

// Builds the model that `config` describes (Hugging Face's config.json), with initial values drawn
// from the thread's seed (engine/random.h), on the thread's default device. `source` says in errors
// where the configuration came from. A configuration that cannot be built is an
// Error(configuration) that names the key.
std::unique_ptr<LanguageModel> make_language_model(const nlohmann::json& config,
                                                   const std::string& source = "config.json");

// The same for models that give hidden states.
std::unique_ptr<TextEncoder> make_text_encoder(const nlohmann::json& config,
                                               const std::string& source);

}  // namespace tessera::models
