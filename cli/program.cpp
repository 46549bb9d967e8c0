// Reads the command line, runs the subcommand, turns what went wrong into one line and an exit
// code.
#include "cli/program.h"

#include <cerrno>
#include <csignal>
#include <cstdio>

#include "cli/failure.h"
#include "cli/nearest.h"
#include "cli/subcommands.h"
#include "kernels/base/error.h"
#include "kernels/base/version.h"

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

int parse_and_run(std::vector<std::string> arguments) {
  CLI::App app("Tessera, a fully sharded data-parallel training engine.", "tessera");
  app.set_version_flag("--version", std::string("tessera ") + version());
  app.require_subcommand(1);
  app.get_formatter()->column_width(34);

  Invocation invocation;
  for (const Subcommand& subcommand : subcommands()) {
    subcommand.add(*app.add_subcommand(subcommand.name, subcommand.help), invocation);
  }
  if (arguments.empty()) {
    fmt::print(stderr, "{}", app.help());
    return static_cast<int>(ErrorCode::usage);
  }
  if (!arguments.front().starts_with('-') && find_subcommand(arguments.front()) == nullptr) {
    fail(ErrorCode::usage, "unknown subcommand {}{} (tessera --help lists them)", arguments.front(),
         did_you_mean(arguments.front(), subcommand_names()));
  }
  invocation.trailing = split_trailing(arguments);
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
  TESSERA_REQUIRE(static_cast<bool>(invocation.action), "the subcommand set no action");
  return invocation.action();
}

bool flush_stdout() {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return true;
  // Nobody reads any more, as in `tessera env | head -1`: no error of ours.
  if (errno == EPIPE) return true;
  report_failure(
      {static_cast<int>(ErrorCode::runtime), describe_errno("writing to standard output", errno)});
  return false;
}

}  // namespace

int run_program(std::vector<std::string> arguments) {
  // A closed pipe and a file over its limit are errors of the write, handled where they happen.
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  try {
    const int code = parse_and_run(std::move(arguments));
    return flush_stdout() ? code : std::max(code, static_cast<int>(ErrorCode::runtime));
  } catch (...) {
    const std::optional<Failure> failure = current_failure();
    if (!failure) return 0;
    std::fflush(stdout);
    report_failure(*failure);
    return failure->code;
  }
}

}  // namespace tessera::cli
