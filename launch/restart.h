// Whether a launcher started these ranks again, and by what name its restarts know each other.
#pragma once

#include <string>

namespace tessera::comm {
class Communicator;
}

namespace tessera::cli {

struct LaunchOfRanks {
  // 16 hexadecimal digits that are the same in every restart of one launch and in no other launch:
  // the launcher's own, or of torchrun's process and job. Empty without a launcher.
  std::string id;
  // How often the ranks were started again by tessera launch or torchrun; 0 the first time and
  // without a launcher.
  int restarts = 0;
};

// Collective: the same on every rank. Agents of torchrun on several hosts count each for itself,
// so what the environment says may differ from rank to rank.
LaunchOfRanks agree_on_launch(comm::Communicator& communicator);

// The variable that tessera launch sets.
inline constexpr const char* launch_variable = "TESSERA_LAUNCH_ID";

}  // namespace tessera::cli
