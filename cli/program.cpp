// Reads the command line and runs the subcommand.
#include "cli/program.h"

#include <csignal>
#include <utility>

#include "cli/command_line.h"
#include "sharding/context/run.h"

namespace tessera::cli {

int run_program(std::vector<std::string> arguments) {
  // A closed pipe and a file over its limit are errors of the write, handled where they happen.
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  return detail::run_main([&] { return run_command_line(std::move(arguments)); },
                          "internal error: ");
}

}  // namespace tessera::cli
