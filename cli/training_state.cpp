// What a run reads and writes: pretrained weights, checkpoints, the position in them.
#include <fmt/format.h>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "checkpoint/collective.h"
#include "checkpoint/file.h"
#include "checkpoint/sharded_state.h"
#include "cli/restart.h"
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

// The launcher started the ranks again: what they had saved, they go on from, whatever the recipe
// says about the first start.
bool TrainingRun::resume_restarted(std::vector<std::string>& notes) {
  const int restart = restart_count();
  if (restart == 0 || line_.launch.empty() || !recipe_.checkpoint.dir) return false;
  const bool found =
      resume_newest(*recipe_.checkpoint.dir, {.launch = line_.launch}, notes).has_value();
  notes.push_back(found ? fmt::format("restart {}: from the newest save of this run", restart)
                        : fmt::format("restart {}: this run has saved nothing yet, so it begins as "
                                      "checkpoint.resume: {} says",
                                      restart, recipe_.checkpoint.resume));
  return found;
}

std::optional<std::string> TrainingRun::resume_newest(const std::string& dir,
                                                      const checkpoint::Search& search,
                                                      std::vector<std::string>& notes) {
  const auto loaded = load_latest(context_, dir, *sharded_, *optimizer_, search);
  if (!loaded) return std::nullopt;
  const checkpoint::Found& found = loaded->found;
  for (const std::string& reason : found.skipped) notes.push_back("passed over " + reason);
  take_position(loaded->scalars, found.path);
  const std::string launch = std::move(line_.launch);
  line_ = found.line;
  line_.launch = launch;
  notes.push_back(fmt::format("resumed from {}", found.path));
  // A run that goes on in another folder hears of the others there.
  if (dir == recipe_.checkpoint.dir) {
    for (const std::string& other : found.others) {
      notes.push_back(fmt::format("the run saved last goes on; {} holds {}", dir, other));
    }
  }
  return found.path;
}

// A step folder, or a folder of steps.
void TrainingRun::resume_from(const std::string& path, std::vector<std::string>& notes) {
  const auto messages = checkpoint::together(context_.communicator(), path, [&] {
    const bool one = context_.is_main() &&
                     checkpoint::path_exists(std::filesystem::path(path) / "manifest.json");
    return std::string(one ? "step" : "");
  });
  if (messages.front() == "step") {
    take_position(load(context_, path, *sharded_, *optimizer_), path);
    notes.push_back(fmt::format("resumed from {}", path));
    start_line(path, notes);
    return;
  }
  const auto found = resume_newest(path, {}, notes);
  TESSERA_CHECK(
      found.has_value(), ErrorCode::checkpoint,
      "{}: checkpoint.resume: {} has no committed checkpoint (step-N with a manifest.json)",
      where(recipe_, "checkpoint.resume"), path);
  if (path != recipe_.checkpoint.dir) start_line(*found, notes);
}

// A run of its own: its folder may hold steps of others, which it leaves alone.
void TrainingRun::start_line(const std::string& from, std::vector<std::string>& notes) {
  if (!recipe_.checkpoint.dir) return;
  const std::string& dir = *recipe_.checkpoint.dir;
  checkpoint::Start start = checkpoint::start_line(context_.communicator(), dir, from);
  start.line.launch = line_.launch;
  line_ = std::move(start.line);
  for (const std::string& other : start.others) {
    notes.push_back(fmt::format("{} holds {}", dir, other));
  }
}

std::vector<std::string> TrainingRun::resume() {
  std::vector<std::string> notes;
  line_.launch = launch_id();
  if (resume_restarted(notes)) return notes;
  const std::string& mode = recipe_.checkpoint.resume;
  if (mode == "auto" && recipe_.checkpoint.dir) {
    if (resume_newest(*recipe_.checkpoint.dir, {}, notes)) return notes;
  } else if (mode != "auto" && mode != "never") {
    resume_from(mode, notes);
    return notes;
  }
  start_line("", notes);
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

void TrainingRun::take_position(const Scalars& scalars, const std::string& folder) {
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

std::vector<std::string> TrainingRun::save(std::optional<double> valid_loss) {
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
  options.line = line_;
  options.keep_best = static_cast<int>(recipe_.checkpoint.keep_best);
  if (valid_loss && std::isfinite(*valid_loss)) {
    options.score = valid_loss;
    options.scalars.set("valid_loss", *valid_loss);
  }
  return take(tessera::save(context_, *recipe_.checkpoint.dir, *sharded_, *optimizer_, options));
}

// What is saved next has this save as its parent.
std::vector<std::string> TrainingRun::take(const checkpoint::Saved& saved) {
  line_ = saved.line;
  std::vector<std::string> notes = {"saved " + saved.path};
  for (const std::string& warning : saved.warnings) {
    if (told_.insert(warning).second) notes.push_back("warning: " + warning);
  }
  return notes;
}

}  // namespace tessera::cli
