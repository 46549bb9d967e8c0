// From the words of a command line to their subcommand.
#pragma once

#include <string>
#include <vector>

namespace tessera::cli {

// Runs the subcommand and returns its exit code; prints help and version itself. `arguments` do not
// contain the program's name. If the words cannot be read, throws Error(usage) with the nearest
// word.
int run_command_line(std::vector<std::string> arguments);

}  // namespace tessera::cli
