// The run that a save belongs to: public, and small enough for every header.
#pragma once

#include <cstdint>
#include <string>

namespace tessera::checkpoint {

// A folder of checkpoints may hold the steps of several runs. Retention and fall-back stay within
// one run. A step whose name another run needs is moved aside, never deleted.
struct Line {
  // 16 hexadecimal digits: from new_run(), or from the result of latest(). Empty: continues the run
  // that saved last if its last step is not above this one; otherwise begins a new run.
  std::string run = {};
  std::string parent = {};         // save id of the state that training came from; "": none
  std::int64_t parent_commit = 0;  // and its number
  std::string launch = {};         // 16 digits that all restarts of a launch share, or empty
};

// A unique name for a run.
std::string new_run();

}  // namespace tessera::checkpoint
