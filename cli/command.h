// A subcommand as data: its arguments, and what runs when they have been read. Only
// cli/command_line.cpp knows the library that reads them.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace tessera::cli {

// Where an argument's value goes, and of which type it is. A flag is a bool; a vector takes an
// argument that may be repeated.
using Target = std::variant<bool*, int*, std::int64_t*, std::uint64_t*, double*, std::string*,
                            std::vector<std::string>*, std::vector<std::int64_t>*>;

struct Argument {
  // "--device" for an option, "-t,--tee" for one with several names, "recipe" for an argument by
  // its place.
  std::string name;
  Target target;
  std::string help;
  std::string type = {};       // what the help calls a value: FILE; by default the type's name
  bool required = false;       // of one by its place
  bool shows_default = false;  // the help prints what the target holds beforehand
  std::optional<double> least = {};  // a number below is refused, as is one that is not finite
  std::optional<double> most = {};
  std::optional<char> separator = {};  // of a vector's elements within one value
  // Where no number follows the option: its value.
  std::optional<std::string> implied = {};
};

struct Command;

struct Subcommand {
  std::string name;
  std::string help;
  Command (*describe)();
  std::string example;          // a whole command line; several have lines of their own
  bool takes_trailing = false;  // a program follows, behind -- or the options
};

struct Command {
  std::vector<Argument> arguments;
  // Does the work and returns the exit code. `trailing` is the program that was named, with its
  // arguments. It owns what the targets point to.
  std::function<int(const std::vector<std::string>& trailing)> run;
  std::string footer = {};              // after the list of options
  std::vector<Subcommand> nested = {};  // of which one may follow instead of the arguments
};

}  // namespace tessera::cli
