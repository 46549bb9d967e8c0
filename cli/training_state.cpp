// What a run reads and writes: pretrained weights, checkpoints, the position in them.
#include <fmt/format.h>
#include <chrono>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "checkpoint/collective.h"
#include "checkpoint/export.h"
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

std::chrono::milliseconds stall_timeout(const Recipe& recipe) {
  return std::chrono::milliseconds(
      static_cast<std::int64_t>(recipe.checkpoint.stall_timeout * 1000));
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
      load_checkpoint(found->path);
      notes.push_back(fmt::format("resumed from {}", found->path));
      return notes;
    }
  } else if (mode != "auto" && mode != "never") {
    // A step folder, or a folder of steps.
    const std::filesystem::path path = mode;
    if (std::filesystem::exists(path / "manifest.json")) {
      load_checkpoint(mode);
      return {fmt::format("resumed from {}", mode)};
    }
    const auto found = checkpoint::find_latest(context_.communicator(), path);
    TESSERA_CHECK(
        found.has_value(), ErrorCode::checkpoint,
        "{}: checkpoint.resume: {} has no committed checkpoint (step-N with a manifest.json)",
        where(recipe_, "checkpoint.resume"), mode);
    load_checkpoint(found->path);
    return {fmt::format("resumed from {}", found->path)};
  }
  if (recipe_.model.pretrained) {
    load_pretrained();
    notes.push_back(fmt::format("weights from {}", *recipe_.model.pretrained));
  }
  return notes;
}

void TrainingRun::prepare_folder() {
  const CheckpointRecipe& wanted = recipe_.checkpoint;
  const auto on_main = [this](const char* key, const std::function<void()>& work) {
    checkpoint::together(context_.communicator(), where(recipe_, key), [this, &work] {
      if (context_.is_main()) work();
      return std::string();
    });
  };
  if (saves()) {
    on_main("checkpoint.dir", [&] { checkpoint::create_folders(*wanted.dir); });
  }
  if (wanted.export_folder) {
    on_main("checkpoint.export", [&] { checkpoint::check_export_folder(*wanted.export_folder); });
  }
  if (recipe_.model.pretrained && (saves() || wanted.export_folder)) {
    on_main("model.pretrained",
            [&] { model_files_ = checkpoint::read_model_files(*recipe_.model.pretrained); });
  }
}

std::map<std::string, std::string> TrainingRun::files_beside_weights() const {
  std::map<std::string, std::string> files = model_files_;
  files["config.json"] = model_->config(recipe_.checkpoint.dtype).dump(2) + "\n";
  return files;
}

void TrainingRun::load_checkpoint(const std::string& folder) {
  const Scalars scalars = load(context_, folder, *sharded_, *optimizer_);
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
}

std::vector<std::string> TrainingRun::save() {
  SaveOptions options;
  options.step = position_.steps;
  options.type = recipe_.checkpoint.state_dict_type;
  options.model_dtype = recipe_.checkpoint.dtype;
  options.keep = static_cast<int>(recipe_.checkpoint.keep);
  options.max_file_size = recipe_.checkpoint.max_file_size;
  options.stall_timeout = stall_timeout(recipe_);
  options.scalars.set("position/steps", position_.steps)
      .set("position/micro_batches", position_.micro_batches)
      .set("position/samples", position_.samples)
      .set("corpus", samples_->corpus().fingerprint())
      .set("seq_len", recipe_.model.seq_len)
      .set("seed", recipe_.train.seed)
      .set("shuffle", recipe_.data.shuffle);
  options.files = files_beside_weights();
  options.files["recipe.json"] = to_json(recipe_).dump(2) + "\n";
  const std::string& dir = *recipe_.checkpoint.dir;
  if (!saver_) return {"saved " + tessera::save(context_, dir, *sharded_, *optimizer_, options)};
  std::vector<std::string> notes;
  const bool waits = saver_->in_flight() && !saver_->ended();
  const auto asked = std::chrono::steady_clock::now();
  if (auto earlier = finish_save()) notes.push_back(std::move(*earlier));
  const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - asked;
  const AsyncSaver::Pause pause = saver_->save(dir, options);
  std::string note =
      fmt::format("saving step {}: copied in {:.3f} s", position_.steps, pause.copied_seconds);
  if (waits) note += fmt::format(", after {:.3f} s of waiting for the one before", waited.count());
  notes.push_back(std::move(note));
  return notes;
}

std::optional<std::string> TrainingRun::finish_save() {
  if (!saver_) return std::nullopt;
  const auto saved = saver_->wait();
  if (!saved) return std::nullopt;
  return fmt::format("saved {} in {:.3f} s", saved->path, saved->seconds);
}

std::optional<std::string> TrainingRun::finished_save() {
  // A failure is for all ranks to throw at one place.
  return saver_ && saver_->ended() && !saver_->failed() ? finish_save() : std::nullopt;
}

std::optional<std::string> TrainingRun::export_weights() {
  if (!recipe_.checkpoint.export_folder) return std::nullopt;
  const checkpoint::State state =
      checkpoint::state_of(*sharded_, nullptr, checkpoint::Direction::save);
  checkpoint::export_model(context_.communicator(), *recipe_.checkpoint.export_folder, state.model,
                           {.dtype = recipe_.checkpoint.dtype,
                            .max_file_size = recipe_.checkpoint.max_file_size,
                            .files = files_beside_weights(),
                            .stall_timeout = stall_timeout(recipe_)});
  return "exported the weights to " + *recipe_.checkpoint.export_folder;
}

}  // namespace tessera::cli
