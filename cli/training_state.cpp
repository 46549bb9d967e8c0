// What a run reads and writes: pretrained weights, checkpoints, the position in them.
#include <fmt/format.h>
#include <fstream>
#include <nlohmann/json.hpp>

#include "checkpoint/collective.h"
#include "checkpoint/file.h"
#include "checkpoint/sharded_state.h"
#include "cli/training_run.h"
#include "kernels/base/error.h"

namespace tessera::cli {
namespace {

nlohmann::json read_json(const std::filesystem::path& path) {
  std::ifstream stream(path);
  TESSERA_CHECK(stream.is_open(), ErrorCode::configuration,
                "{}: cannot be read; a model folder has a config.json", path.string());
  nlohmann::json json = nlohmann::json::parse(stream, nullptr, false);
  TESSERA_CHECK(json.is_object(), ErrorCode::configuration, "{}: not a JSON object", path.string());
  return json;
}

}  // namespace

nlohmann::json model_configuration(const Recipe& recipe) {
  nlohmann::json config = recipe.model.config;
  if (recipe.model.pretrained) {
    nlohmann::json folder =
        read_json(std::filesystem::path(*recipe.model.pretrained) / "config.json");
    folder.update(config);
    return folder;
  }
  config["model_type"] = recipe.model.architecture;
  return config;
}

void TrainingRun::load_pretrained() {
  checkpoint::State state = checkpoint::state_of(*sharded_, nullptr, checkpoint::Direction::load);
  const models::HuggingFaceNames names = model_->hugging_face_names();
  checkpoint::load_hugging_face(*recipe_.model.pretrained, state.model, names.ignored,
                                names.aliases);
}

std::vector<std::string> TrainingRun::resume() {
  std::vector<std::string> notes;
  const std::string& mode = recipe_.checkpoint.resume;
  if (mode == "auto" && recipe_.checkpoint.dir) {
    const auto found = checkpoint::find_latest(context_.communicator(), *recipe_.checkpoint.dir);
    if (found) {
      for (const std::string& reason : found->skipped) notes.push_back("passed over " + reason);
      notes.push_back(load_checkpoint(found->path));
      return notes;
    }
  } else if (mode != "auto" && mode != "never") {
    // A step folder, or a folder of steps.
    const std::filesystem::path path = mode;
    if (std::filesystem::exists(path / "manifest.json")) {
      return {load_checkpoint(mode)};
    }
    const auto found = checkpoint::find_latest(context_.communicator(), path);
    TESSERA_CHECK(
        found.has_value(), ErrorCode::checkpoint,
        "{}: checkpoint.resume: {} has no committed checkpoint (step-N with a manifest.json)",
        where(recipe_, "checkpoint.resume"), mode);
    return {load_checkpoint(found->path)};
  }
  if (recipe_.model.pretrained) {
    load_pretrained();
    notes.push_back(fmt::format("weights from {}", *recipe_.model.pretrained));
  }
  return notes;
}

void TrainingRun::prepare_folder() {
  if (!recipe_.checkpoint.dir || recipe_.checkpoint.every == 0) return;
  const std::string place = where(recipe_, "checkpoint.dir");
  checkpoint::together(context_.communicator(), place, [&] {
    if (context_.is_main()) checkpoint::create_folders(*recipe_.checkpoint.dir);
    return std::string();
  });
}

std::string TrainingRun::load_checkpoint(const std::string& folder) {
  const Scalars scalars = load(context_, folder, *sharded_, *optimizer_);
  if (!scalars.contains("position/steps") && scalars.contains("step")) {
    return start_data_anew(folder, scalars.get<std::int64_t>("step"));
  }
  TESSERA_CHECK(
      scalars.contains("position/steps") && scalars.contains("corpus"), ErrorCode::checkpoint,
      "{}: the manifest has no training position; it was not written by tessera train", folder);
  TESSERA_CHECK(scalars.get<std::uint64_t>("corpus") == samples_->corpus().fingerprint(),
                ErrorCode::data,
                "{}: {} is not the text that the run in {} was trained on, so its place in it is "
                "lost; give the old "
                "file, or start anew from the weights with model.pretrained",
                where(recipe_, "data.train"), recipe_.data.train, folder);
  TESSERA_CHECK(scalars.get<std::int64_t>("seq_len", 0) == recipe_.model.seq_len &&
                    scalars.get<std::int64_t>("seed", 0) == recipe_.train.seed &&
                    scalars.get<bool>("shuffle", false) == recipe_.data.shuffle,
                ErrorCode::configuration,
                "{}: the run there has model.seq_len {}, train.seed {} and data.shuffle {}; with "
                "others the data order "
                "would be another",
                folder, scalars.get<std::int64_t>("seq_len", 0),
                scalars.get<std::int64_t>("seed", 0), scalars.get<bool>("shuffle", false));
  position_.steps = scalars.get<std::int64_t>("position/steps");
  position_.micro_batches = scalars.get<std::int64_t>("position/micro_batches");
  position_.samples = scalars.get<std::int64_t>("position/samples");
  return fmt::format("resumed from {}", folder);
}

// A checkpoint that another program trained: weights, moments and the number of steps, which the
// learning rate follows; where that program stood in its data is not known here.
std::string TrainingRun::start_data_anew(const std::string& folder, std::int64_t steps) {
  TESSERA_CHECK(steps >= 0, ErrorCode::checkpoint, "{}: a training position of {} steps", folder,
                steps);
  position_.steps = steps;
  position_.micro_batches = steps * recipe_.train.gradient_accumulation_steps;
  position_.samples = 0;
  return fmt::format(
      "resumed from {}: weights, moments and step {}; it has no position in the data, whose order "
      "begins anew",
      folder, steps);
}

std::string TrainingRun::save() {
  SaveOptions options;
  options.step = position_.steps;
  options.type = recipe_.checkpoint.state_dict_type;
  options.model_dtype = recipe_.checkpoint.dtype;
  options.keep = static_cast<int>(recipe_.checkpoint.keep);
  options.scalars.set("position/steps", position_.steps)
      .set("position/micro_batches", position_.micro_batches)
      .set("position/samples", position_.samples)
      .set("corpus", samples_->corpus().fingerprint())
      .set("seq_len", recipe_.model.seq_len)
      .set("seed", recipe_.train.seed)
      .set("shuffle", recipe_.data.shuffle);
  options.files["config.json"] = model_->config(recipe_.checkpoint.dtype).dump(2) + "\n";
  options.files["recipe.json"] = to_json(recipe_).dump(2) + "\n";
  return tessera::save(context_, *recipe_.checkpoint.dir, *sharded_, *optimizer_, options);
}

}  // namespace tessera::cli
