// From the words of a command line to the subcommand that they name.
#pragma once

#include <string>
#include <vector>

namespace tessera::cli {

// Runs the subcommand and returns its exit code; prints help and version itself. `arguments` do not
// contain the program's name. What cannot be read is an Error(usage) that names the nearest word.
int run_command_line(std::vector<std::string> arguments);

}  // namespace tessera::cli
