// The result of a node's ranks, as one line and a code.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "launch/rank_process.h"
#include "sharding/context/failure.h"

namespace tessera::launcher {

struct EndedRank {
  int rank = 0;
  pid_t pid = 0;
  RankExit exit;
};

struct LaunchOutcome {
  std::optional<EndedRank> first_failure;
  std::vector<Failure> messages;
  int stop_signal = 0;       // the launcher's
  bool lacked_room = false;  // for what the ranks print
};

// How close an end is to the cause, among ends that are seen at the same moment: a killed rank is a
// cause, a rank that ends because it lost another (7) is a consequence.
struct Weight {
  static constexpr int none = 0, consequence = 1, failure = 2, kill = 3;
};

struct LaunchReport {
  int code = 0;
  int weight = Weight::none;
  bool worth_restarting = false;
  std::string line;  // for stderr; may be empty
};

int weight_of(const RankExit& exit);
// `here` and `world` are numbers of ranks; `place` names this node if there are several (" on
// host7"), else it is empty.
LaunchReport report_of(const LaunchOutcome& outcome, int here, int world, const std::string& place);

// Prints a line on stderr, "tessera: ...".
void say(const std::string& line);

}  // namespace tessera::launcher
