// A save as an object: what save(), asynchronous saves and exports have in common.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "checkpoint/checkpoint.h"
#include "checkpoint/state/state.h"
#include "checkpoint/steps/manifest.h"
#include "comm/communicator.h"

namespace tessera::checkpoint {

// Where rank 0 puts a save's files until they are complete, and what makes them so. Undone by the
// destructor unless it was committed.
class Destination {
 public:
  virtual ~Destination() = default;
  // Makes the folder that files are written to, which has room for `needed_bytes`.
  virtual void prepare(std::uint64_t needed_bytes) = 0;
  // Returns what the other ranks should know of it: Saved's line and warnings, as JSON, or nothing.
  virtual std::string commit(Manifest manifest) = 0;
  // Removes what is there; returns why it could not, or nothing.
  virtual std::string roll_back() noexcept = 0;
};

struct SaveJob {
  std::filesystem::path target;  // what comes to be
  std::int64_t step = 0;         // of the manifest
  State state;
  bool with_optimizer = true;  // else no file for it, not even an empty one
  SaveOptions options;
  // Where the ranks write, by the save's id, which all ranks have agreed on.
  std::function<std::filesystem::path(const std::string& save_id)> partial;
  std::function<std::unique_ptr<Destination>(const std::string& save_id)> destination;
  // Called when this rank has read all of its state; may be empty.
  std::function<void()> after_reading = {};
};

SaveJob step_job(const std::filesystem::path& dir, std::int64_t step, State state,
                 const SaveOptions& options);

// Collective. What checkpoint::save() promises.
Saved run_save(comm::Communicator& communicator, SaveJob job);

}  // namespace tessera::checkpoint
