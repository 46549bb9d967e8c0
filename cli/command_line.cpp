// The one file that knows CLI11: reads the command line, or reports in one line why it cannot.
#include "cli/command_line.h"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iterator>
#include <map>
#include <memory>
#include <sstream>
#include <type_traits>
#include <utility>

#include "base/error.h"
#include "base/text/nearest.h"
#include "base/text/print.h"
#include "base/version.h"
#include "cli/subcommands.h"
#include "training/recipe/other_words.h"
#include "training/recipe/schema.h"

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

std::vector<std::string> split(const std::string& names) {
  std::vector<std::string> parts;
  std::istringstream stream(names);
  for (std::string part; std::getline(stream, part, ',');) parts.push_back(part);
  return parts;
}

const Argument* find_option(const Command& command, const std::string& word) {
  for (const Argument& argument : command.arguments) {
    const std::vector<std::string> names = split(argument.name);
    if (std::find(names.begin(), names.end(), word) != names.end()) return &argument;
  }
  return nullptr;
}

bool is_value_of_numbers(const std::string& word) {
  return !word.empty() && word.find_first_not_of("0123456789:,") == std::string::npos;
}

// The program that some subcommands start, with its arguments: the words after --, or (as in
// torchrun) from the first word that is neither an option nor an option's value. CLI11 must not
// read them as options of tessera.
std::vector<std::string> split_trailing(const Command& command,
                                        std::vector<std::string>& arguments) {
  std::size_t at = 1;  // after the subcommand's name
  for (; at < arguments.size() && arguments[at].starts_with('-') && arguments[at] != "--"; ++at) {
    std::vector<std::string> word = {arguments[at]};
    fold_option_names(word);
    const Argument* option = find_option(command, word.front());
    if (option == nullptr || std::holds_alternative<bool*>(option->target)) continue;
    const bool followed = at + 1 < arguments.size();
    if (option->implied && !(followed && is_value_of_numbers(arguments[at + 1]))) {
      arguments.insert(arguments.begin() + static_cast<std::ptrdiff_t>(at) + 1, *option->implied);
    }
    if (at + 1 < arguments.size() && arguments[at + 1] != "--") ++at;
  }
  if (at >= arguments.size()) return {};
  const auto mark = arguments.begin() + static_cast<std::ptrdiff_t>(at);
  std::vector<std::string> trailing(*mark == "--" ? mark + 1 : mark, arguments.end());
  arguments.erase(mark, arguments.end());
  return trailing;
}

const CLI::App& innermost(const CLI::App& command) {
  const auto selected = command.get_subcommands();
  return selected.empty() ? command : innermost(*selected.back());
}

// "tessera config check".
std::string full_name(const CLI::App& command) {
  const CLI::App* parent = command.get_parent();
  return parent == nullptr ? command.get_name() : full_name(*parent) + " " + command.get_name();
}

// The recipe's key with this name, or the equivalent of another tool's key.
std::string recipe_key_meant(std::string word) {
  const training::OtherWord* const other = training::other_word("key", word);
  if (other != nullptr && other->here.find('.') != std::string_view::npos) {
    return std::string(other->here);
  }
  std::replace(word.begin(), word.end(), '-', '_');
  for (const training::RecipeKey& key : training::recipe_keys()) {
    if (key.name == word || key.name.ends_with("." + word)) return key.name;
  }
  return "";
}

// Where an option that starts ranks is given to a command that is one of them.
std::string launch_option_meant(const std::string& word, const training::OtherWord* option) {
  const Command launch = describe_launch();
  const std::string name = option != nullptr ? std::string(option->here) : word;
  if (find_option(launch, name) == nullptr) return "";
  return fmt::format("; it is an option of tessera launch: tessera launch {} ... -- tessera ...",
                     name);
}

// The equivalent of another tool's option, or of a recipe's key if --set takes it.
std::string meant_option(const std::string& word, const std::vector<std::string>& names) {
  const auto is_option = [&](std::string_view name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  const std::string bare = word.substr(std::min(word.find_first_not_of('-'), word.size()));
  const training::OtherWord* const option = training::other_word("option", bare);
  if (option != nullptr && is_option(option->here)) return training::other_option(word);
  const std::string key = is_option("--set") ? recipe_key_meant(bare) : "";
  if (!key.empty()) return fmt::format("; it is a key of the recipe: --set {}=VALUE", key);
  if (option != nullptr && option->here.empty()) return training::other_option(word);
  if (std::string start = launch_option_meant(word, option); !start.empty()) return start;
  return did_you_mean(word, names);
}

// `word` is what the command line has, with its value.
std::string meant_word(const std::string& word, const std::vector<std::string>& names) {
  const std::size_t sign = word.find('=');
  if (word.starts_with('-')) return meant_option(word.substr(0, sign), names);
  const bool sets = std::find(names.begin(), names.end(), "--set") != names.end();
  return sets && sign != std::string::npos ? fmt::format("; a key is set by --set {}", word) : "";
}

[[noreturn]] void refuse_usage(const CLI::App& app, const CLI::ParseError& error) {
  const auto selected = app.get_subcommands();
  const CLI::App& command = selected.empty() ? app : innermost(*selected.back());
  const std::string help = full_name(command) + " --help";
  const std::vector<std::string> extra = app.remaining(true);
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr && !extra.empty()) {
    const std::string word = extra.front().substr(0, extra.front().find('='));
    fail(ErrorCode::usage, "unknown {} {}{} ({} lists them)",
         word.starts_with('-') ? "option" : "argument", word,
         meant_word(extra.front(), option_names(command)), help);
  }
  fail(ErrorCode::usage, "{} ({} lists the options)", error.what(), help);
}

// CLI11's own check prints the largest double in full and accepts NaN.
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

bool names_a_place(const Argument& argument) {
  constexpr const char* places[] = {"FILE", "FOLDER", "DIR", "PATH", "SRC", "DST", "A", "B"};
  const bool place =
      std::find(std::begin(places), std::end(places), argument.type) != std::end(places);
  return place && std::holds_alternative<std::string*>(argument.target);
}

// A shell variable that is not set gives an empty word, which cannot be a path.
CLI::Validator not_empty() {
  return CLI::Validator(
      [](const std::string& text) { return std::string(text.empty() ? "must not be empty" : ""); },
      "");
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
  if (names_a_place(argument)) option.check(not_empty());
  if (argument.separator) option.delimiter(*argument.separator);
  if (std::holds_alternative<std::vector<std::string>*>(argument.target)) {
    option.allow_extra_args(false);  // one value for each repetition
  }
  option.required(argument.required);
  if (argument.shows_default) option.capture_default_str();
  if (argument.hidden) option.group("");
}

std::string footer(const Command& command, const Subcommand& subcommand) {
  std::string text = command.footer + (command.footer.empty() ? "" : "\n\n") + "Example:";
  std::istringstream lines(subcommand.example);
  for (std::string line; std::getline(lines, line);) text += "\n  " + line;
  return text;
}

using Commands = std::map<std::string, Command>;  // by full name

void add_subcommands(CLI::App& parent, const std::vector<Subcommand>& list, Commands& commands) {
  for (const Subcommand& subcommand : list) {
    CLI::App& parser = *parent.add_subcommand(subcommand.name, subcommand.help);
    const Command& command = commands[full_name(parser)] = subcommand.describe();
    parser.footer(footer(command, subcommand));
    for (const Argument& argument : command.arguments) add_argument(parser, argument);
    if (command.nested.empty()) continue;
    parser.require_subcommand(0, 1);
    add_subcommands(parser, command.nested, commands);
  }
}

// The parser prints the help of the last subcommand that it knows, whatever follows.
void check_help_words(const std::vector<std::string>& words) {
  std::vector<Subcommand> list = subcommands();
  std::string name = "tessera";
  for (const std::string& word : words) {
    TESSERA_CHECK(!list.empty(), ErrorCode::usage, "unknown argument {}: {} has no subcommands",
                  word, name);
    std::vector<std::string> names;
    for (const Subcommand& subcommand : list) names.push_back(subcommand.name);
    const auto found = std::find(names.begin(), names.end(), word);
    TESSERA_CHECK(found != names.end(), ErrorCode::usage,
                  "unknown subcommand {}{} ({} --help lists them)", word, did_you_mean(word, names),
                  name);
    name += " " + word;
    const Command command = list[static_cast<std::size_t>(found - names.begin())].describe();
    list = command.nested;
  }
}

}  // namespace

Command describe_help() {
  const auto shown = std::make_shared<std::string>();  // the words are taken as what follows
  return {.arguments = {{.name = "subcommand",
                         .target = shown.get(),
                         .help = "The subcommand, and behind it one of its own, as in config check",
                         .type = "SUBCOMMAND"}},
          .run = [shown](const std::vector<std::string>& trailing) {
            check_help_words(trailing);
            std::vector<std::string> arguments = trailing;
            arguments.emplace_back("--help");
            return run_command_line(std::move(arguments));
          }};
}

Command describe_version() {
  return {.arguments = {}, .run = [](const std::vector<std::string>&) {
            print_out("tessera {}\n", version());
            return 0;
          }};
}

int run_command_line(std::vector<std::string> arguments) {
  CLI::App app("Tessera, a fully sharded data-parallel training engine.", "tessera");
  app.set_version_flag("--version", std::string("tessera ") + version());
  app.require_subcommand(1);
  app.get_formatter()->column_width(34);

  Commands commands;
  add_subcommands(app, subcommands(), commands);
  if (arguments.empty()) {
    write_text(STDERR_FILENO, app.help());
    return static_cast<int>(ErrorCode::usage);
  }
  if (!arguments.front().starts_with('-') && find_subcommand(arguments.front()) == nullptr) {
    fail(ErrorCode::usage, "unknown subcommand {}{} (tessera --help lists them)", arguments.front(),
         did_you_mean(arguments.front(), subcommand_names()));
  }
  const Subcommand* chosen = find_subcommand(arguments.front());
  std::vector<std::string> trailing;
  if (chosen != nullptr && chosen->takes_trailing) {
    trailing = split_trailing(commands.at("tessera " + chosen->name), arguments);
  }
  fold_option_names(arguments);
  std::reverse(arguments.begin(), arguments.end());  // CLI11 takes them from the back
  try {
    app.parse(std::move(arguments));
  } catch (const CLI::Success& wanted) {  // --help and --version
    print_text(dynamic_cast<const CLI::CallForHelp*>(&wanted) != nullptr
                   ? app.help()
                   : std::string(wanted.what()) + "\n");
    return 0;
  } catch (const CLI::ParseError& error) {
    refuse_usage(app, error);
  }
  return commands.at(full_name(innermost(app))).run(trailing);
}

}  // namespace tessera::cli
