// Saving while training goes on: ts::AsyncSaver.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "checkpoint/sharded_state.h"
#include "engine/optim/optimizer.h"
#include "sharding/context/context.h"
#include "sharding/fully_shard.h"

namespace tessera {

// What torch.distributed.checkpoint.async_save is: save() copies the state and returns, and the
// same files with the same bytes as tessera::save's are written by a thread of its own, over a
// communicator of its own. One save is in flight at a time; the next one waits for it.
//
// The copy takes as much memory as the rank's share of parameters and optimizer state, from the
// first save (or reserve()) on; on a GPU it is page-locked memory of the host. State that lies in
// files is not copied: it is read from there while the next forward and backward run, and the
// optimizer's step waits, before it writes there, until it has been read.
//
// Declare it after the model and the optimizer, so that it goes before them.
class AsyncSaver {
 public:
  // Collective.
  AsyncSaver(const Context& context, const ShardedModel& model, optim::Optimizer& optimizer);
  // Finishes the save in flight, also when an exception passes. A failure goes to stderr.
  ~AsyncSaver();
  AsyncSaver(const AsyncSaver&) = delete;
  AsyncSaver& operator=(const AsyncSaver&) = delete;

  // Makes the memory of the copy, and optimizer state where there is none yet.
  void reserve(const checkpoint::StateNames& names = {});

  struct Pause {
    double waited_seconds = 0;  // for the save before
    double copied_seconds = 0;  // for the copy
  };
  // Collective. Throws what the save before failed with, on every rank alike. With a default
  // `line` in the options, it belongs to the run of this saver's saves before.
  Pause save(const std::string& folder, const SaveOptions& options = {});

  [[nodiscard]] bool in_flight() const;
  // Whether the save in flight has ended: wait() returns at once. Not the same on every rank at one
  // moment.
  [[nodiscard]] bool ended() const;
  // Whether it has ended with a failure.
  [[nodiscard]] bool failed() const;

  struct Finished {
    checkpoint::Saved saved;
    double seconds = 0;  // that it took behind the training's back
  };
  // Collective in its outcome: of one save, all ranks get the same, or the same Error. None in
  // flight: nothing.
  std::optional<Finished> wait();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tessera
