// Chooses the traced steps, and keeps the file valid JSON in between.
#include "logs/trace_log.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "sharding/profiler/trace.h"
#include "trainer/trainer.h"

namespace tessera::logs {
namespace {

// By default: the first steps after the warm-up.
constexpr std::int64_t warmup_steps = 3;
constexpr std::int64_t default_steps = 3;

// The bytes of the beginning and of events of steps up to `resume_step`. For 0 steps: nothing.
std::int64_t trace_bytes_to_keep(const std::filesystem::path& path, std::int64_t resume_step) {
  const std::string mark = "\"format\":\"tessera-trace\"";
  const auto begins = [](std::string_view line) { return trace_begin().starts_with(line); };
  const auto stays = [&](const std::string& line, std::int64_t number) {
    TESSERA_CHECK(number > 1 || line.find(mark) != std::string::npos, ErrorCode::configuration,
                  "log.trace: {} exists and is not a trace of a run; name another file",
                  path.string());
    if (number == 1 || line.find("\"ph\":\"M\"") != std::string::npos) return true;
    if (!line.starts_with(',')) return false;
    const auto event = nlohmann::json::parse(line.substr(1), nullptr, false);
    const auto step = nlohmann::json::json_pointer("/args/step");
    return event.is_object() && event.contains(step) && event[step].is_number_integer() &&
           event[step].get<std::int64_t>() <= resume_step;
  };
  const std::int64_t kept = bytes_of_lines("log.trace", path, begins, stays);
  return resume_step == 0 ? 0 : kept;
}

}  // namespace

TraceLog::TraceLog(const training::Recipe& recipe, const Context& context,
                   std::int64_t steps_done) {
  if (recipe.log.trace_steps) {
    first_ = (*recipe.log.trace_steps)[0];
    last_ = (*recipe.log.trace_steps)[1];
  } else {
    last_ = std::min(steps_done + warmup_steps + default_steps, recipe.train.steps);
    first_ = std::max(steps_done + 1, last_ - default_steps + 1);
  }
  if (!context.is_main()) return;
  file_.emplace("log.trace", *recipe.log.trace, [steps_done](const std::filesystem::path& path) {
    return trace_bytes_to_keep(path, steps_done);
  });
}

void TraceLog::begin(int ranks) {
  if (!file_) return;
  file_->begin();
  if (file_->bytes() == 0) file_->append(trace_begin(), 0);
  file_->append(trace_names(ranks), 0);
  body_bytes_ = file_->bytes();
  if (file_->is_regular()) file_->append(trace_end(), 0);
}

void TraceLog::end_step(const Trainer& training) {
  const std::int64_t step = training.position().steps;
  if (step < first_ || step > last_ || step <= traced_) return;
  traced_ = step;
  StepRecorder& recorder = training.recorder();
  recorder.complete();
  const std::vector<StepRecord> records = gather_records(training.context(), recorder.last());
  if (!file_) return;
  const std::string events = trace_events(records, recorder.units());
  try {
    if (file_->is_regular()) file_->cut(body_bytes_);
    file_->append(events, step);
    const std::int64_t body_bytes = file_->bytes();
    if (file_->is_regular() || step == last_) file_->append(trace_end(), step);
    body_bytes_ = body_bytes;
  } catch (const Error&) {
    if (file_->is_regular()) end_without_step(step);
    throw;
  }
}

// Restores the closing text that was there before, for which there was room.
void TraceLog::end_without_step(std::int64_t step) {
  try {
    file_->cut(body_bytes_);
    file_->append(trace_end(), step);
  } catch (const Error&) {
    // The file system refuses this as well; the user gets the first error.
  }
}

}  // namespace tessera::logs
