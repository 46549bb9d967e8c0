// What a training run does with files, as data: the calls of a Trainer that do it return these.
// Rank 0 has all of them, the other ranks all but LittleRoom.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace tessera {

namespace events {

// The run goes on from a step.
struct Resumed {
  std::string folder;
  std::int64_t step = 0;
  bool has_data_position = true;  // false: another program saved it, so the data order starts again
};
// The run goes on with other settings than those that the step was trained with.
struct SettingsChanged {
  std::string folder, before, now;
};
// A newer step, or one that cannot be read.
struct StepSkipped {
  std::string reason;
};
// Another run has steps in the folder of checkpoints.
struct OtherRun {
  std::string folder, description;
  bool resumed_newest = false;  // this run goes on because it saved last
};
// A launcher has started the ranks again.
struct Restarted {
  int restarts = 0;
  bool found_save = false;  // else the ranks begin as at the first start
};
// A new run begins with weights that exist already.
struct WeightsLoaded {
  std::string folder;
  bool adapter = false;
};
// Not all checkpoints of the remaining steps fit into the folder.
struct LittleRoom {
  std::string folder;
  std::uint64_t free_bytes = 0, checkpoint_bytes = 0;
  std::int64_t checkpoints = 0;
};
// The state is copied, and is written while training goes on.
struct SaveBegun {
  std::int64_t step = 0;
  double copied_seconds = 0;
  std::optional<double> waited_seconds = {};  // for the save before, if it was not written yet
};
struct Saved {
  std::string folder;
  std::optional<double> seconds = {};  // of a save while training went on
};
// A problem that did not fail the save: Saved::warnings. Each comes once.
struct Warning {
  std::string text;
};
struct Exported {
  std::string folder;
};

}  // namespace events

using RunEvent =
    std::variant<events::Resumed, events::SettingsChanged, events::StepSkipped, events::OtherRun,
                 events::Restarted, events::WeightsLoaded, events::LittleRoom, events::SaveBegun,
                 events::Saved, events::Warning, events::Exported>;
using RunEvents = std::vector<RunEvent>;  // in the order in which they happened

}  // namespace tessera
