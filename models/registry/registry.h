// The architectures that can be built from a config.json: one row each.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/config/config_file.h"
#include "models/config/config_key.h"
#include "models/language_model.h"
#include "models/sequence_to_sequence.h"
#include "models/text_encoder.h"

namespace tessera::models {

enum class ModelKind : std::uint8_t { language_model, text_encoder };

struct Architecture {
  std::string_view model_type;  // config.json's `model_type`, and the recipe's model.architecture
  ModelKind kind;
  std::vector<ConfigKey> (*keys)();
  // Adds the keys that `config` lacks; Error(configuration) for a model that is not supported.
  void (*complete)(nlohmann::json& config, const ConfigSource& source);
  void (*check)(const nlohmann::json& config, const ConfigSource& source);
  std::unique_ptr<Model> (*make)(const nlohmann::json& config, const ConfigSource& source);
};

std::span<const Architecture> architectures();
// The names of a kind's rows, with commas.
std::string model_types(ModelKind kind);
// The row that a configuration names; Error(configuration) if it does not exist.
const Architecture& architecture_of(const nlohmann::json& config, const ConfigSource& source);

// Builds the model that `config` describes (Hugging Face's config.json), with initial values drawn
// from the thread's seed (engine/random.h), on the thread's default device. `source` is the place
// of the configuration in errors. A configuration that is not supported is an Error(configuration)
// that names the key, and so is a model of another kind.
std::unique_ptr<Model> make_model(const nlohmann::json& config,
                                  const ConfigSource& source = "config.json");
std::unique_ptr<LanguageModel> make_language_model(const nlohmann::json& config,
                                                   const ConfigSource& source = "config.json");
std::unique_ptr<TextEncoder> make_text_encoder(const nlohmann::json& config,
                                               const ConfigSource& source = "config.json");
// An encoder with a decoder, from a table of its own: T5's configuration alone, `t5`, is that of
// the encoder in the table above, and of both stacks here.
std::unique_ptr<SequenceToSequence> make_sequence_to_sequence(
    const nlohmann::json& config, const ConfigSource& source = "config.json");

}  // namespace tessera::models
