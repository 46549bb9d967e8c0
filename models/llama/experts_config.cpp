// Mixtures of experts in config.json.
#include "models/llama/experts_config.h"

#include <nlohmann/json.hpp>
#include <string_view>

#include "models/config/config_table.h"

namespace tessera::models {
namespace {

constexpr const char* count_keys[] = {"num_experts", "num_local_experts"};
constexpr const char* dense_layers_key = "mlp_only_layers";

auto expert_member(auto member) {
  return [member](auto& config) -> auto& {
    return config.experts.*member;
  };
}

// More experts than any model has. Objects of an expert take memory before its tensors do.
Range expert_count() {
  return between(1, 1 << 12);
}

}  // namespace

void add_expert_rows(ConfigTable<LlamaConfig>& table, const char* count_key) {
  using E = ExpertsConfig;
  table.add(count_key, expert_member(&E::num_experts), "Experts in a layer.", expert_count());
  table.add("num_experts_per_tok", expert_member(&E::num_experts_per_tok),
            "Experts that compute for a token.", expert_count());
  table.add("output_router_logits", expert_member(&E::output_router_logits),
            "The loss contains the load-balancing loss, as in transformers.");
  table.add("router_aux_loss_coef", expert_member(&E::router_aux_loss_coef),
            "Weight of the load-balancing loss.", at_least(0));
}

void add_sparse_layer_rows(ConfigTable<LlamaConfig>& table) {
  using E = ExpertsConfig;
  table.add("moe_intermediate_size", expert_member(&E::moe_intermediate_size),
            "Width of an expert; `intermediate_size` is that of layers without experts.",
            width_of());
  table.add("norm_topk_prob", expert_member(&E::norm_topk_prob),
            "The weights of a token's experts are divided by their sum.");
  table.add("decoder_sparse_step", expert_member(&E::decoder_sparse_step),
            "Each layer of this multiple has experts, except those of a folder's list "
            "`mlp_only_layers`.",
            layer_count());
}

void add_clamped_gate_rows(ConfigTable<LlamaConfig>& table) {
  using E = ExpertsConfig;
  table.add("swiglu_alpha", expert_member(&E::swiglu_alpha),
            "Factor of the gate inside its sigmoid.", above(0));
  table.add("swiglu_limit", expert_member(&E::swiglu_limit),
            "The gate has at most this value, and the up projection is between its negative and "
            "it.",
            above(0));
}

nlohmann::json unified_experts(nlohmann::json config, const DecoderFamily& family) {
  if (!config.is_object() || !family.experts) return config;
  const std::string& own = family.experts->count_key;
  for (const char* other : count_keys) {
    if (own == other || !config.contains(other)) continue;
    if (!config.contains(own)) config[own] = config[other];
    if (config[own] == config[other]) config.erase(other);
  }
  return config;
}

void erase_other_spelling(nlohmann::json& config, const DecoderFamily& family) {
  for (const char* key : count_keys) {
    if (family.experts->count_key != key) config.erase(key);
  }
}

void read_experts(const ConfigReader& reader, const nlohmann::json& config, LlamaConfig& c) {
  ExpertsConfig& experts = c.experts;
  reader.check_key(experts.num_experts_per_tok <= experts.num_experts, "num_experts_per_tok",
                   "= {} is more than {} = {}", experts.num_experts_per_tok,
                   c.family->experts->count_key, experts.num_experts);
  if (experts.moe_intermediate_size == 0) experts.moe_intermediate_size = c.intermediate_size;
  if (reader.has(dense_layers_key)) {
    const nlohmann::json& layers = config[dense_layers_key];
    reader.check_key(layers.is_array(), dense_layers_key, "is {}; it must be a list of layers",
                     layers.dump());
    for (const nlohmann::json& layer : layers) {
      reader.check_key(layer.is_number_integer(), dense_layers_key,
                       "has {}; it must have numbers of layers", layer.dump());
      experts.mlp_only_layers.push_back(layer.get<std::int64_t>());
    }
  }
  reader.check_key(!experts.output_router_logits || c.layers_with_experts() > 0,
                   "output_router_logits", "= true, but no layer of the model has experts");
}

void refuse_other_experts(const ConfigReader& reader, const LlamaConfig& c) {
  const DecoderFamily& family = *c.family;
  // The key of OpenAI's own code, which its folders have beside transformers' key.
  if (family.experts && family.experts->stacked) {
    reader.only("experts_per_token", static_cast<double>(c.experts.num_experts_per_tok));
    reader.check_key(c.experts.mlp_only_layers.empty(), dense_layers_key,
                     "is not supported by this model, whose layers all have experts; remove it");
  } else {
    for (const char* key : {"swiglu_alpha", "swiglu_limit"}) {
      reader.check_key(!reader.has(key), key, "is not supported by this model; remove it");
    }
  }
  reader.only("n_routed_experts", 0.0);
  reader.only("router_jitter_noise", 0.0);
  for (const char* key : count_keys) {
    if (!family.experts || family.experts->count_key != key) reader.only(key, 0.0);
  }
}

}  // namespace tessera::models
