// Shapes by llama.cpp's names of tensors, from the sizes in config.json.
#include "checkpoint/formats/gguf/gguf_shapes.h"

#include <fmt/format.h>
#include <map>
#include <set>
#include <string>

#include "base/error.h"
#include "checkpoint/safetensors/safetensors.h"

namespace tessera::checkpoint::formats {

namespace {

using Shape = std::vector<std::int64_t>;

std::int64_t size_in(const nlohmann::json& config, const char* key) {
  const auto found = config.find(key);
  TESSERA_CHECK(found != config.end() && found->is_number_integer(), ErrorCode::checkpoint,
                "config.json has no whole number {}", key);
  return found->get<std::int64_t>();
}

bool is_called(const GgufModel& model, std::string_view architecture) {
  return model.family->architecture == architecture;
}

// Weights by the patterns of the family's table.
std::map<std::string, Shape> gpt2_shapes(const GgufModel& model) {
  const std::int64_t width = size_in(model.config, "n_embd");
  const std::int64_t inner = size_in(model.config, "n_inner");
  return {{"token_embd", {model.vocabulary, width}},
          {"output", {model.vocabulary, width}},
          {"position_embd", {size_in(model.config, "n_positions"), width}},
          {"output_norm", {width}},
          {"blk.{}.attn_norm", {width}},
          {"blk.{}.attn_qkv", {3 * width, width}},
          {"blk.{}.attn_output", {width, width}},
          {"blk.{}.ffn_norm", {width}},
          {"blk.{}.ffn_up", {inner, width}},
          {"blk.{}.ffn_down", {width, inner}}};
}

std::map<std::string, Shape> decoder_shapes(const GgufModel& model) {
  const std::int64_t width = size_in(model.config, "hidden_size");
  const std::int64_t inner = size_in(model.config, "intermediate_size");
  const std::int64_t head = size_in(model.config, "head_dim");
  const std::int64_t queries = model.heads.query * head;
  const std::int64_t keys = model.heads.key * head;
  const bool each_head = is_called(model, "qwen3");  // its norms are of one head
  return {{"token_embd", {model.vocabulary, width}},
          {"output", {model.vocabulary, width}},
          {"output_norm", {width}},
          {"blk.{}.attn_norm", {width}},
          {"blk.{}.ffn_norm", {width}},
          {"blk.{}.post_attention_norm", {width}},
          {"blk.{}.post_ffw_norm", {width}},
          {"blk.{}.attn_q", {queries, width}},
          {"blk.{}.attn_k", {keys, width}},
          {"blk.{}.attn_v", {keys, width}},
          {"blk.{}.attn_qkv", {queries + 2 * keys, width}},
          {"blk.{}.attn_q_norm", {each_head ? head : queries}},
          {"blk.{}.attn_k_norm", {each_head ? head : keys}},
          {"blk.{}.attn_output", {width, queries}},
          {"blk.{}.ffn_gate", {inner, width}},
          {"blk.{}.ffn_up", {is_called(model, "phi3") ? 2 * inner : inner, width}},
          {"blk.{}.ffn_down", {width, inner}}};
}

// The patterns of modules that have a bias, as config.json or the family says.
std::set<std::string> biased_modules(const GgufModel& model) {
  if (!model.family->rotary) {
    return {"output_norm",     "blk.{}.attn_norm", "blk.{}.attn_qkv", "blk.{}.attn_output",
            "blk.{}.ffn_norm", "blk.{}.ffn_up",    "blk.{}.ffn_down"};
  }
  if (is_called(model, "qwen2")) return {"blk.{}.attn_q", "blk.{}.attn_k", "blk.{}.attn_v"};
  std::set<std::string> biased;
  if (model.config.value("model_type", nlohmann::json()) != "llama") return biased;
  if (model.config.value("attention_bias", nlohmann::json()) == true) {
    biased = {"blk.{}.attn_q", "blk.{}.attn_k", "blk.{}.attn_v", "blk.{}.attn_output"};
  }
  if (model.config.value("mlp_bias", nlohmann::json()) == true) {
    biased.insert({"blk.{}.ffn_gate", "blk.{}.ffn_up", "blk.{}.ffn_down"});
  }
  return biased;
}

// transformers does not load such a bias, and llama.cpp computes with it or refuses the file.
[[noreturn]] void refuse_bias(const GgufModel& model, const std::string& name) {
  const auto own = hugging_face_name(*model.family, name);
  std::string type = "?";
  if (const auto given = model.config.find("model_type"); given != model.config.end()) {
    type = given->get<std::string>();
  }
  const bool of_attention = name.find(".attn_") != std::string::npos;
  const bool of_mlp = name.find(".ffn_") != std::string::npos;
  const bool has_key =
      type == "llama" && (of_attention || of_mlp) && name.find("norm") == std::string::npos;
  fail(ErrorCode::checkpoint,
       "the checkpoint has '{}', and config.json describes a {} model without it{}: transformers "
       "leaves it out, and llama.cpp does not; {}",
       own ? own->name : name, type,
       has_key ? (of_mlp ? " (mlp_bias is not true)" : " (attention_bias is not true)") : "",
       has_key ? "set the key to true if the model was trained with it, or remove the tensor"
               : "remove the tensor if the model was trained without it");
}

std::string in_layer(std::string pattern, std::int64_t layer) {
  const std::size_t hole = pattern.find("{}");
  if (hole != std::string::npos) pattern.replace(hole, 2, std::to_string(layer));
  return pattern;
}

}  // namespace

void check_gguf_tensors(const GgufModel& model, const std::vector<GgufTensor>& tensors) {
  const auto shapes = model.family->rotary ? decoder_shapes(model) : gpt2_shapes(model);
  const std::set<std::string> biased = biased_modules(model);
  const std::int64_t layers =
      size_in(model.config, model.family->rotary ? "num_hidden_layers" : "n_layer");
  std::map<std::string, const GgufTensor*> present;
  for (const GgufTensor& tensor : tensors) present.emplace(tensor.name, &tensor);
  // Removes what it finds.
  const auto check = [&](const std::string& name, const Shape& wanted, bool needed) {
    const auto found = present.find(name);
    TESSERA_CHECK(found != present.end() || !needed, ErrorCode::checkpoint,
                  "the checkpoint has no tensor for {} of a model of {} layers; GGUF files hold "
                  "whole models",
                  name, layers);
    if (found == present.end()) return;
    const Shape& shape = found->second->shape;
    const auto own = hugging_face_name(*model.family, name);
    TESSERA_CHECK(shape == wanted, ErrorCode::checkpoint,
                  "{} has the shape {}, and config.json requires {}",
                  name == "token_embd.weight" ? std::string("the token table")
                                              : fmt::format("'{}'", own ? own->name : name),
                  describe_shape(shape), describe_shape(wanted));
    present.erase(found);
  };
  const bool tied = model.config.value("tie_word_embeddings", nlohmann::json()) != false;
  for (const GgufModule& module : model.family->modules) {
    const std::string pattern = module.gguf;
    const Shape& shape = shapes.at(pattern);
    const bool of_layers = pattern.find("{}") != std::string::npos;
    for (std::int64_t layer = 0; layer < (of_layers ? layers : 1); ++layer) {
      const std::string name = in_layer(pattern, layer);
      check(name + ".weight", shape, pattern != "output" || !tied);  // llama.cpp ties it itself
      if (!biased.contains(pattern) && present.contains(name + ".bias")) {
        refuse_bias(model, name + ".bias");
      }
      check(name + ".bias", {shape.front()}, biased.contains(pattern));
    }
  }
  present.erase(gguf_rope_tensor);
  if (present.empty()) return;
  const auto own = hugging_face_name(*model.family, present.begin()->first);
  fail(ErrorCode::checkpoint, "'{}' is not of a model of {} layers, which config.json describes",
       own ? own->name : present.begin()->first, layers);
}

}  // namespace tessera::checkpoint::formats
