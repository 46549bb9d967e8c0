// Keys of config.json that GGUF has no place for: noted, or kept under a key of this program.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "checkpoint/formats/gguf/gguf_config.h"
#include "checkpoint/io/json.h"

namespace tessera::checkpoint::formats {

namespace {

using nlohmann::json;

constexpr const char* dropout_key = "tessera.dropout";
constexpr std::array<const char*, 3> gpt2_dropouts{"attn_pdrop", "embd_pdrop", "resid_pdrop"};
constexpr std::array<const char*, 3> decoder_dropouts{"attention_dropout", "embd_pdrop",
                                                      "resid_pdrop"};
constexpr double gpt2_dropout = 0.1;  // of transformers, where config.json has no key

const std::array<const char*, 3>& dropouts_of(const GgufFamily& family) {
  return family.rotary ? decoder_dropouts : gpt2_dropouts;
}

bool is_dropout(const json& value) {
  return value.is_number() && value.get<double>() >= 0 && value.get<double>() < 1;
}

// Keys that models of other classes scale, cap or cut their values by, as logit_scale (Cohere),
// attention_multiplier (Granite), final_logit_softcapping (Gemma 2), clip_qkv (OLMo).
bool changes_values(std::string_view key) {
  for (const std::string_view handled :
       {"rope_scaling", "scale_attn_weights", "scale_attn_by_inverse_layer_idx"}) {
    if (key == handled) return false;
  }
  for (const std::string_view of_training : {"init", "loss", "summary_", "router_"}) {
    if (key.starts_with(of_training)) return false;
  }
  for (const std::string_view exact :
       {"alibi", "use_alibi", "parallel_attn", "use_parallel_residual", "parallel_residual",
        "qk_norm", "use_qk_norm", "qk_layernorm", "use_bidirectional_attention", "rope_interleave",
        "rope_interleaved", "attention_chunk_size", "num_experts", "num_local_experts",
        "n_routed_experts"}) {
    if (key == exact) return true;
  }
  for (const std::string_view part :
       {"scale", "scaling", "scalar", "multiplier", "softcap", "clip"}) {
    if (key.find(part) != std::string_view::npos) return true;
  }
  return false;
}

// Values that change nothing under such a key.
bool is_neutral(const json& value) {
  if (value.is_number()) {
    const auto number = value.get<double>();
    return number == 0 || number == 1;
  }
  return value.is_null() || value == false || (value.is_structured() && value.empty());
}

void note_window(const json& config, GgufModel& model) {
  const json window = config.value("sliding_window", json());
  const json positions = config.value("max_position_embeddings", json());
  if (!window.is_number_integer() || config.value("use_sliding_window", json()) == false ||
      window >= positions) {
    return;
  }
  model.notes.push_back(
      fmt::format("llama.cpp attends to all positions: texts longer than sliding_window = {} give "
                  "other results there",
                  window.dump()));
}

}  // namespace

void note_config_keys(const json& config, GgufModel& model) {
  if (model.family->rotary) note_window(config, model);
  std::vector<std::string> keys;
  for (const auto& [key, value] : config.items()) {
    if (!changes_values(key) || is_neutral(value)) continue;
    keys.push_back(fmt::format("{} = {}", key, value.dump(-1, ' ', true)));
  }
  if (keys.empty()) return;
  model.notes.push_back(
      fmt::format("config.json has {}: llama.cpp's {} does not compute with {}, nor does "
                  "transformers' {}; if the model was trained with code of its own that does, its "
                  "results are others",
                  fmt::join(keys, ", "), model.family->architecture,
                  keys.size() == 1 ? "it" : "them", model.family->model_class));
}

void write_gguf_sampling(const json& generation, GgufMetadata& metadata) {
  if (!generation.is_object() || generation.value("do_sample", json()) != true) return;
  constexpr std::pair<const char*, const char*> keys[] = {{"temperature", "temp"},
                                                          {"top_p", "top_p"},
                                                          {"min_p", "min_p"},
                                                          {"repetition_penalty", "penalty_repeat"}};
  for (const auto& [own, key] : keys) {
    const json value = generation.value(own, json());
    constexpr double most = 1000;
    if (!value.is_number() || !(value.get<double>() > 0) || value.get<double>() > most) continue;
    metadata.real(fmt::format("general.sampling.{}", key), value.get<float>());
  }
  const json top_k = generation.value("top_k", json());
  constexpr std::int64_t most_tokens = std::int64_t{1} << 31;
  if (top_k.is_number_integer() && top_k > 0 && top_k < most_tokens) {
    metadata.number("general.sampling.top_k", top_k.get<std::uint32_t>());
  }
}

void keep_dropout(const json& config, const GgufFamily& family, GgufMetadata& metadata) {
  json kept = json::object();
  bool any = false;
  for (const char* key : dropouts_of(family)) {
    json value = config.value(key, json());
    if (value.is_null() && !family.rotary) value = gpt2_dropout;
    if (!is_dropout(value)) continue;
    any = any || value != 0;
    kept[key] = value;
  }
  if (any) metadata.text(dropout_key, kept.dump());
}

void restore_dropout(const GgufHeader& header, const GgufFamily& family, const std::string& file,
                     json& config) {
  json kept = json::object();
  const auto stored = header.metadata.find(dropout_key);
  if (stored != header.metadata.end() && stored->second.is_string()) {
    kept =
        parse_json(stored->second.get<std::string>(), fmt::format("'{}': {}", file, dropout_key));
    TESSERA_CHECK(kept.is_object(), ErrorCode::checkpoint, "'{}': {} is not a JSON object", file,
                  dropout_key);
  }
  for (const char* key : dropouts_of(family)) {
    const json value = kept.value(key, json());
    if (is_dropout(value)) {
      config[key] = value;
    } else if (!family.rotary) {
      config[key] = 0.0;
    }
  }
}

}  // namespace tessera::checkpoint::formats
