// Steps that ranks take together: each does its part, then all continue or all throw the same
// error.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/communicator.h"

namespace tessera::checkpoint {

// The reaction of a rank to a disk on which no system call of its work returns.
struct StallRule {
  std::chrono::milliseconds timeout{300'000};  // after which it gives up; 0: never
  // True: the work may be left behind in the call that never returns; it must own all that it uses,
  // and the caller goes on. False: the other ranks go on, and this one does once the call has
  // returned.
  bool may_abandon = false;
};

// Runs `work`, which returns a message for the other ranks, and exchanges the outcomes: returns
// every rank's message in rank order. If it threw on some ranks, every rank throws the error of the
// first one, and the work of the others ends at its next system call. The error is
// Error(out_of_memory) if memory was missing, Error(configuration) or std::logic_error if the work
// threw one, else
// Error(checkpoint). `work` must not call the communicator. Errors of the communicator itself pass
// through.
//
// The work may take any time as long as its system calls return: the ranks exchange messages a few
// times a second, so a slow disk does not end a collective by timeout. A rank on whose disk no call
// returns gives up with an Error that names the call. The work runs on a thread of its own, with
// the caller's system calls and queue.
std::vector<std::string> run_on_all_ranks(comm::Communicator& communicator, std::string_view doing,
                                          std::function<std::string()> work, StallRule rule = {});

}  // namespace tessera::checkpoint
