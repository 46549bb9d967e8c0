// The table of families.
#include "checkpoint/formats/gguf/gguf_family.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <algorithm>

#include "base/error.h"
#include "base/text/printable.h"

namespace tessera::checkpoint::formats {

namespace {

// The modules of Llama that all models of its build have.
std::vector<GgufModule> decoder_modules(const std::vector<GgufModule>& own) {
  std::vector<GgufModule> modules{{"model.embed_tokens", "token_embd"},
                                  {"model.norm", "output_norm"},
                                  {"lm_head", "output"},
                                  {"model.layers.{}.self_attn.o_proj", "blk.{}.attn_output"},
                                  {"model.layers.{}.mlp.down_proj", "blk.{}.ffn_down"}};
  modules.insert(modules.end(), own.begin(), own.end());
  return modules;
}

// Three projections before the attention. The order of query and key rows depends on how llama.cpp
// turns pairs: neighbours for "llama" and "smollm3", halves of a head for the others.
std::vector<GgufModule> attention_modules(bool permuted) {
  using enum GgufOrder;
  return {{"model.layers.{}.self_attn.q_proj", "blk.{}.attn_q", permuted ? query_heads : same},
          {"model.layers.{}.self_attn.k_proj", "blk.{}.attn_k", permuted ? key_heads : same},
          {"model.layers.{}.self_attn.v_proj", "blk.{}.attn_v"},
          {"model.layers.{}.mlp.gate_proj", "blk.{}.ffn_gate"},
          {"model.layers.{}.mlp.up_proj", "blk.{}.ffn_up"}};
}

std::vector<GgufModule> norms_before() {
  return {{"model.layers.{}.input_layernorm", "blk.{}.attn_norm"},
          {"model.layers.{}.post_attention_layernorm", "blk.{}.ffn_norm"}};
}

std::vector<GgufModule> norms_after() {
  return {{"model.layers.{}.post_attention_layernorm", "blk.{}.post_attention_norm"},
          {"model.layers.{}.post_feedforward_layernorm", "blk.{}.post_ffw_norm"}};
}

std::vector<GgufModule> norms_of_heads() {
  return {{"model.layers.{}.self_attn.q_norm", "blk.{}.attn_q_norm"},
          {"model.layers.{}.self_attn.k_norm", "blk.{}.attn_k_norm"}};
}

// One projection of queries, keys and values, and one of gate and up.
std::vector<GgufModule> fused_modules() {
  return {{"model.layers.{}.self_attn.qkv_proj", "blk.{}.attn_qkv"},
          {"model.layers.{}.mlp.gate_up_proj", "blk.{}.ffn_up"}};
}

std::vector<GgufModule> joined(std::initializer_list<std::vector<GgufModule>> lists) {
  std::vector<GgufModule> all;
  for (const auto& list : lists) all.insert(all.end(), list.begin(), list.end());
  return decoder_modules(all);
}

std::vector<GgufModule> gpt2_modules() {
  using enum GgufOrder;
  return {{"transformer.wte", "token_embd"},
          {"transformer.wpe", "position_embd", same, true},
          {"transformer.ln_f", "output_norm"},
          {"lm_head", "output"},
          {"transformer.h.{}.ln_1", "blk.{}.attn_norm"},
          {"transformer.h.{}.attn.c_attn", "blk.{}.attn_qkv", transposed},
          {"transformer.h.{}.attn.c_proj", "blk.{}.attn_output", transposed},
          {"transformer.h.{}.ln_2", "blk.{}.ffn_norm"},
          {"transformer.h.{}.mlp.c_fc", "blk.{}.ffn_up", transposed},
          {"transformer.h.{}.mlp.c_proj", "blk.{}.ffn_down", transposed}};
}

std::vector<GgufSetting> decoder_settings() {
  return {{"max_position_embeddings", "context_length"},
          {"hidden_size", "embedding_length"},
          {"num_hidden_layers", "block_count"},
          {"intermediate_size", "feed_forward_length"},
          {"num_attention_heads", "attention.head_count"},
          {"num_key_value_heads", "attention.head_count_kv"},
          {"rms_norm_eps", "attention.layer_norm_rms_epsilon", true}};
}

std::vector<GgufSetting> gpt2_settings() {
  return {{"n_positions", "context_length"},
          {"n_embd", "embedding_length"},
          {"n_layer", "block_count"},
          {"n_inner", "feed_forward_length"},
          {"n_head", "attention.head_count"},
          {"layer_norm_epsilon", "attention.layer_norm_epsilon", true}};
}

// A family of Llama's build.
GgufFamily decoder(const char* architecture, std::vector<const char*> model_types,
                   const char* model_class, std::vector<GgufModule> modules, bool biases = false) {
  return {architecture,       std::move(model_types), model_class, "model.",
          std::move(modules), decoder_settings(),     true,        biases};
}

const std::vector<GgufFamily>& gguf_families() {
  static const std::vector<GgufFamily> families{
      decoder("llama", {"llama", "mistral"}, "LlamaForCausalLM",
              joined({attention_modules(true), norms_before()}), true),
      decoder("qwen2", {"qwen2"}, "Qwen2ForCausalLM",
              joined({attention_modules(false), norms_before()}), true),
      decoder("qwen3", {"qwen3"}, "Qwen3ForCausalLM",
              joined({attention_modules(false), norms_before(), norms_of_heads()})),
      decoder("olmo2", {"olmo2"}, "Olmo2ForCausalLM",
              joined({attention_modules(false), norms_after(), norms_of_heads()})),
      decoder("smollm3", {"smollm3"}, "SmolLM3ForCausalLM",
              joined({attention_modules(true), norms_before()})),
      decoder("phi3", {"phi3"}, "Phi3ForCausalLM", joined({fused_modules(), norms_before()})),
      {"gpt2",
       {"gpt2"},
       "GPT2LMHeadModel",
       "transformer.",
       gpt2_modules(),
       gpt2_settings(),
       false,
       true},
  };
  return families;
}

// `text` in place of `to`, where it matches `from`; both may have one "{}" for a number.
std::optional<std::string> translate(std::string_view text, std::string_view from,
                                     std::string_view to) {
  constexpr std::string_view hole = "{}";
  const std::size_t at = from.find(hole);
  if (at == std::string_view::npos) {
    if (text != from) return std::nullopt;
    return std::string(to);
  }
  const std::string_view before = from.substr(0, at);
  const std::string_view after = from.substr(at + hole.size());
  if (text.size() <= before.size() + after.size() || !text.starts_with(before) ||
      !text.ends_with(after)) {
    return std::nullopt;
  }
  const std::string_view number =
      text.substr(before.size(), text.size() - before.size() - after.size());
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  if (!std::all_of(number.begin(), number.end(), is_digit) ||
      (number.size() > 1 && number[0] == '0')) {
    return std::nullopt;
  }
  std::string result(to);
  return result.replace(to.find(hole), hole.size(), number);
}

std::optional<GgufName> find_name(const GgufFamily& family, std::string_view name,
                                  const char* GgufModule::*from, const char* GgufModule::*to) {
  const std::size_t dot = name.rfind('.');
  if (dot == std::string_view::npos) return std::nullopt;
  const std::string_view ending = name.substr(dot);
  if (ending != ".weight" && ending != ".bias") return std::nullopt;
  for (const GgufModule& module : family.modules) {
    std::optional<std::string> found = translate(name.substr(0, dot), module.*from, module.*to);
    if (found) {
      return GgufName{found->append(ending), &module, ending == ".weight"};
    }
  }
  return std::nullopt;
}

}  // namespace

const GgufFamily& gguf_family_of_config(const nlohmann::json& config) {
  const bool given =
      config.is_object() && config.contains("model_type") && config["model_type"].is_string();
  const std::string type = given ? config["model_type"].get<std::string>() : std::string();
  std::vector<std::string> known;
  for (const GgufFamily& family : gguf_families()) {
    for (const char* model_type : family.model_types) {
      if (type == model_type) return family;
      known.emplace_back(model_type);
    }
  }
  fail(ErrorCode::checkpoint,
       "config.json has model_type '{}'; GGUF files are written for {} (--to hf and llama.cpp's "
       "own converter may help with others)",
       printable(type), fmt::join(known, ", "));
}

const GgufFamily& gguf_family_of_architecture(const std::string& architecture,
                                              const std::string& file) {
  std::vector<std::string> known;
  for (const GgufFamily& family : gguf_families()) {
    if (architecture == family.architecture) return family;
    known.emplace_back(family.architecture);
  }
  fail(ErrorCode::checkpoint, "'{}' holds a model of architecture '{}'; GGUF files are read for {}",
       file, printable(architecture), fmt::join(known, ", "));
}

std::optional<GgufName> gguf_name(const GgufFamily& family, std::string_view hugging_face) {
  return find_name(family, hugging_face, &GgufModule::hugging_face, &GgufModule::gguf);
}

std::optional<GgufName> hugging_face_name(const GgufFamily& family, std::string_view gguf) {
  return find_name(family, gguf, &GgufModule::gguf, &GgufModule::hugging_face);
}

}  // namespace tessera::checkpoint::formats
