// The program from command line to exit code.
#pragma once

#include <string>
#include <vector>

namespace tessera::cli {

// `arguments` without the program's name. Prints errors itself, in one line each.
int run_program(std::vector<std::string> arguments);

}  // namespace tessera::cli
