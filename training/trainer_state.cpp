// The files of a run: pretrained weights, checkpoints, and the position in them.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text/printable.h"
#include "checkpoint/io/collective.h"
#include "checkpoint/io/file.h"
#include "checkpoint/save/export.h"
#include "checkpoint/sharded_state.h"
#include "launch/restart.h"
#include "models/load/adapter.h"
#include "training/make_task.h"
#include "training/recipe_difference.h"
#include "training/trainer.h"

namespace tessera::cli {
namespace {

std::chrono::milliseconds stall_timeout(const Recipe& recipe) {
  return std::chrono::milliseconds(
      static_cast<std::int64_t>(recipe.checkpoint.stall_timeout * 1000));
}

// The first of several data sets has the name that a single one has.
std::string samples_key(std::size_t data_set) {
  return data_set == 0 ? "position/samples" : fmt::format("position/samples_{}", data_set + 1);
}

const char* name_of(tasks::Mix mix) {
  return mix == tasks::Mix::by_size ? "by_size" : "round_robin";
}

// The keys that decide, beside the data and the seed, which samples a batch has.
void remember_order(const DataRecipe& data, Scalars& scalars) {
  scalars.set("mix", std::string(name_of(data.mix)))
      .set("even_batches", data.even_batches)
      .set("drop_last", data.drop_last);
}

void check_order(const Recipe& recipe, const Scalars& scalars, const std::string& folder) {
  if (!scalars.contains("mix")) return;  // written by an older version without this key
  const DataRecipe& data = recipe.data;
  const auto mix = scalars.get<std::string>("mix");
  const auto even_batches = scalars.get<bool>("even_batches", false);
  const auto drop_last = scalars.get<bool>("drop_last", false);
  TESSERA_CHECK(
      mix == name_of(data.mix) && even_batches == data.even_batches && drop_last == data.drop_last,
      ErrorCode::configuration,
      "{}: the run there has data.mix {}, data.even_batches {} and data.drop_last {}; "
      "with others the data order would be another",
      folder, mix, even_batches, drop_last);
}

}  // namespace

void TrainingRun::load_pretrained() {
  const checkpoint::State state =
      checkpoint::state_of(*sharded_, nullptr, checkpoint::Direction::load);
  std::vector<checkpoint::LogicalTensor> base = models::base_tensors(state.model);
  task_->load_weights(*recipe_.model.pretrained, base);
  if (recipe_.model.adapter) {
    models::load_lora(*recipe_.model.adapter, task_->model(), state.model);
  }
}

// The adapter's data that is not in its tensors: the factor, and PEFT's description.
void TrainingRun::remember_adapter(SaveOptions& options) const {
  if (!adapter_) return;
  options.names = state_names();
  options.model_file = "adapter_model";
  options.max_file_size = 0;
  options.files.erase("config.json");           // else transformers loads a whole model
  options.tensor_folders.insert("classifier");  // it is trained beside the adapters
  options.scalars.set("adapter/scaling", adapter_->scaling());
  const std::string base = std::filesystem::absolute(*recipe_.model.pretrained).string();
  options.files[checkpoint::peft_config_file] =
      to_text(models::peft_config(task_->model(), *adapter_, base));
}

void TrainingRun::check_adapter(const Scalars& scalars, const std::string& folder) const {
  if (!adapter_) return;
  const auto scaling = scalars.get<double>("adapter/scaling");
  const double own = adapter_->scaling();
  TESSERA_CHECK(scaling == own, ErrorCode::configuration,
                "{}: the adapter there is multiplied by {}, and this one's alpha, r and use_rslora "
                "make {}; go on with the same",
                folder, scaling, own);
}

// The launcher has started the ranks again: they go on from their last save, whatever the recipe
// sets for the first start.
bool TrainingRun::resume_restarted(int restart, std::vector<std::string>& notes) {
  if (restart == 0 || line_.launch.empty() || !recipe_.checkpoint.dir) return false;
  const bool found =
      resume_newest(*recipe_.checkpoint.dir, {.launch = line_.launch}, notes).has_value();
  notes.push_back(
      found ? fmt::format("restart {}: from the newest save of this run", restart)
            : fmt::format(
                  "restart {}: this run has saved nothing yet, so it follows checkpoint.resume: {}",
                  restart, recipe_.checkpoint.resume));
  return found;
}

void TrainingRun::look_at_step(const std::string& path) {
  const auto parameters = sharded_->sharded_parameters();
  const bool keeps_pooler =
      !adapter_ && std::any_of(parameters.begin(), parameters.end(), [](const auto& parameter) {
        return parameter.name == models::pooler_weight;
      });
  const auto messages = checkpoint::run_on_all_ranks(
      context_.communicator(), "reading the recipe of a step",
      [&] { return context_.is_main() ? describe_step(path, keeps_pooler) : std::string(); });
  if (messages.front().empty()) return;
  const SavedRecipe saved = parse_step_description(messages.front());
  require_same_training(
      decisive_differences(saved, recipe_, task_->model().config(recipe_.checkpoint.dtype)),
      saved.step);
  step_lacks_pooler_ = keeps_pooler && !saved.has_pooler;
  if (step_lacks_pooler_) load_pretrained();
}

checkpoint::StateNames TrainingRun::names_to_load() const {
  if (!step_lacks_pooler_) return state_names();
  return [](const std::string& name, bool /*trained*/) {
    return name.starts_with("pooler.") ? std::string() : name;
  };
}

std::optional<std::string> TrainingRun::resume_newest(const std::string& dir,
                                                      const checkpoint::CheckpointQuery& search,
                                                      std::vector<std::string>& notes) {
  if (search.launch.empty()) look_at_step(dir);
  const auto loaded = load_latest(context_, dir, *sharded_, *optimizer_, search, names_to_load());
  if (!loaded) return std::nullopt;
  const checkpoint::FoundCheckpoint& found = loaded->found;
  for (const std::string& reason : found.skipped)
    notes.push_back("passed over " + printable(reason));
  notes.push_back(take_position(loaded->scalars, found.path));
  const std::string launch = std::move(line_.launch);
  line_ = found.line;
  line_.launch = launch;
  // A run that goes on in another folder does not need the list of the other runs there.
  if (dir == recipe_.checkpoint.dir) {
    for (const std::string& other : found.others) {
      notes.push_back(fmt::format("the run saved last goes on; {} holds {}", dir, other));
    }
  }
  return found.path;
}

// A step folder, or a folder of steps.
void TrainingRun::resume_from(const std::string& path, std::vector<std::string>& notes) {
  const auto messages = checkpoint::run_on_all_ranks(context_.communicator(), path, [&] {
    const bool one = context_.is_main() &&
                     checkpoint::path_exists(std::filesystem::path(path) / "manifest.json");
    return std::string(one ? "step" : "");
  });
  if (messages.front() == "step") {
    look_at_step(path);
    notes.push_back(
        take_position(load(context_, path, *sharded_, *optimizer_, names_to_load()), path));
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

// A run with a line of steps of its own: its folder may hold steps of other runs, which it leaves
// alone.
void TrainingRun::start_line(const std::string& from, std::vector<std::string>& notes) {
  if (!recipe_.checkpoint.dir) return;
  const std::string& dir = *recipe_.checkpoint.dir;
  checkpoint::RunStart start = checkpoint::start_line(context_.communicator(), dir, from);
  start.line.launch = line_.launch;
  line_ = std::move(start.line);
  for (const std::string& other : start.others) {
    notes.push_back(fmt::format("{} holds {}", dir, other));
  }
}

std::vector<std::string> TrainingRun::resume() {
  std::vector<std::string> notes;
  LaunchOfRanks launch = agree_on_launch(context_.communicator());
  line_.launch = std::move(launch.id);
  // A step of an adapter does not contain the model under it.
  const bool over_a_base = adapter_ && recipe_.model.pretrained;
  if (over_a_base) load_pretrained();
  if (resume_restarted(launch.restarts, notes)) return notes;
  const std::string& mode = recipe_.checkpoint.resume;
  if (mode == "auto" && recipe_.checkpoint.dir) {
    if (resume_newest(*recipe_.checkpoint.dir, {}, notes)) return notes;
  } else if (mode != "auto" && mode != "never") {
    resume_from(mode, notes);
    return notes;
  }
  start_line("", notes);
  if (recipe_.model.pretrained) {
    if (!over_a_base) load_pretrained();
    notes.push_back(fmt::format("weights from {}", *recipe_.model.pretrained));
  }
  if (recipe_.model.adapter) notes.push_back("adapter from " + *recipe_.model.adapter);
  return notes;
}

std::map<std::string, std::string> TrainingRun::files_beside_weights() const {
  std::map<std::string, std::string> files = model_files_.contents;
  for (auto& [name, content] : task_->files(recipe_.checkpoint.dtype)) files[name] = content;
  return files;
}

std::string TrainingRun::take_position(const Scalars& scalars, const std::string& folder) {
  if (!scalars.contains("position/steps") && scalars.contains("step")) {
    return start_data_anew(folder, scalars.get<std::int64_t>("step"));
  }
  TESSERA_CHECK(scalars.contains("position/steps"), ErrorCode::checkpoint,
                "{}: the manifest has no training position; it was not written by tessera train",
                folder);
  check_adapter(scalars, folder);
  task_->check_data(scalars, folder);
  position_.steps = scalars.get<std::int64_t>("position/steps");
  resumed_from_ = folder;
  take_data_position(scalars, folder);
  // A run that had another precision goes on with the first scale.
  if (scaler_ && scalars.contains("loss_scale/factor")) {
    scaler_->restore({scalars.get<double>("loss_scale/factor"),
                      scalars.get<std::int64_t>("loss_scale/good_steps"),
                      scalars.get<std::int64_t>("loss_scale/skipped_steps")});
  }
  return fmt::format("resumed from {}", folder);
}

void TrainingRun::take_data_position(const Scalars& scalars, const std::string& folder) {
  check_order(recipe_, scalars, folder);
  const std::size_t sets = position_.data.next.size();
  TESSERA_CHECK(
      scalars.contains(samples_key(sets - 1)) && !scalars.contains(samples_key(sets)),
      ErrorCode::data,
      "{}: the run in {} was trained on another number of data sets than {}, so its position in "
      "them is lost; give the old data sets, or start again from the weights with model.pretrained",
      where(recipe_, "data.train"), folder, sets);
  position_.data.batches = scalars.get<std::int64_t>("position/micro_batches");
  for (std::size_t set = 0; set < sets; ++set) {
    position_.data.next[set] = scalars.get<std::int64_t>(samples_key(set));
  }
}

// A checkpoint that another program trained: weights, moments and the number of steps, which the
// learning rate follows. The position of that program in its data is not known.
std::string TrainingRun::start_data_anew(const std::string& folder, std::int64_t steps) {
  TESSERA_CHECK(steps >= 0, ErrorCode::checkpoint, "{}: a training position of {} steps", folder,
                steps);
  position_.steps = steps;
  resumed_from_ = folder;
  position_.data = order_->begin();
  position_.data.batches = steps * recipe_.train.gradient_accumulation_steps;
  return fmt::format(
      "resumed from {}: weights, moments and step {}; it has no position in the data, so the data "
      "order starts again",
      folder, steps);
}

std::vector<std::string> TrainingRun::save(const std::optional<tasks::Evaluation>& found) {
  SaveOptions options;
  options.step = position_.steps;
  options.type = recipe_.checkpoint.state_dict_type;
  options.model_dtype = recipe_.checkpoint.dtype;
  options.keep = static_cast<int>(recipe_.checkpoint.keep);
  options.max_file_size = recipe_.checkpoint.max_file_size;
  options.stall_timeout = stall_timeout(recipe_);
  options.scalars.set("position/steps", position_.steps)
      .set("position/micro_batches", position_.data.batches);
  for (std::size_t set = 0; set < position_.data.next.size(); ++set) {
    options.scalars.set(samples_key(set), position_.data.next[set]);
  }
  remember_order(recipe_.data, options.scalars);
  task_->remember_data(options.scalars);
  if (scaler_) {
    const LossScaler::State& state = scaler_->state();
    options.scalars.set("loss_scale/factor", state.factor)
        .set("loss_scale/good_steps", state.good_steps)
        .set("loss_scale/skipped_steps", state.skipped_steps);
  }
  options.files = files_beside_weights();
  options.file_modes = model_files_.modes;
  options.tensor_folders = task_->tensor_folders();
  remember_adapter(options);
  options.files["recipe.json"] = to_json(recipe_).dump(2) + "\n";
  options.keep_best = static_cast<int>(recipe_.checkpoint.keep_best);
  if (found && std::isfinite(found->best_by())) {
    options.score = found->higher_is_better ? -found->best_by() : found->best_by();
    for (const auto& [name, number] : found->numbers) {
      if (std::isfinite(number)) options.scalars.set(name, number);
    }
  }
  const std::string& dir = *recipe_.checkpoint.dir;
  if (!saver_) {
    options.line = line_;
    const auto begin = std::chrono::steady_clock::now();
    const checkpoint::Saved saved = tessera::save(context_, dir, *sharded_, *optimizer_, options);
    record_save(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    return note_saved(saved, "");
  }
  const bool waits = saver_->in_flight() && !saver_->ended();
  const auto asked = std::chrono::steady_clock::now();
  std::vector<std::string> notes = finish_save();
  const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - asked;
  options.line = line_;  // as the last save has left it
  const AsyncSaver::Pause pause = saver_->save(dir, options);
  record_save(pause.copied_seconds);
  std::string note =
      fmt::format("saving step {}: copied in {:.3f} s", position_.steps, pause.copied_seconds);
  if (waits) note += fmt::format(", after {:.3f} s of waiting for the one before", waited.count());
  notes.push_back(std::move(note));
  return notes;
}

void TrainingRun::record_save(double seconds) {
  if (!recorder_) return;
  const std::chrono::nanoseconds now = std::chrono::steady_clock::now().time_since_epoch();
  Span span{SpanKind::save, Lane::save, comm::Phase::checkpoint};
  span.end = now.count();
  span.begin = span.end - static_cast<std::int64_t>(seconds * 1e9);
  recorder_->add(span);
}

std::vector<std::string> TrainingRun::note_saved(const checkpoint::Saved& saved,
                                                 const std::string& how) {
  line_ = saved.line;
  std::vector<std::string> notes{"saved " + saved.path + how};
  for (const std::string& warning : saved.warnings) {
    if (told_.insert(warning).second) notes.push_back("warning: " + warning);
  }
  return notes;
}

std::vector<std::string> TrainingRun::finish_save() {
  if (!saver_) return {};
  const auto finished = saver_->wait();
  if (!finished) return {};
  record_save(finished->seconds);
  return note_saved(finished->saved, fmt::format(" in {:.3f} s", finished->seconds));
}

std::vector<std::string> TrainingRun::finished_save() {
  // All ranks must throw a failure at the same place.
  if (!saver_ || !saver_->ended() || saver_->failed()) return {};
  return finish_save();
}

std::optional<std::string> TrainingRun::export_weights() {
  if (!recipe_.checkpoint.export_folder) return std::nullopt;
  const checkpoint::State state =
      checkpoint::state_of(*sharded_, nullptr, checkpoint::Direction::save);
  std::vector<std::string> lines = checkpoint::export_model(
      context_.communicator(), *recipe_.checkpoint.export_folder, state.model,
      {.dtype = recipe_.checkpoint.dtype,
       .max_file_size = recipe_.checkpoint.max_file_size,
       .files = files_beside_weights(),
       .file_modes = model_files_.modes,
       .tensor_folders = task_->tensor_folders(),
       .stall_timeout = stall_timeout(recipe_)});
  lines.insert(lines.begin(), "exported the weights to " + *recipe_.checkpoint.export_folder);
  return fmt::format("{}", fmt::join(lines, "; "));
}

}  // namespace tessera::cli
