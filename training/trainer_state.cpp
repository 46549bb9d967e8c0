// The files of a run: pretrained weights, checkpoints, and the position in them.
#include <fmt/format.h>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>

#include "base/error.h"
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
bool TrainingRun::resume_restarted(int restart, RunEvents& events) {
  if (restart == 0 || line_.launch.empty() || !recipe_.checkpoint.dir) return false;
  const bool found =
      resume_newest(*recipe_.checkpoint.dir, {.launch = line_.launch}, events).has_value();
  events.push_back(events::Restarted{restart, found});
  return found;
}

void TrainingRun::look_at_step(const std::string& path) {
  const auto parameters = sharded_->sharded_parameters();
  const bool keeps_pooler =
      !adapter_ && std::any_of(parameters.begin(), parameters.end(), [](const auto& parameter) {
        return parameter.name == models::pooler_weight;
      });
  const auto messages = checkpoint::together(
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
                                                      const checkpoint::Search& search,
                                                      RunEvents& events) {
  if (search.launch.empty()) look_at_step(dir);
  const auto loaded = load_latest(context_, dir, *sharded_, *optimizer_, search, names_to_load());
  if (!loaded) return std::nullopt;
  const checkpoint::Found& found = loaded->found;
  for (const std::string& reason : found.skipped) {
    events.push_back(events::StepSkipped{reason});
  }
  events.push_back(take_position(loaded->scalars, found.path));
  const std::string launch = std::move(line_.launch);
  line_ = found.line;
  line_.launch = launch;
  // A run that goes on in another folder does not need the list of the other runs there.
  if (dir == recipe_.checkpoint.dir) {
    for (const std::string& other : found.others) {
      events.push_back(events::OtherRun{dir, other, true});
    }
  }
  return found.path;
}

// A step folder, or a folder of steps.
void TrainingRun::resume_from(const std::string& path, RunEvents& events) {
  const auto messages = checkpoint::together(context_.communicator(), path, [&] {
    const bool one = context_.is_main() &&
                     checkpoint::path_exists(std::filesystem::path(path) / "manifest.json");
    return std::string(one ? "step" : "");
  });
  if (messages.front() == "step") {
    look_at_step(path);
    events.push_back(
        take_position(load(context_, path, *sharded_, *optimizer_, names_to_load()), path));
    start_line(path, events);
    return;
  }
  const auto found = resume_newest(path, {}, events);
  TESSERA_CHECK(
      found.has_value(), ErrorCode::checkpoint,
      "{}: checkpoint.resume: {} has no committed checkpoint (step-N with a manifest.json)",
      where(recipe_, "checkpoint.resume"), path);
  if (path != recipe_.checkpoint.dir) start_line(*found, events);
}

// A run with a line of steps of its own: its folder may hold steps of other runs, which it leaves
// alone.
void TrainingRun::start_line(const std::string& from, RunEvents& events) {
  if (!recipe_.checkpoint.dir) return;
  const std::string& dir = *recipe_.checkpoint.dir;
  checkpoint::Start start = checkpoint::start_line(context_.communicator(), dir, from);
  start.line.launch = line_.launch;
  line_ = std::move(start.line);
  for (const std::string& other : start.others) {
    events.push_back(events::OtherRun{dir, other});
  }
}

RunEvents TrainingRun::resume() {
  RunEvents events;
  LaunchOfRanks launch = agree_on_launch(context_.communicator());
  line_.launch = std::move(launch.id);
  // A step of an adapter does not contain the model under it.
  const bool over_a_base = adapter_ && recipe_.model.pretrained;
  if (over_a_base) load_pretrained();
  if (resume_restarted(launch.restarts, events)) return events;
  const std::string& mode = recipe_.checkpoint.resume;
  if (mode == "auto" && recipe_.checkpoint.dir) {
    if (resume_newest(*recipe_.checkpoint.dir, {}, events)) return events;
  } else if (mode != "auto" && mode != "never") {
    resume_from(mode, events);
    return events;
  }
  start_line("", events);
  if (recipe_.model.pretrained) {
    if (!over_a_base) load_pretrained();
    events.push_back(events::WeightsLoaded{*recipe_.model.pretrained});
  }
  if (recipe_.model.adapter) events.push_back(events::WeightsLoaded{*recipe_.model.adapter, true});
  return events;
}

std::map<std::string, std::string> TrainingRun::files_beside_weights() const {
  std::map<std::string, std::string> files = model_files_;
  for (auto& [name, content] : task_->files(recipe_.checkpoint.dtype)) files[name] = content;
  return files;
}

events::Resumed TrainingRun::take_position(const Scalars& scalars, const std::string& folder) {
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
  return {folder, position_.steps};
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
events::Resumed TrainingRun::start_data_anew(const std::string& folder, std::int64_t steps) {
  TESSERA_CHECK(steps >= 0, ErrorCode::checkpoint, "{}: a training position of {} steps", folder,
                steps);
  position_.steps = steps;
  resumed_from_ = folder;
  position_.data = order_->begin();
  position_.data.batches = steps * recipe_.train.gradient_accumulation_steps;
  return {folder, steps, false};
}

RunEvents TrainingRun::save(const std::optional<tasks::Evaluation>& found) {
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
    return saved_events(saved);
  }
  const bool waits = saver_->in_flight() && !saver_->ended();
  const auto asked = std::chrono::steady_clock::now();
  RunEvents events = finish_save();
  const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - asked;
  options.line = line_;  // as the last save has left it
  const AsyncSaver::Pause pause = saver_->save(dir, options);
  record_save(pause.copied_seconds);
  events::SaveBegun begun{position_.steps, pause.copied_seconds};
  if (waits) begun.waited_seconds = waited.count();
  events.push_back(begun);
  return events;
}

void TrainingRun::record_save(double seconds) {
  if (!recorder_) return;
  const std::chrono::nanoseconds now = std::chrono::steady_clock::now().time_since_epoch();
  Span span{SpanKind::save, Lane::save, comm::Phase::checkpoint};
  span.end = now.count();
  span.begin = span.end - static_cast<std::int64_t>(seconds * 1e9);
  recorder_->add(span);
}

RunEvents TrainingRun::saved_events(const checkpoint::Saved& saved, std::optional<double> seconds) {
  line_ = saved.line;
  RunEvents events{events::Saved{saved.path, seconds}};
  for (const std::string& warning : saved.warnings) {
    if (warned_.insert(warning).second) events.push_back(events::Warning{warning});
  }
  return events;
}

RunEvents TrainingRun::finish_save() {
  if (!saver_) return {};
  const auto finished = saver_->wait();
  if (!finished) return {};
  record_save(finished->seconds);
  return saved_events(finished->saved, finished->seconds);
}

RunEvents TrainingRun::finished_save() {
  // All ranks must throw a failure at the same place.
  if (!saver_ || !saver_->ended() || saver_->failed()) return {};
  return finish_save();
}

RunEvents TrainingRun::export_weights() {
  if (!recipe_.checkpoint.export_folder) return {};
  const checkpoint::State state =
      checkpoint::state_of(*sharded_, nullptr, checkpoint::Direction::save);
  checkpoint::export_model(context_.communicator(), *recipe_.checkpoint.export_folder, state.model,
                           {.dtype = recipe_.checkpoint.dtype,
                            .max_file_size = recipe_.checkpoint.max_file_size,
                            .files = files_beside_weights(),
                            .tensor_folders = task_->tensor_folders(),
                            .stall_timeout = stall_timeout(recipe_)});
  return {events::Exported{*recipe_.checkpoint.export_folder}};
}

}  // namespace tessera::cli
