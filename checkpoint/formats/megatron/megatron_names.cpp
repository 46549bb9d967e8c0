// Names and cuts. Rows of a tensor, and transposed ones, are views of its pieces: nothing is
// copied.
#include "checkpoint/formats/megatron/megatron_names.h"

#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <charconv>
#include <set>
#include <utility>

#include "base/error.h"
#include "checkpoint/safetensors/safetensors.h"

namespace tessera::checkpoint::formats {

namespace {

enum class RowCut : std::uint8_t {
  whole,
  transposed,   // [out, in] becomes GPT-2's [in, out]
  vocabulary,   // the rows of tokens
  attention,    // rows of queries, keys and values, group by group, into three
  joined,       // the same into one with all queries, keys and values in turn, transposed
  gate_and_up,  // halves
};

// A parameter, without "decoder.layers.N.". `{}` is the number of the layer; the names of what it
// becomes are separated by spaces.
struct MegatronRule {
  std::string_view megatron;
  const char* hugging_face;
  RowCut cut = RowCut::whole;
};

constexpr std::string_view layers_prefix = "decoder.layers.";
constexpr std::string_view token_table = "embedding.word_embeddings.weight";
constexpr std::string_view head_table = "output_layer.weight";

constexpr std::array llama_rules{
    MegatronRule{token_table, "model.embed_tokens.weight", RowCut::vocabulary},
    MegatronRule{"decoder.final_layernorm.weight", "model.norm.weight"},
    MegatronRule{"decoder.final_norm.weight", "model.norm.weight"},
    MegatronRule{head_table, "lm_head.weight", RowCut::vocabulary},
};
constexpr std::array llama_layer_rules{
    MegatronRule{"self_attention.linear_qkv.layer_norm_weight", "input_layernorm.weight"},
    MegatronRule{"input_layernorm.weight", "input_layernorm.weight"},
    MegatronRule{"self_attention.linear_qkv.weight",
                 "self_attn.q_proj.weight self_attn.k_proj.weight self_attn.v_proj.weight",
                 RowCut::attention},
    MegatronRule{"self_attention.linear_qkv.bias",
                 "self_attn.q_proj.bias self_attn.k_proj.bias self_attn.v_proj.bias",
                 RowCut::attention},
    MegatronRule{"self_attention.q_layernorm.weight", "self_attn.q_norm.weight"},
    MegatronRule{"self_attention.k_layernorm.weight", "self_attn.k_norm.weight"},
    MegatronRule{"self_attention.linear_proj.weight", "self_attn.o_proj.weight"},
    MegatronRule{"self_attention.linear_proj.bias", "self_attn.o_proj.bias"},
    MegatronRule{"mlp.linear_fc1.layer_norm_weight", "post_attention_layernorm.weight"},
    MegatronRule{"pre_mlp_layernorm.weight", "post_attention_layernorm.weight"},
    MegatronRule{"mlp.linear_fc1.weight", "mlp.gate_proj.weight mlp.up_proj.weight",
                 RowCut::gate_and_up},
    MegatronRule{"mlp.linear_fc1.bias", "mlp.gate_proj.bias mlp.up_proj.bias", RowCut::gate_and_up},
    // Saved with singleton_local_shards.
    MegatronRule{"mlp.linear_fc1.weight_w", "mlp.gate_proj.weight"},
    MegatronRule{"mlp.linear_fc1.weight_v", "mlp.up_proj.weight"},
    MegatronRule{"mlp.linear_fc1.bias_w", "mlp.gate_proj.bias"},
    MegatronRule{"mlp.linear_fc1.bias_v", "mlp.up_proj.bias"},
    MegatronRule{"mlp.linear_fc2.weight", "mlp.down_proj.weight"},
    MegatronRule{"mlp.linear_fc2.bias", "mlp.down_proj.bias"},
};
constexpr std::array gpt2_rules{
    MegatronRule{token_table, "transformer.wte.weight", RowCut::vocabulary},
    MegatronRule{"embedding.position_embeddings.weight", "transformer.wpe.weight"},
    MegatronRule{"decoder.final_layernorm.weight", "transformer.ln_f.weight"},
    MegatronRule{"decoder.final_layernorm.bias", "transformer.ln_f.bias"},
    MegatronRule{head_table, "lm_head.weight", RowCut::vocabulary},
};
constexpr std::array gpt2_layer_rules{
    MegatronRule{"self_attention.linear_qkv.layer_norm_weight", "ln_1.weight"},
    MegatronRule{"self_attention.linear_qkv.layer_norm_bias", "ln_1.bias"},
    MegatronRule{"input_layernorm.weight", "ln_1.weight"},
    MegatronRule{"input_layernorm.bias", "ln_1.bias"},
    MegatronRule{"self_attention.linear_qkv.weight", "attn.c_attn.weight", RowCut::joined},
    MegatronRule{"self_attention.linear_qkv.bias", "attn.c_attn.bias", RowCut::joined},
    MegatronRule{"self_attention.linear_proj.weight", "attn.c_proj.weight", RowCut::transposed},
    MegatronRule{"self_attention.linear_proj.bias", "attn.c_proj.bias"},
    MegatronRule{"mlp.linear_fc1.layer_norm_weight", "ln_2.weight"},
    MegatronRule{"mlp.linear_fc1.layer_norm_bias", "ln_2.bias"},
    MegatronRule{"pre_mlp_layernorm.weight", "ln_2.weight"},
    MegatronRule{"pre_mlp_layernorm.bias", "ln_2.bias"},
    MegatronRule{"mlp.linear_fc1.weight", "mlp.c_fc.weight", RowCut::transposed},
    MegatronRule{"mlp.linear_fc1.bias", "mlp.c_fc.bias"},
    MegatronRule{"mlp.linear_fc2.weight", "mlp.c_proj.weight", RowCut::transposed},
    MegatronRule{"mlp.linear_fc2.bias", "mlp.c_proj.bias"},
};

template <class Rules>
const MegatronRule* find_rule(const Rules& rules, std::string_view name) {
  const auto found = std::find_if(rules.begin(), rules.end(),
                                  [&](const MegatronRule& rule) { return rule.megatron == name; });
  return found == rules.end() ? nullptr : &*found;
}

std::vector<std::string> names_of_rule(const MegatronModel& model, const MegatronRule& rule,
                                       std::optional<std::int64_t> layer) {
  std::string prefix;
  if (layer) {
    prefix = fmt::format("{}{}.", model.is_gpt2 ? "transformer.h." : "model.layers.", *layer);
  }
  std::vector<std::string> names;
  std::string_view rest = rule.hugging_face;
  while (!rest.empty()) {
    const std::size_t end = std::min(rest.find(' '), rest.size());
    names.push_back(prefix + std::string(rest.substr(0, end)));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return names;
}

// True if a model with this configuration has the parameters of the rule: biases and norms of heads
// are only in some of Llama's build.
bool is_in_model(const MegatronModel& model, const MegatronRule& rule) {
  const std::string_view name = rule.megatron;
  if (name == head_table) return !model.tied;
  if (model.is_gpt2) return true;
  const std::string type = model.config.value("model_type", "");
  if (name.find("k_layernorm") != name.npos || name.find("q_layernorm") != name.npos) {
    return type == "qwen3";
  }
  if (!name.ends_with("bias")) return true;
  if (name.starts_with("mlp.")) return model.config.value("mlp_bias", false);
  const bool inputs_alone = type == "qwen2";
  if (inputs_alone) return name == "self_attention.linear_qkv.bias";
  return model.config.value("attention_bias", false);
}

template <class Rules>
std::vector<std::string> names_of_rules(const MegatronModel& model, const Rules& rules,
                                        std::optional<std::int64_t> layer) {
  std::set<std::string> names;  // several spellings of Megatron's may become one
  for (const MegatronRule& rule : rules) {
    if (rule.megatron.ends_with("_w") || rule.megatron.ends_with("_v")) continue;
    if (!is_in_model(model, rule)) continue;
    for (std::string& name : names_of_rule(model, rule, layer)) names.insert(std::move(name));
  }
  return {names.begin(), names.end()};
}

// `count` rows from row `from` become those from row `to` on.
struct RowRange {
  std::int64_t from = 0, to = 0, count = 0;
};

// The rows of some ranges, which are sorted by `from` and disjoint, as a tensor. With `layer`, the
// first dimension is that of the layers, and the result is of one.
PiecedTensor take_rows(const PiecedTensor& whole, std::optional<std::int64_t> layer,
                       const std::vector<RowRange>& ranges, bool transposed) {
  PiecedTensor out{whole.stored, whole.shape, {}};
  if (layer) out.shape.erase(out.shape.begin());
  out.shape[0] = 0;
  for (const RowRange& range : ranges) out.shape[0] += range.count;
  for (Piece piece : whole.pieces) {
    if (layer) {
      const std::int64_t inside = *layer - piece.box.offsets[0];
      if (inside < 0 || inside >= piece.box.sizes[0]) continue;
      piece.first += inside * piece.strides[0];
      piece.box.offsets.erase(piece.box.offsets.begin());
      piece.box.sizes.erase(piece.box.sizes.begin());
      piece.strides.erase(piece.strides.begin());
    }
    const std::int64_t begin = piece.box.offsets[0];
    const std::int64_t end = begin + piece.box.sizes[0];
    auto range = std::partition_point(ranges.begin(), ranges.end(),
                                      [&](const RowRange& r) { return r.from + r.count <= begin; });
    for (; range != ranges.end() && range->from < end; ++range) {
      const std::int64_t first = std::max(begin, range->from);
      const std::int64_t last = std::min(end, range->from + range->count);
      Piece part = piece;
      part.first += (first - begin) * part.strides[0];
      part.box.offsets[0] = first - range->from + range->to;
      part.box.sizes[0] = last - first;
      if (transposed) {
        std::swap(part.box.offsets[0], part.box.offsets[1]);
        std::swap(part.box.sizes[0], part.box.sizes[1]);
        std::swap(part.strides[0], part.strides[1]);
      }
      out.pieces.push_back(std::move(part));
    }
  }
  if (transposed) std::swap(out.shape[0], out.shape[1]);
  return out;
}

class TensorSplitter {
 public:
  TensorSplitter(const MegatronModel& model, const MegatronRule& rule, const PiecedTensor& whole,
                 const std::string& what)
      : model_(model), rule_(rule), whole_(whole), what_(what) {}

  // `stacked`: the first dimension of the tensor is that of the layers.
  void split(std::optional<std::int64_t> layer, bool stacked, std::vector<MegatronPart>& out) {
    const std::size_t dimensions = whole_.shape.size() - (stacked ? 1 : 0);
    check(dimensions == 1 || dimensions == 2, "has another number of dimensions than one or two");
    const std::int64_t rows = whole_.shape[stacked ? 1 : 0];
    const bool turns =
        dimensions == 2 && (rule_.cut == RowCut::transposed || rule_.cut == RowCut::joined);
    std::vector<std::string> names = names_of_rule(model_, rule_, layer);
    std::vector<std::vector<RowRange>> ranges = ranges_of(rows);
    for (std::size_t i = 0; i < names.size(); ++i) {
      out.push_back({std::move(names[i]),
                     take_rows(whole_, stacked ? layer : std::nullopt, ranges[i], turns)});
    }
  }

 private:
  void check(bool condition, std::string_view problem) const {
    TESSERA_CHECK(condition, ErrorCode::checkpoint, "{} of {} {}", what_,
                  describe_shape(whole_.shape), problem);
  }

  // For each name.
  [[nodiscard]] std::vector<std::vector<RowRange>> ranges_of(std::int64_t rows) const {
    switch (rule_.cut) {
      case RowCut::whole:
      case RowCut::transposed:
        return {{{0, 0, rows}}};
      case RowCut::vocabulary: {
        const std::int64_t kept = model_.vocabulary > 0 ? model_.vocabulary : rows;
        check(kept <= rows, fmt::format("has fewer rows than the vocabulary of {}", kept));
        return {{{0, 0, kept}}};
      }
      case RowCut::gate_and_up:
        check(rows % 2 == 0, "has an odd number of rows, not those of gate and up");
        return {{{0, 0, rows / 2}}, {{rows / 2, 0, rows / 2}}};
      case RowCut::attention:
      case RowCut::joined:
        break;
    }
    return attention_ranges(rows);
  }

  // A group has the rows of its query heads, of its key head and of its value head.
  [[nodiscard]] std::vector<std::vector<RowRange>> attention_ranges(std::int64_t rows) const {
    const std::int64_t size = model_.head_size;
    const std::int64_t queries = model_.heads / model_.key_heads * size;
    const std::int64_t wanted = (model_.heads + 2 * model_.key_heads) * size;
    check(rows == wanted, fmt::format("has not the {} rows of {} query heads, {} key heads and as "
                                      "many value heads of {}",
                                      wanted, model_.heads, model_.key_heads, size));
    std::vector<std::vector<RowRange>> ranges(3);
    for (std::int64_t group = 0; group < model_.key_heads; ++group) {
      const std::int64_t at = group * (queries + 2 * size);
      ranges[0].push_back({at, group * queries, queries});
      ranges[1].push_back({at + queries, group * size, size});
      ranges[2].push_back({at + queries + size, group * size, size});
    }
    if (rule_.cut == RowCut::attention) return ranges;
    std::vector<RowRange> all = ranges[0];
    for (RowRange range : ranges[1]) {
      range.to += model_.heads * size;
      all.push_back(range);
    }
    for (RowRange range : ranges[2]) {
      range.to += (model_.heads + model_.key_heads) * size;
      all.push_back(range);
    }
    std::sort(all.begin(), all.end(),
              [](const RowRange& a, const RowRange& b) { return a.from < b.from; });
    return {all};
  }

  const MegatronModel& model_;
  const MegatronRule& rule_;
  const PiecedTensor& whole_;
  const std::string& what_;
};

}  // namespace

std::vector<std::string> names_of_model(const MegatronModel& model) {
  return model.is_gpt2 ? names_of_rules(model, gpt2_rules, std::nullopt)
                       : names_of_rules(model, llama_rules, std::nullopt);
}

std::vector<std::string> names_of_layer(const MegatronModel& model, std::int64_t layer) {
  return model.is_gpt2 ? names_of_rules(model, gpt2_layer_rules, layer)
                       : names_of_rules(model, llama_layer_rules, layer);
}

bool has_vocabulary_rows(std::string_view name) {
  return name == token_table || name == head_table;
}

std::optional<std::vector<MegatronPart>> split_megatron_tensor(const MegatronModel& model,
                                                               std::string_view name,
                                                               const PiecedTensor& whole,
                                                               const std::string& what) {
  std::vector<MegatronPart> out;
  if (!name.starts_with(layers_prefix)) {
    const MegatronRule* const rule =
        model.is_gpt2 ? find_rule(gpt2_rules, name) : find_rule(llama_rules, name);
    if (rule == nullptr) return std::nullopt;
    TESSERA_CHECK(!whole.shape.empty(), ErrorCode::checkpoint, "{} is one number", what);
    TensorSplitter(model, *rule, whole, what).split(std::nullopt, false, out);
    return out;
  }
  name.remove_prefix(layers_prefix.size());
  std::int64_t layer = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), layer);
  const bool numbered = error == std::errc{};
  if (numbered) name.remove_prefix(static_cast<std::size_t>(end - name.data()));
  if (numbered && name.starts_with('.')) name.remove_prefix(1);
  const MegatronRule* const rule =
      model.is_gpt2 ? find_rule(gpt2_layer_rules, name) : find_rule(llama_layer_rules, name);
  if (rule == nullptr) return std::nullopt;
  TESSERA_CHECK(!whole.shape.empty(), ErrorCode::checkpoint, "{} is one number", what);
  TensorSplitter splitter(model, *rule, whole, what);
  if (numbered) {
    TESSERA_CHECK(layer >= 0 && layer < model.layers, ErrorCode::checkpoint,
                  "{} is of layer {}, and the model has {}", what, layer, model.layers);
    splitter.split(layer, false, out);
    return out;
  }
  TESSERA_CHECK(whole.shape[0] == model.layers, ErrorCode::checkpoint,
                "{} of {} has other layers than the model's {}", what, describe_shape(whole.shape),
                model.layers);
  for (std::int64_t i = 0; i < model.layers; ++i) splitter.split(i, true, out);
  return out;
}

}  // namespace tessera::checkpoint::formats
