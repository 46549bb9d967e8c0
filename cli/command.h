// A subcommand as data: its arguments, and the function to run after they are read. Only
// cli/command_line.cpp knows the library that reads them.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace tessera::cli {

// The place and the type of an argument's value. A flag is a bool; a vector takes an argument that
// may be repeated.
using Target = std::variant<bool*, int*, std::int64_t*, std::uint64_t*, double*, std::string*,
                            std::vector<std::string>*, std::vector<std::int64_t>*>;

struct Argument {
  // "--device" for an option, "-t,--tee" for one with several names, "recipe" for a positional
  // argument.
  std::string name;
  Target target;
  std::string help;
  std::string type = {};       // the name of a value in the help: FILE; by default the type's name
  bool required = false;       // for positional arguments
  bool shows_default = false;  // the help prints the target's initial value
  std::optional<double> least = {};  // smaller values are refused, and values that are not finite
  std::optional<double> most = {};
  std::optional<char> separator = {};  // between a vector's elements in one value
  // The option's value if no number follows it.
  std::optional<std::string> implied = {};
  bool hidden = false;  // accepted, but not in the help
};

struct Command;

struct Subcommand {
  std::string name;
  std::string help;
  Command (*describe)();
  std::string example;          // a whole command line, or several, one per line
  bool takes_trailing = false;  // a program follows, after -- or after the options
};

struct Command {
  std::vector<Argument> arguments;
  // Does the work and returns the exit code. `trailing` is the program after the options, with its
  // arguments. It owns the targets.
  std::function<int(const std::vector<std::string>& trailing)> run;
  std::string footer = {};              // after the list of options
  std::vector<Subcommand> nested = {};  // one of them may follow instead of the arguments
};

}  // namespace tessera::cli
