// The model's settings and sizes in a Megatron checkpoint.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

namespace tessera::checkpoint::formats {

struct MegatronModel {
  bool is_gpt2 = false;  // else of Llama's build: RMSNorm, rotary positions, SwiGLU
  std::int64_t layers = 0;
  std::int64_t heads = 0, key_heads = 0, head_size = 0;
  std::int64_t vocabulary = 0;  // without the rows that Megatron pads it by; 0: unknown
  bool tied = false;            // the head is the token table
  nlohmann::json config;        // config.json, perhaps without vocab_size
};

// From the arguments of Megatron's command line, as common.pt keeps them. Error(checkpoint) that
// begins with `source` and names the argument if the model is one that no config.json here
// describes, or if a size is missing.
MegatronModel megatron_model_of_args(const nlohmann::json& args, const std::string& source);
// From a config.json of Hugging Face beside the checkpoint.
MegatronModel megatron_model_of_config(const nlohmann::json& config, const std::string& source);

}  // namespace tessera::checkpoint::formats
