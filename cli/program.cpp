// Reads the command line and runs the subcommand.
#include "cli/program.h"

#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <utility>

#include "cli/command_line.h"
#include "sharding/context/run.h"

namespace tessera::cli {
namespace {

// A caller that is killed cannot stop the program, and asks for SIGTERM instead. The variable has
// the caller's process id, and is not for the processes that this one starts.
constexpr const char* caller_variable = "TESSERA_CALLER";

void end_with_caller() {
  const char* const caller = std::getenv(caller_variable);
  if (caller == nullptr) return;
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  const pid_t pid = static_cast<pid_t>(std::strtol(caller, nullptr, 10));
  if (pid > 0 && ::kill(pid, 0) != 0 && errno == ESRCH) std::raise(SIGTERM);  // before prctl
  ::unsetenv(caller_variable);
}

}  // namespace

int run_program(std::vector<std::string> arguments) {
  // A closed pipe and a file over its limit are errors of the write, handled where they happen.
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  end_with_caller();
  return detail::run_main([&] { return run_command_line(std::move(arguments)); },
                          "internal error: ");
}

}  // namespace tessera::cli
