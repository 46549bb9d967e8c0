// Checks before the first step that a run can write its results.
#include <fmt/format.h>
#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <system_error>

#include "base/error.h"
#include "base/text/byte_size.h"
#include "checkpoint/io/collective.h"
#include "checkpoint/io/failure.h"
#include "checkpoint/io/file.h"
#include "checkpoint/save/export.h"
#include "checkpoint/steps/lineage.h"
#include "trainer/trainer.h"

namespace tessera {
namespace {

// Adds the way out to the error of a system call.
void write_into_folder(const std::function<void()>& work) {
  try {
    work();
  } catch (const checkpoint::SystemFailure& failure) {
    fail(failure.code(), "{}; name a folder that can be written", failure.what());
  }
}

}  // namespace

Trainer::SaveBytes Trainer::bytes_of_save() const {
  const SaveOptions& wanted = options_.checkpoint.save;
  std::map<std::string, std::uint64_t> states;  // bytes by parameter
  for (std::size_t i = 0; i < optimizer_->parameters().size(); ++i) {
    const nn::NamedParameter& parameter = optimizer_->parameters()[i];
    for (std::size_t which = 0; which < optimizer_->state_names_of(i).size(); ++which) {
      if (which == optimizer_->average_state()) continue;  // it is the weights
      const optim::StateFormat format = optimizer_->state_format(i, which);
      states[parameter.name] +=
          static_cast<std::uint64_t>(format.elements_for(parameter.shape.elements())) *
          size_of(format.dtype.value_or(parameter.tensor.dtype()));
    }
  }
  SaveBytes bytes;
  for (const ShardedParameter& parameter : sharded_->sharded_parameters()) {
    const Tensor& local = parameter.local;
    const bool trained = local.requires_grad();
    if (wanted.names && wanted.names(parameter.name, trained).empty()) continue;
    const auto elements = static_cast<std::uint64_t>(parameter.shape.elements());
    const DType stored = is_floating(local.dtype()) ? wanted.model_dtype : local.dtype();
    bytes.model += elements * size_of(stored);
    if (trained) bytes.optimizer += states[parameter.name];
  }
  for (const ShardedParameter& buffer : sharded_->sharded_buffers()) {
    if (wanted.names && wanted.names(buffer.name, false).empty()) continue;
    const DType own = buffer.local.dtype();
    bytes.model += static_cast<std::uint64_t>(buffer.shape.elements()) *
                   size_of(is_floating(own) ? wanted.model_dtype : own);
  }
  return bytes;
}

// Rank 0's. Checks that the saves of the remaining steps fit. If not even the first one fits, it is
// an error; if not all of them fit, the user may make room meanwhile.
std::optional<events::LittleRoom> Trainer::check_room() const {
  const CheckpointOptions& wanted = options_.checkpoint;
  const std::string& dir = wanted.dir;
  const std::int64_t left = options_.steps - position_.steps;
  if (left <= 0) return std::nullopt;
  const std::uint64_t bytes = bytes_of_save().total();
  const std::uint64_t free = checkpoint::free_bytes(dir);
  TESSERA_CHECK(bytes <= free, ErrorCode::checkpoint,
                "'{}' has {} free, and a checkpoint needs {}; free some space or name another "
                "folder",
                dir, bytes_text(free), bytes_text(bytes));
  // The oldest save is removed after the newest one is complete.
  const std::int64_t saves = (left + wanted.every - 1) / wanted.every;
  const bool removes = wanted.save.keep > 0;
  const std::int64_t kept = removes ? wanted.save.keep + wanted.save.keep_best + 1 : saves;
  std::int64_t there = 0;
  if (removes) {
    for (const checkpoint::CommittedStep& step : checkpoint::list_committed(dir).steps) {
      if (step.lineage.run == line_.run) ++there;
    }
  }
  const std::int64_t more = std::min(saves, std::max<std::int64_t>(kept - there, 1));
  if (static_cast<std::uint64_t>(more) <= free / std::max<std::uint64_t>(bytes, 1))
    return std::nullopt;
  return events::LittleRoom{dir, free, bytes, more};
}

void Trainer::on_main(std::string_view option, const std::function<void()>& work) const {
  const std::string doing =
      fmt::format("{}: {}", options_.names.place(std::string(option)), option);
  checkpoint::run_on_all_ranks(context_.communicator(), doing, [this, &work] {
    if (context_.is_main()) work();
    return std::string();
  });
}

void Trainer::check_is_folder() const {
  const std::filesystem::path dir = options_.checkpoint.dir;
  if (dir.empty()) return;
  on_main("checkpoint.dir", [&dir] {
    std::error_code error;
    const auto type = std::filesystem::status(dir, error).type();
    using Type = std::filesystem::file_type;
    TESSERA_CHECK(type == Type::directory || type == Type::not_found || type == Type::none,
                  ErrorCode::checkpoint, "'{}' is not a folder; name a folder for checkpoints",
                  dir.string());
  });
}

RunEvents Trainer::prepare_folder() {
  guard_.require("prepare_folder()", RunGuard::Needs::last_step);
  const CheckpointOptions& wanted = options_.checkpoint;
  RunEvents events;
  if (saves()) {
    std::optional<events::LittleRoom> room;
    on_main("checkpoint.dir", [&] {
      write_into_folder([&] {
        checkpoint::create_folders(wanted.dir);
        checkpoint::check_writable(wanted.dir);
      });
      room = check_room();
    });
    if (room) events.push_back(std::move(*room));
  }
  if (!wanted.export_folder.empty()) {
    on_main(options_.names.export_folder, [&] {
      checkpoint::check_export_folder(wanted.export_folder);
      write_into_folder(
          [&] { checkpoint::check_room_for_export(wanted.export_folder, bytes_of_save().model); });
    });
  }
  if (!saves() && wanted.export_folder.empty()) return events;
  for (const FilesToCopy& files : wanted.files) {
    on_main(files.option, [&] {
      checkpoint::ModelFiles found = files.read();
      for (auto& [name, text] : found.contents) files_.contents[name] = std::move(text);
      for (const auto& [name, mode] : found.modes) files_.modes[name] = mode;
    });
  }
  return events;
}

}  // namespace tessera
