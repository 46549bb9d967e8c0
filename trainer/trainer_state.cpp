// The files of a run: initial weights, checkpoints, and the position in them.
#include <fmt/format.h>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>

#include "base/error.h"
#include "checkpoint/io/collective.h"
#include "checkpoint/io/file.h"
#include "checkpoint/save/export.h"
#include "checkpoint/sharded_state.h"
#include "trainer/restart.h"
#include "trainer/trainer.h"

namespace tessera {
namespace {

// The first of several data sets has the name that a single one has.
std::string samples_key(std::size_t data_set) {
  return data_set == 0 ? "position/samples" : fmt::format("position/samples_{}", data_set + 1);
}

const char* name_of(tasks::Mix mix) {
  return mix == tasks::Mix::by_size ? "by_size" : "round_robin";
}

// The options that decide, beside the data and the seed, which samples a batch has.
void remember_order(const tasks::BatchOrderOptions& data, Scalars& scalars) {
  scalars.set("mix", std::string(name_of(data.mix)))
      .set("even_batches", data.even_batches)
      .set("drop_last", data.drop_last);
}

void check_order(const tasks::BatchOrderOptions& data, const Scalars& scalars,
                 const std::string& folder) {
  if (!scalars.contains("mix")) return;  // written by an older version without this key
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

void Trainer::load_initial_weights() {
  const InitialWeights& weights = options_.initial_weights;
  if (weights.load) {
    checkpoint::State state = checkpoint::state_of(*sharded_, nullptr, checkpoint::Direction::load);
    weights.load(state.model);
  }
  if (weights.complete) weights.complete(*sharded_);
}

// The launcher has started the ranks again: they go on from their last save, whatever the options
// set for the first start.
bool Trainer::resume_restarted(int restart, RunEvents& events) {
  if (restart == 0 || line_.launch.empty() || options_.checkpoint.dir.empty()) return false;
  RunEvents resumed;
  const bool found =
      resume_newest(options_.checkpoint.dir, {.launch = line_.launch}, resumed).has_value();
  events.push_back(events::Restarted{restart, found});
  events.insert(events.end(), resumed.begin(), resumed.end());
  return found;
}

std::optional<events::SettingsChanged> Trainer::check_step(const std::string& path) {
  if (!options_.checks.before_load) return std::nullopt;
  CheckedStep checked = options_.checks.before_load(*sharded_, path);
  if (checked.names) {
    names_to_load_ = std::move(*checked.names);
    load_initial_weights();
  }
  return std::move(checked.changed);
}

LoadOptions Trainer::load_options() const {
  return {.names = names_to_load_,
          .way_out =
              "make the model as it was saved, or begin a new run with checkpoint.resume: "
              "never"};
}

std::optional<std::string> Trainer::resume_newest(const std::string& dir,
                                                  const checkpoint::CheckpointQuery& search,
                                                  RunEvents& events) {
  std::optional<events::SettingsChanged> changed;
  if (search.launch.empty()) changed = check_step(dir);
  const auto loaded = load_latest(context_, dir, *sharded_, *optimizer_, load_options(), search);
  if (!loaded) return std::nullopt;
  const checkpoint::FoundCheckpoint& found = loaded->found;
  for (const std::string& reason : found.skipped) {
    events.push_back(events::StepSkipped{reason});
  }
  events.push_back(take_position(loaded->scalars, found.path));
  if (changed) events.push_back(*std::move(changed));
  const std::string launch = std::move(line_.launch);
  line_ = found.line;
  line_.launch = launch;
  // A run that goes on in another folder does not need the list of the other runs there.
  if (dir == options_.checkpoint.dir) {
    for (const std::string& other : found.others) {
      events.push_back(events::OtherRun{dir, other, true});
    }
  }
  return found.path;
}

// A step folder, or a folder of steps.
void Trainer::resume_from(const std::string& path, RunEvents& events) {
  const auto messages = checkpoint::run_on_all_ranks(context_.communicator(), path, [&] {
    const bool one = context_.is_main() &&
                     checkpoint::path_exists(std::filesystem::path(path) / "manifest.json");
    return std::string(one ? "step" : "");
  });
  if (messages.front() == "step") {
    std::optional<events::SettingsChanged> changed = check_step(path);
    events.push_back(
        take_position(load(context_, path, *sharded_, *optimizer_, load_options()).scalars, path));
    if (changed) events.push_back(*std::move(changed));
    start_line(path, events);
    return;
  }
  const auto found = resume_newest(path, {}, events);
  TESSERA_CHECK(
      found.has_value(), ErrorCode::checkpoint,
      "{}: checkpoint.resume: {} has no committed checkpoint (step-N with a manifest.json)",
      options_.names.place("checkpoint.resume"), path);
  if (path != options_.checkpoint.dir) start_line(*found, events);
}

// A run with a line of steps of its own: its folder may hold steps of other runs, which it leaves
// alone.
void Trainer::start_line(const std::string& from, RunEvents& events) {
  const std::string& dir = options_.checkpoint.dir;
  if (dir.empty()) return;
  checkpoint::RunStart start = checkpoint::start_line(context_.communicator(), dir, from);
  start.line.launch = line_.launch;
  line_ = std::move(start.line);
  for (const std::string& other : start.others) {
    events.push_back(events::OtherRun{dir, other});
  }
}

RunEvents Trainer::resume() {
  TESSERA_REQUIRE(may_resume_,
                  "resume() comes once, before the first step and save: make a new Trainer");
  return guard_.run("resume()", RunGuard::Needs::everything, [this] { return find_begin(); });
}

RunEvents Trainer::find_begin() {
  RunEvents events;
  may_resume_ = false;
  has_line_ = true;
  check_is_folder();
  LaunchOfRanks launch = agree_on_launch(context_.communicator());
  line_.launch = std::move(launch.id);
  const InitialWeights& weights = options_.initial_weights;
  if (weights.under_steps) load_initial_weights();
  if (resume_restarted(launch.restarts, events)) return events;
  const std::string& mode = options_.checkpoint.resume;
  const std::string& dir = options_.checkpoint.dir;
  if (mode == "auto" && !dir.empty()) {
    if (resume_newest(dir, {}, events)) return events;
  } else if (mode != "auto" && mode != "never") {
    resume_from(mode, events);
    return events;
  }
  start_line("", events);
  if (!weights.under_steps) load_initial_weights();
  events.insert(events.end(), weights.from.begin(), weights.from.end());
  return events;
}

std::map<std::string, std::string> Trainer::files_beside_weights() const {
  std::map<std::string, std::string> files = files_.contents;
  for (auto& [name, content] : task_->files(options_.checkpoint.save.model_dtype)) {
    files[name] = content;
  }
  return files;
}

events::Resumed Trainer::take_position(const Scalars& scalars, const std::string& folder) {
  if (!scalars.contains("position/steps") && scalars.contains("step")) {
    return start_data_anew(folder, scalars.get<std::int64_t>("step"));
  }
  TESSERA_CHECK(scalars.contains("position/steps"), ErrorCode::checkpoint,
                "{}: the manifest has no training position; it was not written by tessera train",
                folder);
  if (options_.checks.after_load) options_.checks.after_load(scalars, folder);
  task_->check_data(scalars, folder);
  position_.steps = scalars.get<std::int64_t>("position/steps");
  resumed_from_ = newest_step_ = folder;
  take_data_position(scalars, folder);
  take_state(scalars);
  shares_->restore(scalars, folder);
  return {folder, position_.steps};
}

void Trainer::take_state(const Scalars& scalars) {
  // A run that had another precision goes on with the first scale.
  if (scaler_ && scalars.contains("loss_scale/factor")) {
    scaler_->restore({scalars.get<double>("loss_scale/factor"),
                      scalars.get<std::int64_t>("loss_scale/good_steps"),
                      scalars.get<std::int64_t>("loss_scale/skipped_steps")});
  }
  spikes_.restore(scalars);
}

// After a step that was skipped. The parameters, the moments and the number of steps become those
// of the newest checkpoint; the data goes on behind the spike, so that what led to it does not come
// again.
void Trainer::roll_back(Spike& spike) {
  late_events_ = finish_save();
  spike.done = SpikeAction::skip;
  if (newest_step_.empty()) return;
  if (std::exchange(rolled_back_to_, newest_step_) != newest_step_) rollbacks_ = 0;
  if (++rollbacks_ >= SpikeWatch::most_in_a_row) end_by(spike, rollbacks_);
  LoadOptions loading = load_options();
  if (newest_step_ != resumed_from_) loading.names = options_.checkpoint.save.names;
  const Scalars scalars = load(context_, newest_step_, *sharded_, *optimizer_, loading).scalars;
  position_.steps = scalars.get<std::int64_t>("position/steps");
  take_state(scalars);
  spike.done = SpikeAction::rollback;
  spike.to = position_.steps;
}

void Trainer::take_data_position(const Scalars& scalars, const std::string& folder) {
  check_order(options_.data, scalars, folder);
  const std::size_t sets = position_.data.next.size();
  TESSERA_CHECK(
      scalars.contains(samples_key(sets - 1)) && !scalars.contains(samples_key(sets)),
      ErrorCode::data,
      "{}: the run in {} was trained on another number of data sets than {}, so its position in "
      "them is lost; give the old data sets, or start again from the weights with {}",
      options_.names.place("data.train"), folder, sets, options_.names.initial_weights);
  position_.data.batches = scalars.get<std::int64_t>("position/micro_batches");
  for (std::size_t set = 0; set < sets; ++set) {
    position_.data.next[set] = scalars.get<std::int64_t>(samples_key(set));
  }
}

// A checkpoint that another program trained: weights, moments and the number of steps, which the
// learning rate follows. The position of that program in its data is not known.
events::Resumed Trainer::start_data_anew(const std::string& folder, std::int64_t steps) {
  TESSERA_CHECK(steps >= 0, ErrorCode::checkpoint, "{}: a training position of {} steps", folder,
                steps);
  position_.steps = steps;
  resumed_from_ = folder;
  position_.data = order_->begin();
  position_.data.batches =
      options_.accumulation_ramp.sum(steps, options_.gradient_accumulation_steps);
  return {folder, steps, false};
}

SaveOptions Trainer::save_options(const std::optional<tasks::Evaluation>& found) const {
  SaveOptions options = options_.checkpoint.save;
  options.step = position_.steps;
  options.scalars.set("position/steps", position_.steps)
      .set("position/micro_batches", position_.data.batches);
  for (std::size_t set = 0; set < position_.data.next.size(); ++set) {
    options.scalars.set(samples_key(set), position_.data.next[set]);
  }
  remember_order(options_.data, options.scalars);
  task_->remember_data(options.scalars);
  spikes_.save(options.scalars);
  shares_->save(options.scalars);
  if (scaler_) {
    const LossScaler::State& state = scaler_->state();
    options.scalars.set("loss_scale/factor", state.factor)
        .set("loss_scale/good_steps", state.good_steps)
        .set("loss_scale/skipped_steps", state.skipped_steps);
  }
  options.files.merge(files_beside_weights());
  options.file_modes = files_.modes;
  for (const std::string& name : options_.checkpoint.left_out) options.files.erase(name);
  options.tensor_folders.merge(task_->tensor_folders());
  if (found && std::isfinite(found->best_by())) {
    options.score = found->higher_is_better ? -found->best_by() : found->best_by();
    for (const auto& [name, number] : found->numbers) {
      if (std::isfinite(number)) options.scalars.set(name, number);
    }
  }
  return options;
}

RunEvents Trainer::save(const std::optional<tasks::Evaluation>& found) {
  guard_.require("save()", RunGuard::Needs::last_step);
  const std::string& dir = options_.checkpoint.dir;
  TESSERA_REQUIRE(!dir.empty(), "save() without a folder: set checkpoint.dir");
  SaveOptions options = save_options(found);
  may_resume_ = false;
  RunEvents events;
  begin_line(events);
  warn_of_missing_score(options.score, found, events);
  const auto add = [&events](RunEvents more) {
    events.insert(events.end(), more.begin(), more.end());
  };
  if (!saver_) {
    options.line = line_;
    const auto begin = std::chrono::steady_clock::now();
    const checkpoint::Saved saved = tessera::save(context_, dir, *sharded_, *optimizer_, options);
    record_save(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    add(saved_events(saved));
    return events;
  }
  const bool waits = saver_->in_flight() && !saver_->ended();
  const auto asked = std::chrono::steady_clock::now();
  add(finish_save());
  const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - asked;
  options.line = line_;  // as the last save has left it
  const AsyncSaver::Pause pause = saver_->save(dir, options);
  record_save(pause.copied_seconds);
  events::SaveBegun begun{position_.steps, pause.copied_seconds};
  if (waits) begun.waited_seconds = waited.count();
  events.push_back(begun);
  return events;
}

void Trainer::record_save(double seconds) {
  if (!recorder_) return;
  const std::chrono::nanoseconds now = std::chrono::steady_clock::now().time_since_epoch();
  Span span{SpanKind::save, Lane::save, comm::Phase::checkpoint};
  span.end = now.count();
  span.begin = span.end - static_cast<std::int64_t>(seconds * 1e9);
  recorder_->add(span);
}

// A run that did not call resume() leaves the steps in its folder alone.
void Trainer::begin_line(RunEvents& events) {
  if (has_line_) return;
  line_.launch = agree_on_launch(context_.communicator()).id;
  start_line("", events);
  has_line_ = true;
}

// A save that a signal asks for needs no evaluation.
void Trainer::warn_of_missing_score(std::optional<double> score,
                                    const std::optional<tasks::Evaluation>& found,
                                    RunEvents& events) {
  if (options_.checkpoint.save.keep_best == 0 || score) return;
  if (found) {
    warn(fmt::format("keep_best: {} is not finite, so the step is none of the best",
                     found->numbers.front().first),
         events);
  } else if (interruption_ == 0 && !save_requested()) {
    warn(
        "keep_best: save() got no evaluation, so the step is none of the best; pass what "
        "evaluate() returns",
        events);
  }
}

void Trainer::warn(const std::string& text, RunEvents& events) {
  if (warned_.insert(text).second) events.push_back(events::Warning{text});
}

RunEvents Trainer::saved_events(const checkpoint::Saved& saved, std::optional<double> seconds) {
  line_ = saved.line;
  newest_step_ = saved.path;
  RunEvents events{events::Saved{saved.path, seconds}};
  for (const std::string& warning : saved.warnings) warn(warning, events);
  return events;
}

RunEvents Trainer::finish_save() {
  RunEvents events = std::exchange(late_events_, {});
  if (!saver_) return events;
  const auto finished = saver_->wait();
  if (!finished) return events;
  record_save(finished->seconds);
  for (RunEvent& event : saved_events(finished->saved, finished->seconds)) {
    events.push_back(std::move(event));
  }
  return events;
}

RunEvents Trainer::finished_save() {
  // All ranks must throw a failure at the same place.
  if (!saver_ || !saver_->ended() || saver_->failed()) return std::exchange(late_events_, {});
  return finish_save();
}

RunEvents Trainer::export_weights() {
  const CheckpointOptions& wanted = options_.checkpoint;
  guard_.require("export_weights()", RunGuard::Needs::last_step);
  if (wanted.export_folder.empty()) return {};
  const std::vector<checkpoint::LogicalTensor> model =
      checkpoint::model_of(*sharded_, optimizer_.get(), checkpoint::Direction::save);
  const std::vector<std::string> notes =
      checkpoint::export_model(context_.communicator(), wanted.export_folder, model,
                               {.dtype = wanted.save.model_dtype,
                                .max_file_size = wanted.save.max_file_size,
                                .files = files_beside_weights(),
                                .file_modes = files_.modes,
                                .tensor_folders = task_->tensor_folders(),
                                .stall_timeout = wanted.save.stall_timeout});
  RunEvents events{events::Exported{wanted.export_folder}};
  for (const std::string& note : notes) events.push_back(events::Warning{note});
  return events;
}

}  // namespace tessera
