// The table of names, and the numbers of a config.json.
#include "checkpoint/narrow/layer_tensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "checkpoint/io/json.h"

namespace tessera::checkpoint {
namespace {

enum class NameFamily : std::uint8_t { llama, gpt2, bert, distilbert };

struct NarrowableRow {
  std::string_view model_type;
  NameFamily family;
  std::string_view no_heads = {};  // why heads cannot be removed; empty: they can
  std::string_view no_ffn = {};
};

constexpr std::string_view experts_stay =
    "its feed-forward layers are experts, whose columns cannot be removed";
constexpr std::string_view heads_stay =
    "its config.json has no head_dim: transformers derives the size of a head from their number, "
    "so they cannot be removed; use --ffn";

constexpr NarrowableRow narrowable_models[] = {
    {"llama", NameFamily::llama},
    {"mistral", NameFamily::llama},
    {"qwen2", NameFamily::llama},
    {"qwen3", NameFamily::llama},
    {"smollm3", NameFamily::llama},
    {"olmo2", NameFamily::llama,
     "its norms of queries and keys are over all heads, so the others' values would change"},
    {"mixtral", NameFamily::llama, {}, experts_stay},
    {"qwen3_moe", NameFamily::llama, {}, experts_stay},
    {"gpt2", NameFamily::gpt2, heads_stay},
    {"bert", NameFamily::bert, heads_stay},
    {"mpnet", NameFamily::bert, heads_stay},
    {"roberta", NameFamily::bert, heads_stay},
    {"xlm-roberta", NameFamily::bert, heads_stay},
    {"camembert", NameFamily::bert, heads_stay},
    {"distilbert", NameFamily::distilbert, heads_stay},
};

// The keys of config.json.
struct SizeKeys {
  const char* layers;
  const char* columns;
};

SizeKeys keys_of(NameFamily family) {
  if (family == NameFamily::gpt2) return {"n_layer", "n_inner"};
  if (family == NameFamily::distilbert) return {"n_layers", "hidden_dim"};
  return {"num_hidden_layers", "intermediate_size"};
}

struct DividedTensorRow {
  NameFamily family;
  std::string_view list;  // the component before the layer's number
  std::string_view rest;  // what follows it
  bool heads;
  int axis;
  bool required = true;
};

constexpr DividedTensorRow divided_tensors[] = {
    {NameFamily::llama, "layers", "self_attn.q_proj.weight", true, 0},
    {NameFamily::llama, "layers", "self_attn.k_proj.weight", true, 0},
    {NameFamily::llama, "layers", "self_attn.v_proj.weight", true, 0},
    {NameFamily::llama, "layers", "self_attn.o_proj.weight", true, 1},
    {NameFamily::llama, "layers", "self_attn.q_proj.bias", true, 0, false},
    {NameFamily::llama, "layers", "self_attn.k_proj.bias", true, 0, false},
    {NameFamily::llama, "layers", "self_attn.v_proj.bias", true, 0, false},
    {NameFamily::llama, "layers", "mlp.gate_proj.weight", false, 0},
    {NameFamily::llama, "layers", "mlp.up_proj.weight", false, 0},
    {NameFamily::llama, "layers", "mlp.down_proj.weight", false, 1},
    {NameFamily::llama, "layers", "mlp.gate_proj.bias", false, 0, false},
    {NameFamily::llama, "layers", "mlp.up_proj.bias", false, 0, false},
    {NameFamily::gpt2, "h", "mlp.c_fc.weight", false, 1},
    {NameFamily::gpt2, "h", "mlp.c_fc.bias", false, 0, false},
    {NameFamily::gpt2, "h", "mlp.c_proj.weight", false, 0},
    {NameFamily::bert, "layer", "intermediate.dense.weight", false, 0},
    {NameFamily::bert, "layer", "intermediate.dense.bias", false, 0, false},
    {NameFamily::bert, "layer", "output.dense.weight", false, 1},
    {NameFamily::distilbert, "layer", "ffn.lin1.weight", false, 0},
    {NameFamily::distilbert, "layer", "ffn.lin1.bias", false, 0, false},
    {NameFamily::distilbert, "layer", "ffn.lin2.weight", false, 1},
};

const NarrowableRow& narrowable_row_of(const nlohmann::json& config) {
  const auto type = config.find("model_type");
  const std::string name =
      type != config.end() && type->is_string() ? type->get<std::string>() : std::string();
  for (const NarrowableRow& row : narrowable_models) {
    if (row.model_type == name) return row;
  }
  std::string known;
  for (const NarrowableRow& row : narrowable_models) {
    known += (known.empty() ? "" : ", ") + std::string(row.model_type);
  }
  fail(ErrorCode::configuration,
       "--heads and --ffn are for models whose config.json has one of these model_types: {}{}",
       known,
       name.empty()
           ? ""
           : "; this one has " + nlohmann::json(name).dump(
                                     -1, ' ', true, nlohmann::json::error_handler_t::replace));
}

nlohmann::json object_of_config(const std::string& text) {
  nlohmann::json config = parse_json(text, "config.json");
  TESSERA_CHECK(config.is_object(), ErrorCode::configuration, "config.json: not a JSON object");
  return config;
}

// A count in config.json, or `fallback` where it is missing or null; 0: it is required.
std::int64_t positive_count_of(const nlohmann::json& config, const char* key,
                               std::int64_t fallback = 0) {
  constexpr std::int64_t most = std::int64_t{1} << 31;
  const auto found = config.find(key);
  if (fallback > 0 && (found == config.end() || found->is_null())) return fallback;
  TESSERA_CHECK(found != config.end() && found->is_number_integer() &&
                    found->get<std::int64_t>() > 0 && found->get<std::int64_t>() < most,
                ErrorCode::configuration, "config.json: {} is not a number above 0", key);
  return found->get<std::int64_t>();
}

void narrow_heads(const NarrowableRow& row, std::int64_t kept, nlohmann::json& config,
                  NarrowPlan& plan) {
  TESSERA_CHECK(row.no_heads.empty(), ErrorCode::configuration, "--heads: {} models: {}",
                row.model_type, row.no_heads);
  const std::int64_t heads = positive_count_of(config, "num_attention_heads");
  const std::int64_t groups = positive_count_of(config, "num_key_value_heads", heads);
  const std::int64_t width = positive_count_of(config, "hidden_size");
  TESSERA_CHECK(heads % groups == 0, ErrorCode::configuration,
                "config.json: num_key_value_heads {} does not divide num_attention_heads {}",
                groups, heads);
  const std::int64_t shared = heads / groups;
  TESSERA_CHECK(kept > 0 && kept < heads, ErrorCode::configuration,
                "--heads {}: the model has {}; keep fewer, and one at least", kept, heads);
  TESSERA_CHECK(kept % shared == 0, ErrorCode::configuration,
                "--heads {}: {} heads share a key and a value head and are removed together; keep "
                "a multiple of {}",
                kept, shared, shared);
  // transformers' LlamaConfig requires it, whatever head_dim is.
  TESSERA_CHECK(row.model_type != "llama" || width % kept == 0, ErrorCode::configuration,
                "--heads {}: transformers opens no llama model whose number of heads does not "
                "divide its hidden_size {}",
                kept, width);
  plan.groups = {groups, kept / shared};
  config["head_dim"] =
      positive_count_of(config, "head_dim", std::max<std::int64_t>(width / heads, 1));
  config["num_attention_heads"] = kept;
  config["num_key_value_heads"] = kept / shared;
}

void narrow_columns(const NarrowableRow& row, std::int64_t kept, nlohmann::json& config,
                    NarrowPlan& plan) {
  TESSERA_CHECK(row.no_ffn.empty(), ErrorCode::configuration, "--ffn: {} models: {}",
                row.model_type, row.no_ffn);
  const char* const key = keys_of(row.family).columns;
  const bool gpt2 = row.family == NameFamily::gpt2;
  const std::int64_t columns =
      positive_count_of(config, key, gpt2 ? 4 * positive_count_of(config, "n_embd") : 0);
  TESSERA_CHECK(kept > 0 && kept < columns, ErrorCode::configuration,
                "--ffn {}: the model's feed-forward layers have {} columns; keep fewer, and one "
                "at least",
                kept, columns);
  plan.columns = {columns, kept};
  config[key] = kept;
}

}  // namespace

NarrowPlan plan_narrowing(const std::string& text, const NarrowOptions& options) {
  nlohmann::json config = object_of_config(text);
  const NarrowableRow& row = narrowable_row_of(config);
  NarrowPlan plan;
  plan.layers = positive_count_of(config, keys_of(row.family).layers);
  if (options.heads) narrow_heads(row, *options.heads, config, plan);
  if (options.ffn) narrow_columns(row, *options.ffn, config, plan);
  plan.config = config.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  return plan;
}

std::optional<LayerTensor> find_layer_tensor(std::string_view name) {
  for (const DividedTensorRow& row : divided_tensors) {
    if (!name.ends_with(row.rest)) continue;
    std::string_view before = name.substr(0, name.size() - row.rest.size());
    if (!before.ends_with('.')) continue;
    before.remove_suffix(1);
    const std::size_t dot = before.rfind('.');
    if (dot == std::string_view::npos) continue;
    const std::string_view digits = before.substr(dot + 1);
    before = before.substr(0, dot);
    LayerTensor found{0, row.heads, row.axis};
    const char* const end = digits.data() + digits.size();
    const auto [stop, error] = std::from_chars(digits.data(), end, found.layer);
    if (error != std::errc{} || stop != end || digits.empty() || digits.front() == '-') continue;
    if (before == row.list || before.ends_with("." + std::string(row.list))) return found;
  }
  return std::nullopt;
}

std::vector<std::string> unit_matrices(const std::string& text, bool heads) {
  const nlohmann::json config = object_of_config(text);
  const NameFamily family = narrowable_row_of(config).family;
  std::vector<std::string> names;
  for (const DividedTensorRow& row : divided_tensors) {
    if (row.family == family && row.heads == heads && row.required) names.emplace_back(row.rest);
  }
  return names;
}

}  // namespace tessera::checkpoint
