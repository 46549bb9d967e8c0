// The one file that knows CLI11: reads the command line, or says in one line why it cannot.
#include "cli/command_line.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <type_traits>
#include <utility>

#include "cli/nearest.h"
#include "cli/subcommands.h"
#include "kernels/base/error.h"

namespace tessera::cli {
namespace {

// Hyphen and underscore are the same in option names.
void fold_option_names(std::vector<std::string>& arguments) {
  for (std::string& argument : arguments) {
    if (!argument.starts_with("--")) continue;
    const std::size_t end = std::min(argument.find('='), argument.size());
    for (std::size_t i = 2; i < end; ++i) {
      if (argument[i] == '_') argument[i] = '-';
    }
  }
}

std::vector<std::string> option_names(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

std::vector<std::string> subcommand_names() {
  std::vector<std::string> names;
  for (const Subcommand& subcommand : subcommands()) names.push_back(subcommand.name);
  return names;
}

const Subcommand* find_subcommand(const std::string& name) {
  for (const Subcommand& subcommand : subcommands()) {
    if (subcommand.name == name) return &subcommand;
  }
  return nullptr;
}

// The words after -- go to the subcommands that want them; CLI11 must not take them for options of
// ours.
std::vector<std::string> split_trailing(std::vector<std::string>& arguments) {
  const Subcommand* subcommand = arguments.empty() ? nullptr : find_subcommand(arguments.front());
  if (subcommand == nullptr || !subcommand->takes_trailing) return {};
  const auto mark = std::find(arguments.begin(), arguments.end(), "--");
  if (mark == arguments.end()) return {};
  std::vector<std::string> trailing(mark + 1, arguments.end());
  arguments.erase(mark, arguments.end());
  return trailing;
}

[[noreturn]] void refuse_usage(const CLI::App& app, const CLI::ParseError& error) {
  const auto selected = app.get_subcommands();
  const CLI::App& command = selected.empty() ? app : *selected.back();
  const std::string help =
      selected.empty() ? "tessera --help" : "tessera " + command.get_name() + " --help";
  const std::vector<std::string> extra = app.remaining(true);
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr && !extra.empty()) {
    const std::string word = extra.front().substr(0, extra.front().find('='));
    fail(ErrorCode::usage, "unknown {} {}{} ({} lists what there is)",
         word.starts_with('-') ? "option" : "argument", word,
         word.starts_with("--") ? did_you_mean(word, option_names(command)) : "", help);
  }
  fail(ErrorCode::usage, "{} ({} lists the options)", error.what(), help);
}

// CLI11's own check spells out the largest double, and lets NaN pass.
CLI::Validator bounded(const Argument& argument) {
  const auto check = [least = argument.least, most = argument.most](const std::string& text) {
    double value = 0;
    const bool good = CLI::detail::lexical_cast(text, value) && std::isfinite(value) &&
                      value >= least.value_or(value) && value <= most.value_or(value);
    if (good) return std::string();
    return most ? fmt::format("must be a number from {} to {}, got {}", least.value_or(0), *most,
                              text)
                : fmt::format("must be a number of at least {}, got {}", *least, text);
  };
  return CLI::Validator(check, "");
}

CLI::Option& declare(CLI::App& parser, const Argument& argument) {
  return *std::visit(
      [&](auto* target) {
        if constexpr (std::is_same_v<decltype(target), bool*>) {
          return parser.add_flag(argument.name, *target, argument.help);
        } else {
          return parser.add_option(argument.name, *target, argument.help);
        }
      },
      argument.target);
}

void add_argument(CLI::App& parser, const Argument& argument) {
  CLI::Option& option = declare(parser, argument);
  if (!argument.type.empty()) option.type_name(argument.type);
  if (argument.least || argument.most) option.check(bounded(argument));
  if (argument.separator) option.delimiter(*argument.separator);
  if (std::holds_alternative<std::vector<std::string>*>(argument.target)) {
    option.allow_extra_args(false);  // repeated, not followed by several
  }
  option.required(argument.required);
  if (argument.shows_default) option.capture_default_str();
}

}  // namespace

int run_command_line(std::vector<std::string> arguments) {
  CLI::App app("Tessera, a fully sharded data-parallel training engine.", "tessera");
  app.set_version_flag("--version", "tessera " TESSERA_VERSION);
  app.require_subcommand(1);
  app.get_formatter()->column_width(34);

  std::map<std::string, Command> commands;
  for (const Subcommand& subcommand : subcommands()) {
    const Command& command = commands[subcommand.name] = subcommand.describe();
    CLI::App& parser = *app.add_subcommand(subcommand.name, subcommand.help);
    parser.footer(command.footer);
    for (const Argument& argument : command.arguments) add_argument(parser, argument);
  }
  if (arguments.empty()) {
    fmt::print(stderr, "{}", app.help());
    return static_cast<int>(ErrorCode::usage);
  }
  if (!arguments.front().starts_with('-') && find_subcommand(arguments.front()) == nullptr) {
    fail(ErrorCode::usage, "unknown subcommand {}{} (tessera --help lists them)", arguments.front(),
         did_you_mean(arguments.front(), subcommand_names()));
  }
  const std::vector<std::string> trailing = split_trailing(arguments);
  fold_option_names(arguments);
  std::reverse(arguments.begin(), arguments.end());  // CLI11 takes them from the back
  try {
    app.parse(std::move(arguments));
  } catch (const CLI::Success& wanted) {  // --help and --version
    fmt::print("{}", dynamic_cast<const CLI::CallForHelp*>(&wanted) != nullptr
                         ? app.help()
                         : std::string(wanted.what()) + "\n");
    return 0;
  } catch (const CLI::ParseError& error) {
    refuse_usage(app, error);
  }
  return commands.at(app.get_subcommands().front()->get_name()).run(trailing);
}

}  // namespace tessera::cli
