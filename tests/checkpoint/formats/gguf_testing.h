// Small models for the tests of GGUF files, and such files built byte by byte.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "checkpoint/convert/convert.h"
#include "checkpoint/safetensors/safetensors.h"
#include "checkpoint/support.h"

namespace tessera::checkpoint::testing {

constexpr std::int64_t gguf_vocabulary = 40, gguf_width = 64, gguf_inner = 96, gguf_layers = 2;

struct NamedShape {
  std::string name;
  std::vector<std::int64_t> shape;
};

inline std::vector<NamedShape> small_llama_tensors() {
  constexpr std::int64_t w = gguf_width;
  std::vector<NamedShape> tensors{{"model.embed_tokens.weight", {gguf_vocabulary, w}},
                                  {"model.norm.weight", {w}},
                                  {"lm_head.weight", {gguf_vocabulary, w}}};
  for (int layer = 0; layer < gguf_layers; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".";
    for (const NamedShape& each :
         std::vector<NamedShape>{{"input_layernorm.weight", {w}},
                                 {"self_attn.q_proj.weight", {w, w}},
                                 {"self_attn.k_proj.weight", {w / 2, w}},
                                 {"self_attn.v_proj.weight", {w / 2, w}},
                                 {"self_attn.o_proj.weight", {w, w}},
                                 {"post_attention_layernorm.weight", {w}},
                                 {"mlp.gate_proj.weight", {gguf_inner, w}},
                                 {"mlp.up_proj.weight", {gguf_inner, w}},
                                 {"mlp.down_proj.weight", {w, gguf_inner}}}) {
      tensors.push_back({prefix + each.name, each.shape});
    }
  }
  return tensors;
}

inline nlohmann::json small_llama_config() {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"model_type", "llama"},
          {"vocab_size", gguf_vocabulary},
          {"hidden_size", gguf_width},
          {"intermediate_size", gguf_inner},
          {"num_hidden_layers", gguf_layers},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"max_position_embeddings", 128},
          {"rms_norm_eps", 1e-5},
          {"rope_theta", 10000.0},
          {"tie_word_embeddings", false},
          {"hidden_act", "silu"}};
}

inline std::vector<NamedShape> small_gpt2_tensors(std::int64_t w = gguf_width) {
  std::vector<NamedShape> tensors{{"transformer.wte.weight", {gguf_vocabulary, w}},
                                  {"transformer.wpe.weight", {16, w}},
                                  {"transformer.ln_f.weight", {w}},
                                  {"transformer.ln_f.bias", {w}}};
  for (const NamedShape& each : std::vector<NamedShape>{{"ln_1.weight", {w}},
                                                        {"ln_1.bias", {w}},
                                                        {"attn.c_attn.weight", {w, 3 * w}},
                                                        {"attn.c_attn.bias", {3 * w}},
                                                        {"attn.c_proj.weight", {w, w}},
                                                        {"attn.c_proj.bias", {w}},
                                                        {"ln_2.weight", {w}},
                                                        {"ln_2.bias", {w}},
                                                        {"mlp.c_fc.weight", {w, 4 * w}},
                                                        {"mlp.c_fc.bias", {4 * w}},
                                                        {"mlp.c_proj.weight", {4 * w, w}},
                                                        {"mlp.c_proj.bias", {w}}}) {
    tensors.push_back({"transformer.h.0." + each.name, each.shape});
  }
  return tensors;
}

inline nlohmann::json small_gpt2_config(std::int64_t width = gguf_width) {
  return {{"architectures", {"GPT2LMHeadModel"}},
          {"model_type", "gpt2"},
          {"vocab_size", gguf_vocabulary},
          {"n_positions", 16},
          {"n_embd", width},
          {"n_layer", 1},
          {"n_head", 4},
          {"layer_norm_epsilon", 1e-5}};
}

// Writes a Hugging Face folder with seeded values in fp32.
inline void write_small_model(const fs::path& folder, const std::vector<NamedShape>& tensors,
                              const nlohmann::json& config) {
  fs::create_directories(folder);
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::vector<std::vector<float>> values;
  for (const NamedShape& tensor : tensors) {
    values.emplace_back(static_cast<std::size_t>(elements_of(tensor.shape)));
    for (float& value : values.back()) value = normal(random);
  }
  std::vector<TensorToWrite> written;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    written.push_back({{tensors[i].name, DType::float32, tensors[i].shape}, values[i].data()});
  }
  write_safetensors(folder / "model.safetensors", written);
  write_all(folder / "config.json", config.dump());
}

// The elements of a tensor of a safetensors file, of which all are fp32.
inline std::vector<float> floats_of(const fs::path& path, const std::string& name) {
  const SafetensorsFile file(path);
  const TensorEntry* const entry = file.find(name);
  if (entry == nullptr || entry->stored->name != "F32") {
    ADD_FAILURE() << name << " is not there in fp32";
    return {};
  }
  std::vector<float> values((entry->end - entry->begin) / sizeof(float));
  file.read(*entry, 0, values.data(), values.size() * sizeof(float));
  return values;
}

// A GGUF file that is built field by field.
class GgufBytes {
 public:
  template <class T>
  GgufBytes& number(T value) {
    char raw[sizeof value];
    std::memcpy(raw, &value, sizeof value);
    bytes_.append(raw, sizeof value);
    return *this;
  }
  GgufBytes& text(const std::string& text) {
    number<std::uint64_t>(text.size());
    bytes_ += text;
    return *this;
  }
  GgufBytes& header(std::uint64_t tensors, std::uint64_t keys, std::uint32_t version = 3) {
    bytes_ += "GGUF";
    return number(version).number(tensors).number(keys);
  }
  GgufBytes& text_pair(const std::string& key, const std::string& value) {
    return text(key).number<std::uint32_t>(8).text(value);
  }
  GgufBytes& number_pair(const std::string& key, std::uint32_t value) {
    return text(key).number<std::uint32_t>(4).number(value);
  }
  // Sizes as in the file: that of a row first.
  GgufBytes& tensor(const std::string& name, const std::vector<std::uint64_t>& sizes,
                    std::uint32_t type, std::uint64_t place) {
    text(name).number(static_cast<std::uint32_t>(sizes.size()));
    for (const std::uint64_t size : sizes) number(size);
    return number(type).number(place);
  }
  GgufBytes& data(std::size_t bytes) {
    bytes_.resize((bytes_.size() + 31) / 32 * 32 + bytes);
    return *this;
  }
  [[nodiscard]] const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

}  // namespace tessera::checkpoint::testing
