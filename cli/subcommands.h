// The program's subcommands. A new one is a file with its add_<name>, and a row in the list of
// subcommands.cpp.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <vector>

namespace tessera::cli {

// What the command line asked for. add_<name> declares its options on `command` and, in the
// command's callback, sets `action`, which does the work when all options have been read, and
// returns the exit code.
struct Invocation {
  std::function<int()> action;
  std::vector<std::string> trailing;  // what stood after --
};

struct Subcommand {
  std::string name;
  std::string help;
  void (*add)(CLI::App& command, Invocation& invocation);
  bool takes_trailing = false;  // the words after -- are the subcommand's own
};

const std::vector<Subcommand>& subcommands();

void add_train(CLI::App& command, Invocation& invocation);
void add_generate(CLI::App& command, Invocation& invocation);
void add_environment(CLI::App& command, Invocation& invocation);
void add_launch(CLI::App& command, Invocation& invocation);
void add_recipe(CLI::App& command, Invocation& invocation);

}  // namespace tessera::cli
