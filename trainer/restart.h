// Tells if a launcher started these ranks again, and identifies the launch that its restarts belong
// to.
#pragma once

#include <string>

namespace tessera::comm {
class Communicator;
}

namespace tessera {

struct LaunchOfRanks {
  // 16 hexadecimal digits that are the same in every restart of one launch and in no other launch:
  // the launcher's own, or derived from torchrun's process and job. Empty without a launcher.
  std::string id;
  // How often tessera launch or torchrun has restarted the ranks; 0 the first time and without a
  // launcher.
  int restarts = 0;
};

// Collective: the same result on every rank. Agents of torchrun on several nodes count separately,
// so the environment may differ from rank to rank.
LaunchOfRanks agree_on_launch(comm::Communicator& communicator);

// tessera launch sets this variable.
inline constexpr const char* launch_variable = "TESSERA_LAUNCH_ID";

}  // namespace tessera
