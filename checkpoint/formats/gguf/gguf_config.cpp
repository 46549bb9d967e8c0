// Settings: sizes, epsilons and rotary positions. The scaling of llama3 has no settings in GGUF: a
// tensor has its divisors.
#include "checkpoint/formats/gguf/gguf_config.h"

#include <fmt/format.h>
#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "checkpoint/io/json.h"

namespace tessera::checkpoint::formats {

namespace {

using nlohmann::json;

constexpr std::int64_t largest_setting = std::int64_t{1} << 31;
// The scaling that config.json has, as JSON: llama.cpp does not need it, and a reader of the file
// could not find it from the divisors alone.
constexpr const char* rope_scaling_key = "tessera.rope_scaling";

[[noreturn]] void refuse_config(const std::string& key, const json& value, std::string_view why) {
  fail(ErrorCode::checkpoint, "config.json: {} is {}; {}", key, value.dump(), why);
}

const json* given(const json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

std::int64_t positive(const json& object, const char* key) {
  const json* const value = given(object, key);
  TESSERA_CHECK(value != nullptr, ErrorCode::checkpoint, "config.json has no {}", key);
  if (!value->is_number_integer() || *value < 1 || *value >= largest_setting) {
    refuse_config(key, *value, "a whole number from 1 on is needed");
  }
  return value->get<std::int64_t>();
}

double positive_real(const json& value, const char* key) {
  if (!value.is_number() || !(value.get<double>() > 0) ||
      value.get<double>() > double{std::numeric_limits<float>::max()}) {
    refuse_config(key, value, "a number above 0 is needed");
  }
  return value.get<double>();
}

void only(const json& config, const char* key, const json& value) {
  const json* const found = given(config, key);
  if (found != nullptr && *found != value) {
    refuse_config(key, *found, fmt::format("llama.cpp computes with {} only", value.dump()));
  }
}

bool is_called(const GgufFamily& family, std::string_view architecture) {
  return family.architecture == architecture;
}

// config.json with the values that GPT-2 and Llama's build leave out.
json with_defaults(const GgufFamily& family, json config) {
  if (!family.rotary) {
    if (given(config, "n_inner") == nullptr) config["n_inner"] = 4 * positive(config, "n_embd");
    if (given(config, "layer_norm_epsilon") == nullptr) config["layer_norm_epsilon"] = 1e-5;
    return config;
  }
  if (given(config, "num_key_value_heads") == nullptr) {
    config["num_key_value_heads"] = positive(config, "num_attention_heads");
  }
  const bool larger = is_called(family, "olmo2") || is_called(family, "phi3");
  if (given(config, "rms_norm_eps") == nullptr) config["rms_norm_eps"] = larger ? 1e-5 : 1e-6;
  if (is_called(family, "smollm3") && given(config, "rope_theta") == nullptr) {
    config["rope_theta"] = 2e6;
  }
  if (given(config, "head_dim") == nullptr) {
    config["head_dim"] = positive(config, "hidden_size") / positive(config, "num_attention_heads");
  }
  return config;
}

// rope_scaling in one spelling: rope_type, and without the base, which is returned beside it.
std::pair<json, double> rope_of(const json& config) {
  const json* scaling = given(config, "rope_parameters");
  if (scaling == nullptr) scaling = given(config, "rope_scaling");
  json result = scaling != nullptr && scaling->is_object() ? *scaling : json::object();
  const json* theta = given(result, "rope_theta");
  if (theta == nullptr) theta = given(config, "rope_theta");
  const double base = theta == nullptr ? 10000.0 : positive_real(*theta, "rope_theta");
  if (!result.contains("rope_type")) result["rope_type"] = result.value("type", json("default"));
  result.erase("rope_theta");
  result.erase("type");
  return {std::move(result), base};
}

// The divisors of llama3's scaling: 1 for short waves, `factor` for long ones, between them a
// blend. The formula is that of transformers' modeling_rope_utils.py, computed in fp32 as there.
std::vector<float> llama3_divisors(const json& scaling, double base, std::int64_t head) {
  const double factor = positive_real(scaling.value("factor", json()), "rope_scaling.factor");
  const double low =
      positive_real(scaling.value("low_freq_factor", json()), "rope_scaling.low_freq_factor");
  const double high =
      positive_real(scaling.value("high_freq_factor", json()), "rope_scaling.high_freq_factor");
  const double positions = positive_real(scaling.value("original_max_position_embeddings", json()),
                                         "rope_scaling.original_max_position_embeddings");
  std::vector<float> divisors;
  for (std::int64_t i = 0; i < head; i += 2) {
    const double wave =
        2 * std::numbers::pi * std::pow(base, static_cast<double>(i) / static_cast<double>(head));
    double divisor = 1;
    if (wave > positions / low) {
      divisor = factor;
    } else if (wave >= positions / high) {
      const double smooth = (positions / wave - low) / (high - low);
      divisor = 1 / ((1 - smooth) / factor + smooth);
    }
    divisors.push_back(static_cast<float>(divisor));
  }
  return divisors;
}

// The elements of a head that rotary positions turn.
std::int64_t turned_part(const json& config, const json& scaling, std::int64_t head) {
  const json* part = given(scaling, "partial_rotary_factor");
  if (part == nullptr) part = given(config, "partial_rotary_factor");
  const double factor = part == nullptr ? 1.0 : positive_real(*part, "partial_rotary_factor");
  const auto turned = static_cast<std::int64_t>(static_cast<double>(head) * factor);
  if (turned % 2 != 0 || turned < 2 || turned > head) {
    refuse_config("head_dim", head, "rotary positions turn pairs of a head");
  }
  return turned;
}

// llama.cpp turns no positions in every fourth layer of SmolLM3.
void check_turned_layers(const json& config) {
  constexpr std::size_t interval = 4;
  const json* const layers = given(config, "no_rope_layers");
  if (layers == nullptr) {
    only(config, "no_rope_layer_interval", interval);
    return;
  }
  json expected = json::array();
  for (std::size_t i = 1; i <= layers->size(); ++i) expected.push_back(i % interval == 0 ? 0 : 1);
  only(config, "no_rope_layers", expected);
}

void write_rope(const json& config, const std::string& prefix, GgufMetadata& metadata,
                GgufModel& model) {
  const auto head = positive(config, "head_dim");
  const auto [scaling, base] = rope_of(config);
  const std::int64_t turned = turned_part(config, scaling, head);
  metadata.number(prefix + "attention.key_length", static_cast<std::uint32_t>(head));
  metadata.number(prefix + "attention.value_length", static_cast<std::uint32_t>(head));
  metadata.number(prefix + "rope.dimension_count", static_cast<std::uint32_t>(turned));
  metadata.real(prefix + "rope.freq_base", static_cast<float>(base));
  const json& type = scaling["rope_type"];
  if (type == "linear") {
    metadata.text(prefix + "rope.scaling.type", "linear");
    metadata.real(
        prefix + "rope.scaling.factor",
        static_cast<float>(positive_real(scaling.value("factor", json()), "rope_scaling.factor")));
  } else if (type == "llama3") {
    if (!is_called(*model.family, "llama")) {
      refuse_config("rope_scaling.rope_type", type, "llama.cpp has it for Llama only");
    }
    json whole = scaling;
    if (given(whole, "original_max_position_embeddings") == nullptr) {
      whole["original_max_position_embeddings"] = positive(config, "max_position_embeddings");
    }
    model.rope = llama3_divisors(whole, base, turned);
    metadata.text(rope_scaling_key, whole.dump());
  } else if (type != "default") {
    refuse_config("rope_scaling.rope_type", type,
                  "GGUF files are written for default, linear and llama3");
  }
}

// The value of a float in the fewest digits, as it was in config.json.
double in_few_digits(float value) {
  return std::stod(fmt::format("{}", value));
}

class SettingsReader {
 public:
  SettingsReader(const GgufHeader& header, const GgufFamily& family, const std::string& file)
      : metadata_(header.metadata), prefix_(std::string(family.architecture) + "."), file_(file) {}

  [[nodiscard]] const json* find(const std::string& key) const {
    const auto found = metadata_.find(prefix_ + key);
    return found == metadata_.end() ? nullptr : &found->second;
  }
  [[nodiscard]] std::int64_t whole(const std::string& key) const {
    const json* const value = find(key);
    require(value != nullptr, key, "is missing");
    require(value->is_number_integer() && *value > 0 && *value < largest_setting, key,
            "is not a number from 1 on");
    return value->get<std::int64_t>();
  }
  [[nodiscard]] std::int64_t whole_or(const std::string& key, std::int64_t absent) const {
    return find(key) == nullptr ? absent : whole(key);
  }
  [[nodiscard]] double real(const std::string& key) const {
    const json* const value = find(key);
    require(value != nullptr, key, "is missing");
    require(value->is_number_float() && std::isfinite(value->get<double>()) && *value > 0, key,
            "is not a number above 0");
    return in_few_digits(value->get<float>());
  }
  void require(bool holds, const std::string& key, const char* problem) const {
    TESSERA_CHECK(holds, ErrorCode::checkpoint, "'{}': {}{} {}", file_, prefix_, key, problem);
  }

 private:
  const std::map<std::string, json>& metadata_;
  std::string prefix_;
  const std::string& file_;
};

bool close(const std::vector<float>& a, const std::vector<float>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](float left, float right) {
    return std::fabs(left - right) <= 1e-4f * std::fabs(right);
  });
}

// The scaling that gives these divisors: the one that this program stored beside them, or that of
// Llama 3.1 to 3.3.
json llama3_scaling(const GgufHeader& header, const std::vector<float>& rope, double base,
                    std::int64_t head, const std::string& file) {
  json scaling{{"rope_type", "llama3"},
               {"factor", rope.empty() ? 0.0F : *std::max_element(rope.begin(), rope.end())},
               {"low_freq_factor", 1.0},
               {"high_freq_factor", 4.0},
               {"original_max_position_embeddings", 8192}};
  const auto stored = header.metadata.find(rope_scaling_key);
  if (stored != header.metadata.end() && stored->second.is_string()) {
    scaling = parse_json(stored->second.get<std::string>(),
                         fmt::format("'{}': {}", file, rope_scaling_key));
  }
  const bool known = scaling.is_object() && scaling.value("rope_type", json()) == "llama3";
  TESSERA_CHECK(known && close(llama3_divisors(scaling, base, head), rope), ErrorCode::checkpoint,
                "'{}': {} is not llama3's scaling with the parameters of Llama 3.1 to 3.3, and "
                "others cannot be found from it; convert the Hugging Face folder that the file was "
                "made from",
                file, gguf_rope_tensor);
  return scaling;
}

void read_rope(const SettingsReader& settings, const GgufFamily& family, const GgufHeader& header,
               const std::vector<float>& rope, const std::string& file, json& config) {
  const auto heads = config["num_attention_heads"].get<std::int64_t>();
  const std::int64_t even = config["hidden_size"].get<std::int64_t>() / heads;
  const std::int64_t head =
      settings.whole_or("attention.key_length", settings.whole_or("rope.dimension_count", even));
  const std::int64_t turned = settings.whole_or("rope.dimension_count", head);
  const bool may_be_part = is_called(family, "phi3");
  settings.require(settings.whole_or("attention.value_length", head) == head && turned % 2 == 0 &&
                       (may_be_part ? turned <= head : turned == head),
                   "rope.dimension_count", "is not the size of a head");
  config["head_dim"] = head;
  if (turned != head) {
    config["partial_rotary_factor"] = static_cast<double>(turned) / static_cast<double>(head);
  }
  const double base =
      settings.find("rope.freq_base") == nullptr ? 10000.0 : settings.real("rope.freq_base");
  config["rope_theta"] = base;
  const json* const type = settings.find("rope.scaling.type");
  config["rope_scaling"] = nullptr;
  if (!rope.empty()) {
    config["rope_scaling"] = llama3_scaling(header, rope, base, turned, file);
  } else if (type != nullptr && *type == "linear") {
    config["rope_scaling"] = {{"rope_type", "linear"},
                              {"factor", settings.real("rope.scaling.factor")}};
  } else {
    settings.require(type == nullptr || *type == "none", "rope.scaling.type",
                     "is a scaling that is not read (none and linear are)");
  }
}

bool is_token(const json& id, const json& config) {
  return id.is_number_integer() && id >= 0 && id < config.at("vocab_size");
}

// The numbers of special tokens. Null: the file has none, and transformers takes those of its class
// where config.json leaves them out.
void read_special_tokens(const GgufHeader& header, json& config) {
  constexpr std::pair<const char*, const char*> names[] = {
      {"bos", "bos"}, {"eos", "eos"}, {"padding", "pad"}};
  for (const auto& [gguf, hugging_face] : names) {
    const auto id = header.metadata.find(fmt::format("tokenizer.ggml.{}_token_id", gguf));
    const bool known = id != header.metadata.end() && is_token(id->second, config);
    config[fmt::format("{}_token_id", hugging_face)] = known ? id->second : json();
  }
  const auto ends = header.metadata.find(gguf_ends_key);
  if (ends == header.metadata.end() || !ends->second.is_string()) return;
  const json stored = object_or_null(ends->second.get<std::string>());
  const json all = stored.is_object() ? stored.value("eos_token_id", json()) : json();
  const bool known =
      all.is_array() && !all.empty() &&
      std::all_of(all.begin(), all.end(), [&](const json& id) { return is_token(id, config); });
  if (known) config["eos_token_id"] = all;
}

bool has_tensor(const GgufHeader& header, std::string_view name) {
  return std::any_of(header.tensors.begin(), header.tensors.end(),
                     [&](const GgufTensor& tensor) { return tensor.name == name; });
}

// transformers 5 has the part of a head that is turned in rope_parameters, which only the key
// beside it can override.
void check_turned_part(const json& config) {
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    const json* const rope = given(config, key);
    if (rope == nullptr || !rope->is_object()) continue;
    const json* const part = given(*rope, "partial_rotary_factor");
    const json* const whole = given(config, "partial_rotary_factor");
    if (part != nullptr && *part != (whole == nullptr ? json(1) : *whole)) {
      refuse_config("partial_rotary_factor", *part, "GGUF files are written for whole heads");
    }
  }
}

}  // namespace

GgufModel write_gguf_settings(const json& config_as_given, GgufMetadata& metadata) {
  GgufModel model;
  model.family = &gguf_family_of_config(config_as_given);
  const json config = with_defaults(*model.family, config_as_given);
  metadata.text("general.architecture", model.family->architecture);
  metadata.text("general.type", "model");
  const std::string prefix = std::string(model.family->architecture) + ".";
  for (const GgufSetting& setting : model.family->settings) {
    if (setting.real) {
      metadata.real(prefix + setting.gguf,
                    static_cast<float>(positive_real(config.value(setting.hugging_face, json()),
                                                     setting.hugging_face)));
    } else {
      metadata.number(prefix + setting.gguf,
                      static_cast<std::uint32_t>(positive(config, setting.hugging_face)));
    }
  }
  model.vocabulary = positive(config, "vocab_size");
  model.config = config;
  metadata.number(prefix + "vocab_size", static_cast<std::uint32_t>(model.vocabulary));
  keep_dropout(config, *model.family, metadata);
  if (!model.family->rotary) {
    const json* const activation = given(config, "activation_function");
    if (activation != nullptr && *activation != "gelu_pytorch_tanh") {
      only(config, "activation_function", "gelu_new");
    }
    only(config, "scale_attn_weights", true);
    only(config, "scale_attn_by_inverse_layer_idx", false);
    only(config, "add_cross_attention", false);
    model.heads.query = model.heads.key = positive(config, "n_head");
    note_config_keys(config_as_given, model);
    return model;
  }
  only(config, "hidden_act", "silu");
  if (!is_called(*model.family, "phi3")) {
    only(config, "partial_rotary_factor", 1);
    check_turned_part(config);
  }
  if (!model.family->biases) only(config, "attention_bias", false);
  if (!model.family->biases) only(config, "mlp_bias", false);
  if (is_called(*model.family, "smollm3")) check_turned_layers(config);
  model.heads = {positive(config, "num_attention_heads"), positive(config, "num_key_value_heads")};
  write_rope(config, prefix, metadata, model);
  note_config_keys(config_as_given, model);
  return model;
}

json config_of_gguf(const GgufHeader& header, const GgufFamily& family,
                    const std::vector<float>& rope, const std::string& file, GgufHeads& heads) {
  const SettingsReader settings(header, family, file);
  json config{{"architectures", {family.model_class}}, {"model_type", family.model_types.front()}};
  for (const GgufSetting& setting : family.settings) {
    if (setting.gguf == std::string_view("attention.head_count_kv") &&
        settings.find(setting.gguf) == nullptr) {
      config[setting.hugging_face] = config.at("num_attention_heads");
    } else if (setting.real) {
      config[setting.hugging_face] = settings.real(setting.gguf);
    } else {
      config[setting.hugging_face] = settings.whole(setting.gguf);
    }
  }
  settings.require(settings.find("expert_count") == nullptr || *settings.find("expert_count") == 0,
                   "expert_count", "is not 0: models of experts are not read");
  const std::string table = "token_embd.weight";
  for (const GgufTensor& tensor : header.tensors) {
    if (tensor.name == table && tensor.shape.size() == 2) config["vocab_size"] = tensor.shape[0];
  }
  TESSERA_CHECK(config.contains("vocab_size"), ErrorCode::checkpoint,
                "'{}' has no matrix {}; it holds no language model", file, table);
  read_special_tokens(header, config);
  restore_dropout(header, family, file, config);
  config["tie_word_embeddings"] = !has_tensor(header, "output.weight");
  if (!family.rotary) {
    config["activation_function"] = "gelu_new";
    heads.query = heads.key = config["n_head"].get<std::int64_t>();
    return config;
  }
  config["hidden_act"] = "silu";
  heads = {config["num_attention_heads"].get<std::int64_t>(),
           config["num_key_value_heads"].get<std::int64_t>()};
  if (family.model_types.front() == std::string_view("llama")) {
    config["attention_bias"] = has_tensor(header, "blk.0.attn_q.bias");
    config["mlp_bias"] = has_tensor(header, "blk.0.ffn_up.bias");
  }
  if (is_called(family, "smollm3")) config["no_rope_layer_interval"] = 4;
  read_rope(settings, family, header, rope, file, config);
  return config;
}

}  // namespace tessera::checkpoint::formats
