// Which processes listen to a signal, so that a message does not end those that do not.
#pragma once

#include <sys/types.h>

#include <vector>

namespace tessera::cli {

// The processes of a group that handle or ignore the signal, or go on blocking it (for which it
// takes a quarter of a second to tell), by /proc. A shell that only
// waits for its program is none, and would end by it.
std::vector<pid_t> processes_that_bear(int signal, pid_t group);

}  // namespace tessera::cli
