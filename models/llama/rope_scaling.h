// The scaling of rotary frequencies, as in config.json's `rope_scaling`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace tessera::models {

// Stretches rotary frequencies for more positions than a model was first trained on. An unset
// member takes transformers' default.
struct RopeScaling {
  std::string rope_type = "default";  // no scaling; or linear, llama3, yarn
  double factor = 1.0;
  // llama3: wavelengths above original / low are stretched by `factor`, those below original / high
  // are not.
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  std::int64_t original_max_position_embeddings = 0;  // llama3 and yarn
  // yarn: frequencies with fewer than beta_slow turns in the original positions are stretched,
  // those with more than beta_fast are not. `truncate` moves both limits to whole pairs.
  std::optional<double> beta_fast = {};  // 32
  std::optional<double> beta_slow = {};  // 1
  std::optional<bool> truncate = {};     // true
  // Multiplies cosines and sines. By default it follows from `factor`, and from mscale /
  // mscale_all_dim if both are given.
  std::optional<double> attention_factor = {};
  std::optional<double> mscale = {};
  std::optional<double> mscale_all_dim = {};
};

}  // namespace tessera::models
