// Checks before the first step that a run can write its results.
#include <fmt/format.h>
#include <algorithm>
#include <functional>

#include "base/counted.h"
#include "base/error.h"
#include "base/text/byte_size.h"
#include "checkpoint/io/collective.h"
#include "checkpoint/io/file.h"
#include "checkpoint/save/export.h"
#include "checkpoint/steps/lineage.h"
#include "training/make_task.h"
#include "training/trainer.h"

namespace tessera::cli {

TrainingRun::SaveBytes TrainingRun::bytes_of_save() const {
  const checkpoint::StateNames names = state_names();
  const auto states = static_cast<std::uint64_t>(optimizer_->state_names().size());
  SaveBytes bytes;
  for (const ShardedParameter& parameter : sharded_->sharded_parameters()) {
    const Tensor& local = parameter.local;
    const bool trained = local.requires_grad();
    if (names && names(parameter.name, trained).empty()) continue;
    const auto elements = static_cast<std::uint64_t>(parameter.shape.elements());
    const DType stored = is_floating(local.dtype()) ? recipe_.checkpoint.dtype : local.dtype();
    bytes.model += elements * size_of(stored);
    if (trained) bytes.optimizer += elements * size_of(local.dtype()) * states;
  }
  return bytes;
}

// Rank 0's. Checks that the saves of the remaining steps fit. If not even the first one fits, it is
// an error; if not all of them fit, the user gets a line and may make room meanwhile.
std::string TrainingRun::check_room() const {
  const CheckpointRecipe& wanted = recipe_.checkpoint;
  const std::string& dir = *wanted.dir;
  const std::int64_t left = recipe_.train.steps - position_.steps;
  if (left <= 0) return {};
  const std::uint64_t bytes = bytes_of_save().total();
  const std::uint64_t free = checkpoint::free_bytes(dir);
  TESSERA_CHECK(bytes <= free, ErrorCode::checkpoint,
                "'{}' has {} free, and a checkpoint needs {}; free some space or name another "
                "folder",
                dir, bytes_text(free), bytes_text(bytes));
  // The oldest save is removed after the newest one is complete.
  const std::int64_t saves = (left + wanted.every - 1) / wanted.every;
  const std::int64_t kept = wanted.keep > 0 ? wanted.keep + wanted.keep_best + 1 : saves;
  std::int64_t there = 0;
  if (wanted.keep > 0) {
    for (const checkpoint::CommittedStep& step : checkpoint::list_committed(dir).steps) {
      if (step.lineage.run == line_.run) ++there;
    }
  }
  const std::int64_t more = std::min(saves, std::max<std::int64_t>(kept - there, 1));
  if (static_cast<std::uint64_t>(more) <= free / std::max<std::uint64_t>(bytes, 1)) return {};
  return fmt::format(
      "warning: checkpoint.dir: '{}' has {} free, and {} of {} need {}; {}", dir, bytes_text(free),
      counted(more, "checkpoint"), bytes_text(bytes),
      bytes_text(bytes * static_cast<std::uint64_t>(more)),
      wanted.keep > 0 ? "lower checkpoint.keep" : "checkpoint.keep removes old ones");
}

std::vector<std::string> TrainingRun::prepare_folder() {
  const CheckpointRecipe& wanted = recipe_.checkpoint;
  std::vector<std::string> notes;
  const auto on_main = [this](const char* key, const std::function<void()>& work) {
    const std::string doing = fmt::format("{}: {}", where(recipe_, key), key);
    checkpoint::run_on_all_ranks(context_.communicator(), doing, [this, &work] {
      if (context_.is_main()) work();
      return std::string();
    });
  };
  if (saves()) {
    std::string note;
    on_main("checkpoint.dir", [&] {
      checkpoint::create_folders(*wanted.dir);
      checkpoint::check_writable(*wanted.dir);
      note = check_room();
    });
    if (!note.empty()) notes.push_back(std::move(note));
  }
  if (wanted.export_folder) {
    on_main("checkpoint.export", [&] {
      checkpoint::check_export_folder(*wanted.export_folder);
      checkpoint::check_room_for_export(*wanted.export_folder, bytes_of_save().model);
    });
  }
  if (!saves() && !wanted.export_folder) return notes;
  if (recipe_.model.pretrained) {
    on_main("model.pretrained",
            [&] { model_files_ = checkpoint::read_model_files(*recipe_.model.pretrained); });
  }
  on_main("data.tokenizer", [&] {
    checkpoint::ModelFiles own = tokenizer_files(recipe_);
    for (auto& [name, text] : own.contents) model_files_.contents[name] = std::move(text);
    for (const auto& [name, mode] : own.modes) model_files_.modes[name] = mode;
  });
  return notes;
}

}  // namespace tessera::cli
