// config.json and the settings of a GGUF file, each made from the other.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "checkpoint/formats/gguf/gguf_family.h"

namespace tessera::checkpoint::formats {

// The name of the tensor of llama3's scaled rotary positions: a divisor for each frequency.
inline constexpr const char* gguf_rope_tensor = "rope_freqs.weight";
// A JSON object with eos_token_id, the numbers of all tokens that end a text.
inline constexpr const char* gguf_ends_key = "tessera.eos_token_ids";

struct GgufHeads {
  std::int64_t query = 1;
  std::int64_t key = 1;
};

// The parts of a model's config.json that the writer needs.
struct GgufModel {
  const GgufFamily* family = nullptr;
  GgufHeads heads;
  std::int64_t vocabulary = 0;
  nlohmann::json config;           // with the defaults of what it leaves out
  std::vector<float> rope;         // the contents of gguf_rope_tensor; empty: there is none
  std::vector<std::string> notes;  // what llama.cpp computes in another way
};

// Writes general.architecture and the settings. Error(checkpoint) names a key of config.json that
// llama.cpp does not compute with.
GgufModel write_gguf_settings(const nlohmann::json& config, GgufMetadata& metadata);

// Notes the keys of config.json that another model would compute with: a window, scales, soft caps.
void note_config_keys(const nlohmann::json& config, GgufModel& model);
// GGUF has no setting for dropout. This program keeps it under a key of its own, and writes 0 into
// the config.json of a file without that key: transformers' default for GPT-2 is 0.1.
void keep_dropout(const nlohmann::json& config, const GgufFamily& family, GgufMetadata& metadata);
void restore_dropout(const GgufHeader& header, const GgufFamily& family, const std::string& file,
                     nlohmann::json& config);

// Writes how the model is meant to be sampled, from generation_config.json: llama.cpp takes it for
// its own defaults. Nothing for a model that is meant to be greedy.
void write_gguf_sampling(const nlohmann::json& generation, GgufMetadata& metadata);

// The config.json of an opened file. `rope`: the contents of gguf_rope_tensor. Sets `heads`.
nlohmann::json config_of_gguf(const GgufHeader& header, const GgufFamily& family,
                              const std::vector<float>& rope, const std::string& file,
                              GgufHeads& heads);

}  // namespace tessera::checkpoint::formats
