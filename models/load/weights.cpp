// From the kind of a folder to the code that reads it.
#include "models/load/weights.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "checkpoint/checkpoint.h"
#include "checkpoint/formats/format.h"
#include "models/sentence_encoder/sentence_encoder.h"

namespace tessera::models {
namespace {

namespace fs = std::filesystem;

// A step with SHARDED_STATE_DICT has its tensors in its own files.
bool has_sharded_files(const fs::path& step) {
  return fs::exists(step / "manifest.json") && !fs::exists(step / "model.safetensors") &&
         !fs::exists(step / "model.safetensors.index.json");
}

bool is_beside_encoder(const std::string& name) {
  return name == "classifier.weight" || name == "classifier.bias" || name.starts_with("pooler.");
}

// Adds the tensors of a step that are not the encoder's: they are passed over, not read.
void add_passed_over(const std::string& folder, checkpoint::State& state) {
  const auto source = checkpoint::formats::recognise(folder).open(folder);
  for (const auto& stored : source->contents().tensors) {
    if (stored.part != checkpoint::formats::Part::model || !is_beside_encoder(stored.name))
      continue;
    if (!stored.stored->dtype || !is_floating(*stored.stored->dtype)) continue;
    state.model.push_back({stored.name, *stored.stored->dtype, stored.shape, {}});
  }
}

}  // namespace

void load_weights(const std::string& folder, comm::Communicator& ranks, const FolderModel& model,
                  std::vector<checkpoint::LogicalTensor> tensors,
                  const std::vector<std::string>& passed_over) {
  const auto* encoder = dynamic_cast<const SentenceEncoder*>(&model);
  if (encoder != nullptr && !has_sharded_files(folder)) {
    load_sentence_encoder(folder, *encoder, tensors);
    return;
  }
  if (fs::exists(fs::path(folder) / "manifest.json")) {
    checkpoint::State state;
    state.model = std::move(tensors);
    if (encoder != nullptr) add_passed_over(folder, state);
    checkpoint::Selection selection;
    if (!passed_over.empty()) {
      selection.model = [&](const std::string& name) {
        return std::ranges::find(passed_over, name) == passed_over.end();
      };
    }
    checkpoint::load(ranks, folder, state, checkpoint::LoadParts::model_only, selection);
    return;
  }
  HuggingFaceNames names = model.hugging_face_names();
  for (const std::string& name : passed_over) {
    const std::vector<std::string> aliases =
        names.aliases ? names.aliases(name) : std::vector<std::string>{name};
    names.ignored.insert(names.ignored.end(), aliases.begin(), aliases.end());
  }
  checkpoint::load_hugging_face(folder, tensors, names.ignored, names.aliases);
}

}  // namespace tessera::models
