// Names and states of folders.
#include "models/load/folder.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "checkpoint/sharded_state.h"
#include "engine/nn/lora.h"
#include "models/load/weights.h"
#include "models/model_folder.h"

namespace tessera::models {

void load_pretrained(const ShardedModel& sharded, const FolderModel& model,
                     const std::string& folder, const checkpoint::NameFilter& keep) {
  require_model_folder(folder);
  std::vector<std::string> kept;
  checkpoint::State state =
      checkpoint::state_of(sharded, nullptr, checkpoint::Direction::load,
                           [&](const std::string& name, bool /*trained*/) {
                             const bool keeps = keep && keep(name);
                             if (keeps) kept.push_back(name);
                             return keeps || is_lora_parameter(name) ? std::string() : name;
                           });
  load_weights(folder, sharded.context().communicator(), model, std::move(state.model), kept);
}

std::vector<std::string> save_pretrained(const ShardedModel& sharded, const FolderModel& model,
                                         const std::string& folder,
                                         checkpoint::ExportOptions options) {
  const checkpoint::State state =
      checkpoint::state_of(sharded, nullptr, checkpoint::Direction::save);
  for (const checkpoint::LogicalTensor& tensor : state.model) {
    TESSERA_CHECK(!is_lora_parameter(tensor.name), ErrorCode::configuration,
                  "{}: the model has adapters ({}); save them with ts::save and "
                  "checkpoint::peft_names(LoraOptions::modules_to_save)",
                  folder, tensor.name);
  }
  options.files["config.json"] = model.config(options.dtype).dump(2) + "\n";
  return checkpoint::export_model(sharded.context().communicator(), folder, state.model, options);
}

}  // namespace tessera::models
