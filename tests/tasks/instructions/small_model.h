// A language model of two layers for tests of tasks.
#pragma once

#include <nlohmann/json.hpp>

namespace tessera::tasks {

// Its config.json: a GPT-2, or a Llama with grouped key heads, of 32 positions and no dropout.
inline nlohmann::json small_model(bool of_llama) {
  if (!of_llama) {
    return {{"model_type", "gpt2"}, {"vocab_size", 256},
            {"n_positions", 32},    {"n_embd", 32},
            {"n_layer", 2},         {"n_head", 4},
            {"resid_pdrop", 0.0},   {"embd_pdrop", 0.0},
            {"attn_pdrop", 0.0},    {"initializer_range", 0.1}};
  }
  return {{"model_type", "llama"},    {"vocab_size", 256},
          {"hidden_size", 32},        {"intermediate_size", 48},
          {"num_hidden_layers", 2},   {"num_attention_heads", 4},
          {"num_key_value_heads", 2}, {"max_position_embeddings", 32},
          {"initializer_range", 0.1}};
}

}  // namespace tessera::tasks
