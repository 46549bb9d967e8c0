// Saves during training: ts::AsyncSaver.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "checkpoint/sharded_state.h"
#include "engine/optim/optimizer.h"
#include "sharding/context/context.h"
#include "sharding/fully_shard.h"

namespace tessera {

// The counterpart of torch.distributed.checkpoint.async_save. save() copies the state and returns;
// a thread of its own, over a communicator of its own, writes the same files with the same bytes as
// tessera::save. One save is in flight at a time; the next one waits for it.
//
// The copy takes as much memory as the rank's shards of parameters and optimizer state, from the
// first save (or reserve()) on; for a GPU it is page-locked host memory. State in files is not
// copied: the thread reads it there during the next forward and backward, and the optimizer's step
// waits until it has been read before it writes there.
//
// Declare it after the model and the optimizer, so that it is destroyed before them.
class AsyncSaver {
 public:
  // Collective.
  AsyncSaver(const Context& context, const ShardedModel& model, optim::Optimizer& optimizer);
  // Finishes the save in flight, also during an exception. A destructor cannot throw its failure:
  // it goes to stderr as "tessera: error: ...", and ts::run() returns its code. Call wait() before.
  ~AsyncSaver();
  AsyncSaver(const AsyncSaver&) = delete;
  AsyncSaver& operator=(const AsyncSaver&) = delete;

  // Allocates the copy, and optimizer state that does not exist yet.
  void reserve(const checkpoint::StateNames& names = {});

  struct Pause {
    double waited_seconds = 0;  // for the save before
    double copied_seconds = 0;  // for the copy
  };
  // Collective. Throws the error of the previous save, the same on every rank. With a default
  // `line` in the options, the save belongs to the same run as this saver's previous saves.
  Pause save(const std::string& folder, const SaveOptions& options = {});

  [[nodiscard]] bool in_flight() const;
  // True if the save in flight has ended: wait() returns at once. Ranks may see this at different
  // moments.
  [[nodiscard]] bool ended() const;
  // True if it has ended with a failure.
  [[nodiscard]] bool failed() const;

  struct Finished {
    checkpoint::Saved saved;
    double seconds = 0;  // duration of the save in the background
  };
  // Collective. All ranks get the same result of one save, or the same Error. Returns nothing if no
  // save is in flight.
  std::optional<Finished> wait();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tessera
