// Adds adapters, maps their names in PEFT's files, and finds the base of a folder.
#include "models/load/adapter.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <utility>

#include "base/error.h"
#include "checkpoint/io/json.h"
#include "checkpoint/load/hugging_face.h"
#include "engine/device/device.h"
#include "models/language_model.h"
#include "models/model_folder.h"
#include "models/registry/registry.h"
#include "models/sentence_encoder/sentence_encoder.h"

namespace tessera::models {
namespace {

namespace fs = std::filesystem;

// The model of transformers, at which PEFT's names begin.
Model& transformer_of(Model& model) {
  if (auto* encoder = dynamic_cast<SentenceEncoder*>(&model)) return encoder->transformer();
  return model;
}

// A sentence encoder holds its transformer beside its module tree, not in it. `trained` are names
// of the transformer's.
void freeze_whole(Model& model, std::optional<DType> storage,
                  const std::vector<std::string>& wide_classes,
                  const std::vector<std::string>& trained) {
  Model& transformer = transformer_of(model);
  freeze(transformer, storage, wide_classes, trained);
  if (&transformer != &model) freeze(model, storage, wide_classes);
}

// A model with a tied head has no module of it.
void refuse_tied_head(const Model& model, const LoraOptions& options) {
  constexpr std::string_view head = "lm_head";
  const std::vector<std::string>& wanted = options.modules_to_save;
  if (std::none_of(wanted.begin(), wanted.end(),
                   [&](const std::string& end) { return !end.empty() && head.ends_with(end); })) {
    return;
  }
  const std::vector<std::string> ignored = model.hugging_face_names().ignored;
  TESSERA_CHECK(std::find(ignored.begin(), ignored.end(), "lm_head.weight") == ignored.end(),
                ErrorCode::configuration,
                "LoRA: modules_to_save: this model's lm_head is tied to its token table, and PEFT "
                "would train a copy of it that is not tied; use a base whose config.json has "
                "tie_word_embeddings = false");
}

// The modules that the options select in this model.
std::vector<std::string> saved_modules(Model& transformer, const LoraOptions& options) {
  refuse_tied_head(transformer, options);
  return modules_to_save(transformer, options);
}

// True if adapters are on layers whose weights are [in, out].
bool adapts_transposed(const nn::Module& module) {
  const auto* layer = dynamic_cast<const nn::LinearImpl*>(&module);
  if (layer != nullptr && layer->has_lora()) return layer->layout() == WeightLayout::in_out;
  return std::any_of(module.children().begin(), module.children().end(),
                     [](const auto& child) { return adapts_transposed(*child.second); });
}

std::vector<std::string> names_in_peft(const HuggingFaceNames& names, const std::string& name) {
  std::vector<std::string> all;
  for (const std::string& alias : names.aliases(name)) {
    all.push_back(std::string(checkpoint::peft_prefix) + alias);
  }
  return all;
}

struct LinearNames {
  std::vector<std::string> all, adapted;
};

void collect_linear_layers(const nn::Module& module, const std::string& name, LinearNames& names) {
  if (const auto* layer = dynamic_cast<const nn::LinearImpl*>(&module)) {
    names.all.push_back(name);
    if (layer->has_lora()) names.adapted.push_back(name);
  }
  for (const auto& [child, part] : module.children())
    collect_linear_layers(*part, name.empty() ? child : name + "." + child, names);
}

const Model& transformer_of(const Model& model) {
  const auto* encoder = dynamic_cast<const SentenceEncoder*>(&model);
  return encoder != nullptr ? encoder->transformer() : model;
}

std::vector<checkpoint::LogicalTensor> chosen(const Model& model,
                                              const std::vector<std::string>& modules,
                                              const std::vector<checkpoint::LogicalTensor>& tensors,
                                              bool of_adapters) {
  // A sentence encoder has other modules beside the transformer, with any names.
  std::set<std::string> saved;
  if (!modules.empty()) {
    for (const nn::NamedParameter& parameter : transformer_of(model).named_parameters()) {
      if (is_in_module_to_save(parameter.name, modules)) saved.insert(parameter.name);
    }
  }
  std::vector<checkpoint::LogicalTensor> out;
  for (const checkpoint::LogicalTensor& tensor : tensors) {
    const bool is_saved = saved.contains(tensor.name);
    if ((is_saved || is_lora_parameter(tensor.name)) == of_adapters) out.push_back(tensor);
    if (!is_saved || of_adapters) continue;
    // The base has such a tensor, too: without pieces it is passed over.
    out.push_back(tensor);
    out.back().pieces.clear();
  }
  return out;
}

}  // namespace

void add_lora(Model& model, const LoraOptions& options, std::optional<DType> storage,
              const std::vector<std::string>& wide_classes) {
  Model& transformer = transformer_of(model);
  freeze_whole(model, storage, wide_classes, saved_modules(transformer, options));
  tessera::add_lora(transformer, options);
}

void check_modules_to_save(Model& model, const LoraOptions& options) {
  Model& transformer = transformer_of(model);
  refuse_tied_head(transformer, options);
  (void)tessera::check_modules_to_save(transformer, options);
}

LoraOptions add_lora_of(const std::string& folder, Model& model, std::optional<DType> storage,
                        const std::vector<std::string>& wide_classes) {
  const checkpoint::PeftConfig config = checkpoint::read_peft_config(folder);
  LoraOptions options = lora_options(config);
  std::map<std::string, std::vector<std::int64_t>> stored;
  for (checkpoint::PeftTensor& tensor :
       checkpoint::list_peft_tensors(checkpoint::open_peft(folder), config)) {
    stored.emplace(std::move(tensor.name), std::move(tensor.shape));
  }
  Model& transformer = transformer_of(model);
  freeze_whole(model, storage, wide_classes, saved_modules(transformer, options));
  const HuggingFaceNames names = transformer.hugging_face_names();
  bool any = false;
  for (const auto& [name, module] : transformer.named_modules()) {
    auto* layer = dynamic_cast<nn::LinearImpl*>(module);
    if (layer == nullptr) continue;
    const std::vector<std::string> wanted = names_in_peft(names, name + ".lora_A.weight");
    const auto one = std::find_if(wanted.begin(), wanted.end(), [&](const std::string& stored_as) {
      return stored.contains(stored_as);
    });
    if (one == wanted.end()) continue;
    // Checked before memory is allocated for the config's rank.
    const std::vector<std::int64_t>& shape = stored.at(*one);
    const std::int64_t in = layer->weight_shape()[layer->layout() == WeightLayout::in_out ? 0 : 1];
    const LoraOptions of_layer = options.of_layer(name);
    TESSERA_CHECK(shape == std::vector({of_layer.rank, in}), ErrorCode::checkpoint,
                  "{}: r and rank_pattern of {} give this layer rank {}, and '{}' has shape [{}] "
                  "for a layer of {} inputs",
                  folder, checkpoint::peft_config_file, of_layer.rank, *one, fmt::join(shape, ", "),
                  in);
    layer->add_lora(of_layer);
    any = true;
  }
  TESSERA_CHECK(
      any, ErrorCode::checkpoint,
      "{}: its adapters are for layers that the model does not have, such as '{}'; it was made for "
      "another model",
      folder, stored.begin()->first);
  return options;
}

LoraOptions lora_options(const checkpoint::PeftConfig& config) {
  return {.rank = config.rank,
          .alpha = config.alpha,
          .dropout = config.dropout,
          .rslora = config.rslora,
          .dora = config.dora,
          .target_modules = config.target_modules,
          .target_pattern = config.target_pattern,
          .rank_pattern = config.rank_pattern,
          .alpha_pattern = config.alpha_pattern,
          .modules_to_save = config.modules_to_save};
}

checkpoint::PeftConfig peft_config(const Model& model, const LoraOptions& options,
                                   const std::string& base) {
  checkpoint::PeftConfig config{.rank = options.rank,
                                .alpha = options.alpha,
                                .dropout = options.dropout,
                                .rslora = options.rslora,
                                .dora = options.dora,
                                .target_modules = options.target_modules,
                                .target_pattern = options.target_pattern,
                                .rank_pattern = options.rank_pattern,
                                .alpha_pattern = options.alpha_pattern,
                                .modules_to_save = options.modules_to_save,
                                .base = base};
  const bool predicts = dynamic_cast<const LanguageModel*>(&model) != nullptr;
  config.task_type = predicts ? "CAUSAL_LM" : "FEATURE_EXTRACTION";
  config.fan_in_fan_out = adapts_transposed(model);
  // PEFT has other ways to choose layers (layers_to_transform, exclude_modules). The options must
  // select exactly the layers that have an adapter.
  LinearNames layers;
  collect_linear_layers(transformer_of(model), "", layers);
  if (layers.adapted != lora_targets(layers.all, options)) {
    config.target_pattern.clear();
    config.target_modules = std::move(layers.adapted);
  }
  return config;
}

std::vector<checkpoint::LogicalTensor> lora_tensors(
    const Model& model, const std::vector<std::string>& modules_to_save,
    const std::vector<checkpoint::LogicalTensor>& tensors) {
  return chosen(model, modules_to_save, tensors, true);
}

std::vector<checkpoint::LogicalTensor> base_tensors(
    const Model& model, const std::vector<std::string>& modules_to_save,
    const std::vector<checkpoint::LogicalTensor>& tensors) {
  return chosen(model, modules_to_save, tensors, false);
}

void load_lora(const std::string& folder, const Model& model,
               const std::vector<checkpoint::LogicalTensor>& tensors) {
  std::vector<checkpoint::LogicalTensor> adapters =
      lora_tensors(model, checkpoint::read_peft_config(folder).modules_to_save, tensors);
  const HuggingFaceNames names = model.hugging_face_names();
  checkpoint::load_peft_tensors(
      folder, adapters, [&](const std::string& name) { return names_in_peft(names, name); });
}

std::map<std::string, bool> weights_in_out(const std::string& config) {
  std::map<std::string, bool> layouts;
  try {
    const DeviceGuard deferred(Device::meta());
    const std::unique_ptr<Model> model = make_model(checkpoint::parse_json(config, "config.json"));
    const HuggingFaceNames names = model->hugging_face_names();
    for (const auto& [name, module] : model->named_modules()) {
      const auto* layer = dynamic_cast<const nn::LinearImpl*>(module);
      if (layer == nullptr) continue;
      for (const std::string& alias : names.aliases(name + ".weight"))
        layouts[alias] = layer->layout() == WeightLayout::in_out;
    }
  } catch (const Error&) {  // a model that is not supported
    return {};
  }
  return layouts;
}

WeightFolders find_weights(const std::string& folder, const std::string& base) {
  if (!checkpoint::is_peft_folder(folder)) {
    TESSERA_CHECK(base.empty(), ErrorCode::usage,
                  "--base {}: {} has no {}, and so no adapter that needs a base", base, folder,
                  checkpoint::peft_config_file);
    return {folder, {}};
  }
  const std::string found = base.empty() ? checkpoint::read_peft_config(folder).base : base;
  std::error_code error;
  TESSERA_CHECK(!found.empty() && fs::is_directory(found, error), ErrorCode::checkpoint,
                "{}: its base model is not a folder here: {}; name the base's folder "
                "with --base",
                folder, found.empty() ? "none is named" : missing_folder_text(found));
  TESSERA_CHECK(!checkpoint::is_peft_folder(found), ErrorCode::configuration,
                "{}: the base {} of the adapter is an adapter itself; merge that one first "
                "(tessera convert --merge)",
                folder, found);
  return {found, folder};
}

}  // namespace tessera::models
