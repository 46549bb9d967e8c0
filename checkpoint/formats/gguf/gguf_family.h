// The models that GGUF files hold here: names of tensors and of settings, in Hugging Face's
// spelling and in llama.cpp's.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/formats/gguf/gguf_header.h"

namespace tessera::checkpoint::formats {

// How llama.cpp's matrix lies to Hugging Face's.
enum class GgufOrder : std::uint8_t {
  same,
  // Rows of each query head, or key head: row i and row i + n / 2 of a head of n rows, which rotary
  // positions turn as a pair, are neighbours in GGUF.
  query_heads,
  key_heads,
  transposed  // [in, out] becomes [out, in]
};

// "{}" is the number of the layer; a parameter's name adds ".weight" or ".bias".
struct GgufModule {
  const char* hugging_face;
  const char* gguf;
  GgufOrder order = GgufOrder::same;  // of its weight; for heads of its bias, too
  bool always_float = false;          // stays float32 whatever --type is
};

struct GgufSetting {
  const char* hugging_face;  // key of config.json
  const char* gguf;          // after "<architecture>."
  bool real = false;
};

struct GgufFamily {
  const char* architecture;              // general.architecture
  std::vector<const char*> model_types;  // of config.json; the first is that of what is read
  const char* model_class;
  const char* prefix;  // of Hugging Face's names
  std::vector<GgufModule> modules;
  std::vector<GgufSetting> settings;
  bool rotary;  // settings of rope
  bool biases;  // llama.cpp reads biases of projections, if there are any
};

// A parameter in both spellings.
struct GgufName {
  std::string name;
  const GgufModule* module = nullptr;
  bool is_weight = false;
};

// Error(checkpoint) that lists the families, for others.
const GgufFamily& gguf_family_of_config(const nlohmann::json& config);
const GgufFamily& gguf_family_of_architecture(const std::string& architecture,
                                              const std::string& file);
// llama.cpp's name for a name of Hugging Face's, and the other way round.
std::optional<GgufName> gguf_name(const GgufFamily& family, std::string_view hugging_face);
std::optional<GgufName> hugging_face_name(const GgufFamily& family, std::string_view gguf);

}  // namespace tessera::checkpoint::formats
