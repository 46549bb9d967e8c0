// `tessera config`: Accelerate's configuration files, written, checked and explained.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <iostream>
#include <memory>

#include "base/error.h"
#include "base/text/print.h"
#include "base/text/small_file.h"
#include "base/write_failure.h"
#include "checkpoint/io/removal.h"
#include "cli/commands/config/explain.h"
#include "cli/commands/config/questions.h"
#include "cli/subcommands.h"
#include "comm/file_descriptor.h"
#include "engine/storage/output_file.h"
#include "training/recipe/accelerate/keys.h"

namespace tessera::cli {
namespace {

constexpr const char* usual_config_file = "accelerate.yaml";

std::optional<std::string> ask_terminal(const std::string& question) {
  print_text(question);
  std::fflush(stdout);
  std::string line;
  if (!std::getline(std::cin, line)) return std::nullopt;
  return line;
}

void write_config(const std::string& path, const std::string& text, bool replaces) {
  (void)training::parse_accelerate_config(text, path);  // the text must be readable
  require_file_name("--config-file " + path, path);
  const int flags = O_WRONLY | O_CREAT | O_CLOEXEC | (replaces ? O_TRUNC : O_EXCL);
  const comm::FileDescriptor file(replaces ? open_output(path, flags)
                                           : ::open(path.c_str(), flags, 0666));
  TESSERA_CHECK(file.get() >= 0 || errno != EEXIST, ErrorCode::configuration,
                "{} exists and is not overwritten; name another file with --config-file", path);
  TESSERA_CHECK(file.get() >= 0, full_disk_or(errno, ErrorCode::configuration),
                "{} cannot be written: {}", path, describe_errno("open", errno));
  const ssize_t written = ::write(file.get(), text.data(), text.size());
  if (written != static_cast<ssize_t>(text.size())) {
    const int reason = written < 0 ? errno : ENOSPC;
    if (!replaces)
      checkpoint::try_remove_tree(path);  // an incomplete file could be read as a complete one
    fail(full_disk_or_runtime(reason), "{}: {}", path, describe_errno("write", reason));
  }
  print_out("configuration saved at {}; tessera config explain {} explains it\n", path, path);
}

int write_by_questions(const std::string& path) {
  TESSERA_CHECK(::isatty(STDIN_FILENO) != 0, ErrorCode::usage,
                "tessera config asks its questions on a terminal; tessera config default writes a "
                "file without them");
  const bool exists = std::filesystem::exists(path);
  if (exists) {
    const auto answer =
        ask_terminal(fmt::format("{} exists. Overwrite it? (yes, no) [no]: ", path));
    TESSERA_CHECK(answer && (answer->starts_with('y') || answer->starts_with('Y')),
                  ErrorCode::usage, "{} is not changed; name another file with --config-file",
                  path);
  }
  write_config(path, config_text(ask_questions(ask_terminal)), exists);
  return 0;
}

// Reading a file is not enough: a recipe must accept its settings together.
training::Recipe recipe_for(const training::AccelerateConfig& config,
                            const std::string& recipe_file,
                            const std::vector<std::string>& overrides, int ranks) {
  const std::string text =
      recipe_file.empty() ? "data: {train: text}" : read_small_file(recipe_file, "recipe");
  training::Recipe recipe = training::parse_recipe(
      text, recipe_file.empty() ? config.source : recipe_file, overrides, &config);
  training::validate(recipe, ranks);
  return recipe;
}

struct FileCommand {
  std::string file, recipe;
  std::vector<std::string> overrides;
  std::int64_t ranks = 0;

  [[nodiscard]] int world(const training::AccelerateConfig& config) const {
    return ranks > 0 ? static_cast<int>(ranks) : config.processes.value_or(1);
  }

  [[nodiscard]] int check() const {
    const training::AccelerateConfig config = training::read_accelerate_config(file);
    const training::Recipe read = recipe_for(config, recipe, overrides, world(config));
    for (const std::string& note : read.notes) print_out("{}\n", note);
    print_out("{}: good\n", file);
    return 0;
  }

  [[nodiscard]] int explain() const {
    const training::AccelerateConfig config = training::read_accelerate_config(file);
    const int size = world(config);
    const training::Recipe read = recipe_for(config, recipe, overrides, size);
    print_text(explain_settings(config, read));
    for (const std::string& note : read.notes) print_out("{}\n", note);
    if (recipe.empty()) return 0;
    const auto under = [&](const training::AccelerateConfig& other) {
      return recipe_for(other, recipe, overrides, size);
    };
    print_text(explain_costs(config, read, under, size));
    return 0;
  }
};

std::vector<Argument> file_arguments(FileCommand& command) {
  return {{.name = "file",
           .target = &command.file,
           .help = "The configuration",
           .type = "FILE",
           .required = true},
          {.name = "recipe",
           .target = &command.recipe,
           .help = "A recipe that the configuration is applied to",
           .type = "RECIPE"},
          {.name = "--set",
           .target = &command.overrides,
           .help = "Override a key of the recipe; repeatable",
           .type = "KEY=VALUE"},
          {.name = "--world-size",
           .target = &command.ranks,
           .help = "Ranks, in place of the file's num_processes",
           .least = 1,
           .most = 1 << 16}};
}

Command describe_check() {
  const auto options = std::make_shared<FileCommand>();
  return {.arguments = file_arguments(*options),
          .run = [options](const std::vector<std::string>&) { return options->check(); }};
}

Command describe_explain() {
  const auto options = std::make_shared<FileCommand>();
  return {.arguments = file_arguments(*options),
          .run = [options](const std::vector<std::string>&) { return options->explain(); }};
}

struct DefaultCommand {
  std::string file = usual_config_file;
  std::string mixed_precision = "no";

  [[nodiscard]] int run() const {
    ConfigAnswers answers = default_answers();
    TESSERA_CHECK(mixed_precision == "no" || mixed_precision == "bf16" || mixed_precision == "fp16",
                  ErrorCode::usage, "--mixed-precision {}: must be no, bf16 or fp16",
                  mixed_precision);
    answers.mixed_precision = mixed_precision;
    write_config(file, config_text(answers), false);
    return 0;
  }
};

Argument written_file(std::string* target) {
  return {.name = "--config-file",
          .target = target,
          .help = "The file to write",
          .type = "FILE",
          .shows_default = true};
}

Command describe_default() {
  const auto options = std::make_shared<DefaultCommand>();
  return {.arguments = {written_file(&options->file),
                        {.name = "--mixed-precision",
                         .target = &options->mixed_precision,
                         .help = "The precision of computation",
                         .type = "no|bf16|fp16",
                         .shows_default = true}},
          .run = [options](const std::vector<std::string>&) { return options->run(); }};
}

struct ConfigCommand {
  std::string file = usual_config_file;
  bool keys = false;
};

}  // namespace

Command describe_config() {
  const auto options = std::make_shared<ConfigCommand>();
  return {
      .arguments = {written_file(&options->file),
                    {.name = "--keys",
                     .target = &options->keys,
                     .help = "List Accelerate's keys and their effect here, as Markdown"}},
      .run =
          [options](const std::vector<std::string>&) {
            if (!options->keys) return write_by_questions(options->file);
            print_text(accelerate_reference());
            return 0;
          },
      .footer = "Without a subcommand it asks questions and writes the answers.",
      .nested = {{"default", "Write a file for this node without questions", describe_default,
                  "tessera config default --mixed-precision bf16"},
                 {"check", "Report the errors and the unused keys of a file", describe_check,
                  "tessera config check accelerate.yaml"},
                 {"explain", "Explain the effect of each key of a file, and its cost for a recipe",
                  describe_explain, "tessera config explain accelerate.yaml recipe.yaml"}}};
}

}  // namespace tessera::cli
