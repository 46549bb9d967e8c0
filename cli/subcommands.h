// The program's subcommands. A new one is a file with its describe_<name>, and a row in the list in
// subcommands.cpp.
#pragma once

#include <string>
#include <vector>

#include "cli/command.h"

namespace tessera::cli {

const std::vector<Subcommand>& subcommands();

// An argument that several subcommands share: --config-file, which goes with a recipe.
Argument config_file_argument(std::string* target);

Command describe_train();
Command describe_plan();
Command describe_convert();
Command describe_diff();
Command describe_inspect();
Command describe_verify();
Command describe_generate();
Command describe_encode();
Command describe_evaluate();
Command describe_render();
Command describe_tokenize();
Command describe_environment();
Command describe_launch();
Command describe_recipe();
Command describe_config();
Command describe_test();
Command describe_bench();
Command describe_help();
Command describe_version();

}  // namespace tessera::cli
