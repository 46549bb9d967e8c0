// A save as an object: the common part of save(), asynchronous saves and exports.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/state/state.h"
#include "checkpoint/steps/manifest.h"
#include "comm/communicator.h"

namespace tessera::checkpoint {

// The place of a save's files on rank 0 until they are complete, and their commit. The destructor
// rolls back unless it was committed.
class Destination {
 public:
  virtual ~Destination() = default;
  // Makes the folder for the files, and checks that it has room for `needed_bytes`.
  virtual void prepare(std::uint64_t needed_bytes) = 0;
  // Returns what the other ranks need, as saved_line() writes it.
  virtual std::string commit(Manifest manifest) = 0;
  // Removes the files; returns the reason if it could not, or empty.
  virtual std::string roll_back() noexcept = 0;
};

std::string saved_line(const std::string& run, std::int64_t commit,
                       const std::vector<std::string>& warnings);

struct SaveJob {
  std::filesystem::path target;  // the final path
  std::int64_t step = 0;         // of the manifest
  State state;
  bool with_optimizer = true;  // otherwise there is not even an empty file for it
  SaveOptions options;
  // The folder that the ranks write to, by the save's id, on which all ranks have agreed.
  std::function<std::filesystem::path(const std::string& save_id)> partial;
  std::function<std::unique_ptr<Destination>(const std::string& save_id)> destination;
  // Called when this rank has read all of its state; may be empty.
  std::function<void()> after_reading = {};
};

SaveJob step_job(const std::filesystem::path& dir, std::int64_t step, State state,
                 const SaveOptions& options);

// Collective. Has the guarantees of checkpoint::save().
Saved run_save(comm::Communicator& communicator, SaveJob job);

}  // namespace tessera::checkpoint
