// Reads and writes adapter_config.json, and finds an adapter's tensors.
#include "checkpoint/load/peft.h"

#include <fmt/ranges.h>

#include <cmath>
#include <filesystem>
#include <set>

#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/io/file.h"
#include "checkpoint/io/json.h"
#include "checkpoint/load/hugging_face.h"
#include "checkpoint/steps/manifest.h"
#include "engine/nn/lora.h"

namespace tessera::checkpoint {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::uint64_t peft_config_limit = std::uint64_t{1} << 20;

// The ends of the names of an adapter's tensors.
constexpr std::pair<PeftTensor::Kind, std::string_view> ends_of_names[] = {
    {PeftTensor::Kind::factor_a, ".lora_A.weight"},
    {PeftTensor::Kind::factor_b, ".lora_B.weight"},
    {PeftTensor::Kind::magnitude, ".lora_magnitude_vector"}};

// Reads keys. Errors begin with the file and the key.
class PeftReader {
 public:
  PeftReader(const json& config, std::string path) : config_(config), path_(std::move(path)) {}

  [[nodiscard]] bool has(const char* key) const {
    return config_.contains(key) && !config_.at(key).is_null();
  }
  [[nodiscard]] const json& at(const char* key) const { return config_.at(key); }

  template <class... Args>
  void check(bool holds, const char* key, fmt::format_string<Args...> text, Args&&... args) const {
    if (holds) return;
    fail(ErrorCode::configuration, "{}: {} {}", path_, key,
         fmt::format(text, std::forward<Args>(args)...));
  }

  [[nodiscard]] bool truth(const char* key) const {
    if (!has(key)) return false;
    check(at(key).is_boolean(), key, "is {}; it must be true or false", at(key).dump());
    return at(key).get<bool>();
  }
  [[nodiscard]] double number(const char* key, double otherwise) const {
    if (!has(key)) return otherwise;
    check(at(key).is_number() && std::isfinite(at(key).get<double>()), key,
          "is {}; it must be a number", at(key).dump());
    return at(key).get<double>();
  }
  [[nodiscard]] std::string text(const char* key) const {
    if (!has(key)) return {};
    check(at(key).is_string(), key, "is {}; it must be a text", at(key).dump());
    std::string text = at(key).get<std::string>();
    check(text.find('\0') == std::string::npos, key, "has a NUL in it");
    return text;
  }

 private:
  const json& config_;
  std::string path_;
};

// An empty list, map or text counts as absent.
bool is_nothing(const json& value) {
  return value.is_null() || (value.is_boolean() && !value.get<bool>()) ||
         ((value.is_array() || value.is_object()) && value.empty()) ||
         (value.is_string() && value.get<std::string>().empty());
}

void refuse_what_is_not_built(const PeftReader& reader, const json& config) {
  const std::string kind = reader.text("peft_type");
  reader.check(kind == "LORA", "peft_type", "is \"{}\"; only LORA can be read", kind);
  const std::string bias = reader.text("bias");
  reader.check(bias.empty() || bias == "none", "bias",
               "is \"{}\"; adapters that train biases are not supported", bias);
  // These initial values change the base's weights.
  const json start = config.value("init_lora_weights", json(true));
  static const std::set<std::string> plain = {"gaussian", "orthogonal", "eva"};
  reader.check(
      !start.is_string() || plain.contains(start.get<std::string>()), "init_lora_weights",
      "is {}, which changes the base's weights; let PEFT convert the adapter to plain LoRA",
      start.dump());
  for (const char* key :
       {"target_parameters", "trainable_token_indices", "lora_bias", "use_qalora",
        "layer_replication", "alora_invocation_tokens", "arrow_config", "ensure_weight_tying",
        "use_bdlora", "megatron_config", "kasa_config", "velora_config", "monteclora_config"}) {
    reader.check(!config.contains(key) || is_nothing(config.at(key)), key,
                 "is {}; this part of PEFT is not supported", config.value(key, json()).dump());
  }
}

std::vector<std::string> read_modules_to_save(const PeftReader& reader) {
  std::vector<std::string> modules;
  constexpr const char* key = "modules_to_save";
  if (!reader.has(key)) return modules;
  const json& list = reader.at(key);
  reader.check(list.is_array(), key, "is {}; it must be a list of names", list.dump());
  for (const json& name : list) {
    reader.check(name.is_string() && !name.get<std::string>().empty(), key,
                 "has {}; names must be texts that are not empty", name.dump());
    modules.push_back(name.get<std::string>());
  }
  return modules;
}

void read_targets(const PeftReader& reader, PeftConfig& out) {
  if (!reader.has("target_modules")) return;
  const json& targets = reader.at("target_modules");
  if (targets.is_string()) {
    out.target_pattern = targets.get<std::string>();
    return;
  }
  reader.check(targets.is_array(), "target_modules", "is {}; it must be a list of names or a text",
               targets.dump());
  for (const json& name : targets) {
    reader.check(name.is_string(), "target_modules", "has {}; names must be texts", name.dump());
    out.target_modules.push_back(name.get<std::string>());
  }
}

LoraOptions factor_of(const PeftConfig& config) {
  return {.rank = config.rank,
          .alpha = config.alpha,
          .rslora = config.rslora,
          .rank_pattern = config.rank_pattern,
          .alpha_pattern = config.alpha_pattern};
}

template <class T>
json pattern_object(const std::vector<std::pair<std::string, T>>& patterns) {
  json object = json::object();
  for (const auto& [pattern, value] : patterns) object[pattern] = value;
  return object;
}

std::vector<std::pair<std::string, double>> read_patterns(const PeftReader& reader,
                                                          const char* key) {
  std::vector<std::pair<std::string, double>> patterns;
  if (!reader.has(key)) return patterns;
  const json& object = reader.at(key);
  reader.check(object.is_object(), key, "is {}; it must map patterns to numbers", object.dump());
  for (const auto& [pattern, value] : object.items()) {
    reader.check(value.is_number() && std::isfinite(value.get<double>()), key,
                 "has {} for \"{}\"; it must be a number", value.dump(), pattern);
    patterns.emplace_back(pattern, value.get<double>());
  }
  return patterns;
}

}  // namespace

std::int64_t PeftConfig::rank_of(const std::string& layer) const {
  return factor_of(*this).of_layer(layer).rank;
}
double PeftConfig::scaling_of(const std::string& layer) const {
  return factor_of(*this).of_layer(layer).scaling();
}

bool is_peft_folder(const std::string& folder) {
  std::error_code error;
  return fs::exists(fs::path(folder) / peft_config_file, error);
}

std::string to_text(const PeftConfig& config) {
  const auto text_or_null = [](const std::string& text) {
    return text.empty() ? json() : json(text);
  };
  const json targets =
      config.target_pattern.empty() ? json(config.target_modules) : json(config.target_pattern);
  const json saved = config.modules_to_save.empty() ? json() : json(config.modules_to_save);
  const json written{{"peft_type", "LORA"},
                     {"auto_mapping", nullptr},
                     {"base_model_name_or_path", text_or_null(config.base)},
                     {"revision", nullptr},
                     {"task_type", text_or_null(config.task_type)},
                     {"inference_mode", true},
                     {"r", config.rank},
                     {"lora_alpha", config.alpha},
                     {"lora_dropout", config.dropout},
                     {"use_rslora", config.rslora},
                     {"target_modules", targets},
                     {"fan_in_fan_out", config.fan_in_fan_out},
                     {"bias", "none"},
                     {"init_lora_weights", true},
                     {"modules_to_save", saved},
                     {"layers_to_transform", nullptr},
                     {"layers_pattern", nullptr},
                     {"rank_pattern", pattern_object(config.rank_pattern)},
                     {"alpha_pattern", pattern_object(config.alpha_pattern)},
                     {"use_dora", config.dora}};
  return written.dump(2) + "\n";
}

PeftConfig read_peft_config(const std::string& folder) {
  const std::string path = (fs::path(folder) / peft_config_file).string();
  const json config = parse_json(read_file(path, peft_config_limit), path);
  TESSERA_CHECK(config.is_object(), ErrorCode::configuration, "{}: not a JSON object", path);
  const PeftReader reader(config, path);
  refuse_what_is_not_built(reader, config);
  PeftConfig out;
  const double rank = reader.number("r", 8);
  reader.check(rank >= 1 && rank <= nn::max_lora_rank && rank == std::floor(rank), "r",
               "is {}; it must be a whole number from 1 to {}", rank, nn::max_lora_rank);
  out.rank = static_cast<std::int64_t>(rank);
  out.alpha = reader.number("lora_alpha", 8);
  out.dropout = reader.number("lora_dropout", 0);
  reader.check(out.dropout >= 0 && out.dropout < 1, "lora_dropout", "is {}; it must be in [0, 1)",
               out.dropout);
  out.rslora = reader.truth("use_rslora");
  out.dora = reader.truth("use_dora");
  out.fan_in_fan_out = reader.truth("fan_in_fan_out");
  out.base = reader.text("base_model_name_or_path");
  out.task_type = reader.text("task_type");
  reader.check(factor_of(out).can_scale(), "lora_alpha", "is {}, which is too large a factor",
               out.alpha);
  read_targets(reader, out);
  for (const auto& [pattern, value] : read_patterns(reader, "rank_pattern")) {
    reader.check(value >= 1 && value <= nn::max_lora_rank && value == std::floor(value),
                 "rank_pattern", "has {} for \"{}\"; it must be a whole number from 1 to {}", value,
                 pattern, nn::max_lora_rank);
    out.rank_pattern.emplace_back(pattern, static_cast<std::int64_t>(value));
  }
  out.alpha_pattern = read_patterns(reader, "alpha_pattern");
  out.modules_to_save = read_modules_to_save(reader);
  return out;
}

HuggingFaceFolder open_peft(const std::string& folder) {
  const fs::path path = fs::path(folder) / peft_tensors_file;
  TESSERA_CHECK(fs::exists(path), ErrorCode::checkpoint,
                "{}: no {} there; an adapter is saved with safe_serialization", folder,
                peft_tensors_file);
  if (fs::exists(fs::path(folder) / manifest_name)) verify(folder);
  HuggingFaceFolder opened;
  opened.add(path);
  return opened;
}

namespace {

PeftTensor::Kind kind_of(std::string_view name) {
  if (!name.starts_with(peft_prefix)) return PeftTensor::Kind::other;
  const std::string_view own = name.substr(peft_prefix.size());
  for (const auto& [kind, end] : ends_of_names) {
    if (own.ends_with(end)) return kind;
  }
  return PeftTensor::Kind::other;
}

// The config and the file must agree on DoRA: without a magnitude that was trained, or with one
// that is passed over, the model would be another one.
void check_magnitudes(const std::string& file, const std::vector<PeftTensor>& tensors,
                      const PeftConfig& config) {
  std::set<std::string> magnitudes;
  for (const PeftTensor& tensor : tensors) {
    if (tensor.kind != PeftTensor::Kind::magnitude) continue;
    TESSERA_CHECK(config.dora, ErrorCode::checkpoint,
                  "{}: '{}' is a magnitude of DoRA, but use_dora of {} is false; set it to true, "
                  "as in the run that saved the adapter",
                  file, tensor.name, peft_config_file);
    magnitudes.insert(layer_of(tensor));
  }
  if (!config.dora) return;
  for (const PeftTensor& tensor : tensors) {
    if (tensor.kind == PeftTensor::Kind::other) continue;
    const std::string layer = layer_of(tensor);
    TESSERA_CHECK(magnitudes.contains(layer), ErrorCode::checkpoint,
                  "{}: use_dora of {} is true, but there is no magnitude '{}{}{}'; set it to false "
                  "if the adapter is plain LoRA",
                  file, peft_config_file, peft_prefix, layer, ends_of_names[2].second);
  }
}

}  // namespace

std::string layer_of(const PeftTensor& tensor) {
  for (const auto& [kind, end] : ends_of_names) {
    if (kind != tensor.kind) continue;
    return tensor.name.substr(peft_prefix.size(),
                              tensor.name.size() - peft_prefix.size() - end.size());
  }
  misuse("'{}' is not a tensor of an adapter", tensor.name);
}

std::vector<PeftTensor> list_peft_tensors(const HuggingFaceFolder& opened,
                                          const PeftConfig& config) {
  std::vector<PeftTensor> tensors;
  bool adapts = false;
  for (const auto& [name, place] : opened.tensors) {
    const PeftTensor::Kind kind = kind_of(name);
    const bool is_saved =
        name.starts_with(peft_prefix) &&
        is_in_module_to_save(name.substr(peft_prefix.size()), config.modules_to_save);
    TESSERA_CHECK(
        kind != PeftTensor::Kind::other || is_saved, ErrorCode::checkpoint,
        "{}: tensor '{}' is not an adapter of a linear layer{}; other adapters are not supported",
        place.file->path().string(), name,
        config.modules_to_save.empty()
            ? ""
            : fmt::format(" or of the modules_to_save of {}", peft_config_file));
    tensors.push_back({name, place.entry->shape, kind});
    adapts = adapts || kind != PeftTensor::Kind::other;
  }
  const std::string file = opened.files.front()->path().string();
  TESSERA_CHECK(adapts, ErrorCode::checkpoint,
                "{}: has no tensors of adapters; it is not a folder that PEFT saved", file);
  check_magnitudes(file, tensors, config);
  return tensors;
}

void load_peft_tensors(const std::string& folder, std::vector<LogicalTensor>& tensors,
                       const std::function<std::vector<std::string>(const std::string&)>& names) {
  const HuggingFaceFolder opened = open_peft(folder);
  fill_from(opened, tensors, {}, names, [&](const std::string& problems) {
    return fmt::format("the adapter in '{}' does not fit the model: {}", folder, problems);
  });
}

std::function<std::string(const std::string& name, bool trained)> peft_names(
    std::vector<std::string> modules_to_save) {
  return [modules = std::move(modules_to_save)](const std::string& name, bool trained) {
    if (!trained) return std::string();
    const bool is_pefts = is_lora_parameter(name) || is_in_module_to_save(name, modules);
    return is_pefts ? std::string(peft_prefix) + name : name;
  };
}

}  // namespace tessera::checkpoint
