// `tessera recipe`: checks a recipe without training, and lists the keys.
#include <fmt/format.h>

#include "cli/recipe.h"
#include "cli/recipe_schema.h"
#include "cli/subcommands.h"
#include "kernels/base/error.h"

namespace tessera::cli {
namespace {

struct RecipeCommand {
  std::string file;
  std::vector<std::string> overrides;
  int world_size = 1;
  bool keys = false;

  [[nodiscard]] int run() const {
    if (keys) {
      fmt::print("{}", recipe_reference());
      return 0;
    }
    TESSERA_CHECK(!file.empty(), ErrorCode::usage,
                  "name a recipe, or --keys to list what one may contain");
    const Recipe recipe = load_recipe(file, overrides);
    validate(recipe, world_size);
    fmt::print("{}\n", to_json(recipe).dump(2));
    return 0;
  }
};

}  // namespace

void add_recipe(CLI::App& command, Invocation& invocation) {
  const auto options = std::make_shared<RecipeCommand>();
  command.add_option("recipe", options->file, "The recipe")->type_name("FILE");
  command
      .add_option("--set", options->overrides, "Override a key, as in train.steps=100; repeatable")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  command.add_option("--world-size", options->world_size, "Ranks to check it for")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command.add_flag("--keys", options->keys,
                   "List every key with its default and meaning, as Markdown");
  command.callback(
      [options, &invocation] { invocation.action = [options] { return options->run(); }; });
}

}  // namespace tessera::cli
