// Steps that ranks take together: each does its part, then all go on or all throw the same error.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/communicator.h"

namespace tessera::checkpoint {

// What a rank does about a disk that stands still: no system call of its work comes back.
struct StallRule {
  std::chrono::milliseconds timeout{300'000};  // after how long it gives up; 0: never
  // Whether the work may be left behind in the call that never ends: it then owns all that it uses,
  // and the caller goes on. Else the other ranks go on, and this one once the call has come back.
  bool may_abandon = false;
};

// Runs `work`, which returns a message for the others, and exchanges the outcomes: every rank's
// message in rank order. When it threw on some ranks, every rank throws the first one's number and
// text, and the work of the others is ended at its next system call: as Error(out_of_memory) where
// memory was missing, as Error(configuration) or std::logic_error where the work threw one, else as
// Error(checkpoint).
// `work` must not call the communicator. Errors of the communicator itself pass through.
//
// There is no limit on how long the work takes, as long as it moves: the ranks tell each other a
// few times a second that they are there, so no collective waits for a slow disk. A rank whose disk
// stands still gives up with an Error that names the call. The work runs on a thread of its own,
// with the caller's system calls and queue.
std::vector<std::string> together(comm::Communicator& communicator, std::string_view doing,
                                  std::function<std::string()> work, StallRule rule = {});

}  // namespace tessera::checkpoint
