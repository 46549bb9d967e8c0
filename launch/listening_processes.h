// Finds the processes that listen to a signal, so that a message does not end those that do not.
#pragma once

#include <sys/types.h>

#include <vector>

namespace tessera::launcher {

// The processes of a group that handle or ignore the signal, or keep blocking it (this takes a
// quarter of a second to find out), read in /proc. A shell that only waits for its program is not
// among them: the signal would end it.
std::vector<pid_t> processes_that_bear(int signal, pid_t group);

}  // namespace tessera::launcher
