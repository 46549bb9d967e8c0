// Builds on meta and reads weights into place.
#include "models/load/load.h"

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/steps/lineage.h"
#include "comm/world.h"
#include "models/load/adapter.h"
#include "models/load/int8.h"
#include "models/load/quantized.h"
#include "models/load/weights.h"
#include "models/model_folder.h"
#include "models/registry/registry.h"
#include "models/weights_bound.h"

namespace tessera::models {
namespace {

namespace fs = std::filesystem;

checkpoint::State state_of(const Model& model) {
  checkpoint::State state;
  for (const auto& parameter : model.named_parameters()) {
    const auto sizes = parameter.shape.sizes();
    const Tensor& tensor = parameter.tensor;
    state.model.push_back({parameter.name,
                           tensor.dtype(),
                           {sizes.begin(), sizes.end()},
                           {{0, tensor.elements(), tensor.raw_data(), tensor.device()}}});
  }
  return state;
}

// In a folder of steps, the step that was saved last: a step's config.json is its model's.
fs::path folder_of_config(const fs::path& folder) {
  if (fs::exists(folder / "config.json") || checkpoint::is_peft_folder(folder)) return folder;
  const checkpoint::StepListing listing = checkpoint::list_committed(folder);
  return listing.steps.empty() ? folder : listing.steps.front().path;
}

// Fills a model from folder_of_config()'s folder or, if that is a step of a folder of steps, from
// the newest intact step there.
void fill(LoadedLanguageModel& loaded, const std::string& folder, checkpoint::State& state) {
  const auto alone = comm::connect(comm::World{});
  if (loaded.folder != folder) {
    auto found = checkpoint::load_latest(*alone, folder, state, checkpoint::LoadParts::model_only);
    TESSERA_CHECK(found.has_value(), ErrorCode::checkpoint, "{}: the folder no longer has a step",
                  folder);
    loaded.folder = found->path;
    loaded.skipped = std::move(found->skipped);
  } else {
    load_weights(folder, *alone, *loaded.model, state.model);
  }
}

}  // namespace

void materialise(nn::Module& module, Device device) {
  std::map<const void*, Tensor> made;  // a tied parameter is made once
  for (const auto& [name, part] : module.named_modules()) {
    const std::vector<std::pair<std::string, Tensor>> own = part->own_parameters();
    for (const auto& [parameter_name, parameter] : own) {
      Tensor& tensor = made[parameter.impl().get()];
      if (!tensor.defined()) tensor = Tensor::empty(parameter.shape(), parameter.dtype(), device);
      part->replace_own_parameter(parameter, tensor);
    }
  }
}

LoadedLanguageModel load_language_model(const std::string& given, DType dtype, Device device,
                                        const std::string& base) {
  require_model_folder(given);
  LoadedLanguageModel loaded;
  std::string folder = given;
  std::string adapter;
  // The adapter of a folder of steps is the newest step's.
  const std::string newest = folder_of_config(given).string();
  if (checkpoint::is_peft_folder(newest) || !base.empty()) {
    const WeightFolders weights = find_weights(newest, base);
    folder = weights.base;
    adapter = weights.adapter;
  }
  loaded.folder = folder_of_config(folder).string();
  TESSERA_CHECK(fs::exists(fs::path(loaded.folder) / "config.json"), ErrorCode::checkpoint,
                "{}: no config.json there; name a checkpoint of tessera train or a folder that "
                "transformers saved",
                folder);
  const nlohmann::json config = read_config(loaded.folder);
  check_weights_bound(loaded.folder, config);
  LoraOptions of_adapter;
  {
    const DeviceGuard deferred(Device::meta());
    const nn::ParameterDTypeGuard of_weights(dtype);
    loaded.model = make_language_model(config, (fs::path(loaded.folder) / "config.json").string());
    if (!adapter.empty()) of_adapter = add_lora_of(adapter, *loaded.model);
  }
  keep_int8_layers(*loaded.model, loaded.folder, device, of_adapter.modules_to_save);
  materialise(*loaded.model, device);
  loaded.model->eval();
  const checkpoint::State whole = state_of(*loaded.model);
  checkpoint::State state;
  state.model = tensors_under(adapter, *loaded.model, whole.model);
  fill(loaded, folder, state);
  if (adapter.empty()) return loaded;
  load_lora(adapter, *loaded.model, whole.model);
  nn::keep_adapted_norms(*loaded.model);
  loaded.adapter = adapter;
  return loaded;
}

std::unique_ptr<SequenceToSequence> load_sequence_to_sequence(const std::string& folder,
                                                              DType dtype, Device device) {
  require_model_folder(folder);
  const fs::path config_file = fs::path(folder) / "config.json";
  TESSERA_CHECK(fs::exists(config_file), ErrorCode::checkpoint,
                "{}: no config.json there; name a folder that transformers saved, or write the "
                "model's config() into a step's folder",
                folder);
  const nlohmann::json config = read_config(folder);
  check_weights_bound(folder, config);
  std::unique_ptr<SequenceToSequence> model;
  {
    const DeviceGuard deferred(Device::meta());
    const nn::ParameterDTypeGuard of_weights(dtype);
    model = make_sequence_to_sequence(config, config_file.string());
  }
  materialise(*model, device);
  model->eval();
  load_weights(folder, *comm::connect(comm::World{}), *model, state_of(*model).model);
  return model;
}

}  // namespace tessera::models
