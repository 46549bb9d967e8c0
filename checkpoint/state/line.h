// Which run a save belongs to: public, and small enough for every header.
#pragma once

#include <cstdint>
#include <string>

namespace tessera::checkpoint {

// A folder of checkpoints may hold the steps of several runs. Retention and fall-back stay within
// one, and a step whose name another run needs is moved aside, never deleted.
struct Line {
  // 16 hexadecimal digits: new_run(), or what latest() found. Empty: the run that saved last goes
  // on when its last step is not above this one, else a new run begins.
  std::string run = {};
  std::string parent = {};         // save id of the state that training came from; "": none
  std::int64_t parent_commit = 0;  // and its number
  std::string launch = {};         // 16 digits that all restarts of a launch share, or nothing
};

// A run's name that no other has.
std::string new_run();

}  // namespace tessera::checkpoint
