// `tessera recipe`: checks a recipe without training, and lists the keys.
#include <fmt/format.h>

#include <memory>

#include "base/error.h"
#include "base/text/print.h"
#include "cli/subcommands.h"
#include "training/recipe/accelerate/config.h"
#include "training/recipe/recipe.h"
#include "training/recipe/schema.h"

namespace tessera::cli {
namespace {

struct RecipeCommand {
  std::string file;
  std::vector<std::string> overrides;
  std::string config_file;
  int world_size = 1;
  bool keys = false;

  [[nodiscard]] int run() const {
    if (keys) {
      print_text(training::recipe_reference());
      return 0;
    }
    TESSERA_CHECK(!file.empty(), ErrorCode::usage,
                  "name a recipe, or give --keys to list the keys");
    const training::Recipe recipe =
        training::load_recipe(file, overrides, training::chosen_config_file(config_file));
    training::validate(recipe, world_size);
    for (const std::string& note : recipe.notes) print_err("tessera: {}\n", note);
    // ASCII for a terminal; the same values as in recipe.json.
    print_text(
        training::to_json(recipe).dump(2, ' ', true, nlohmann::json::error_handler_t::replace) +
        "\n");
    return 0;
  }
};

}  // namespace

Command describe_recipe() {
  const auto options = std::make_shared<RecipeCommand>();
  return {.arguments =
              {{.name = "recipe", .target = &options->file, .help = "The recipe", .type = "FILE"},
               {.name = "--set",
                .target = &options->overrides,
                .help = "Override a key, as in train.steps=100; repeatable",
                .type = "KEY=VALUE"},
               config_file_argument(&options->config_file),
               {.name = "--world-size",
                .target = &options->world_size,
                .help = "The number of ranks to check the recipe for",
                .shows_default = true,
                .least = 1,
                .most = 1 << 20},
               {.name = "--keys",
                .target = &options->keys,
                .help = "List every key with its default and meaning, as Markdown"}},
          .run = [options](const std::vector<std::string>&) { return options->run(); }};
}

}  // namespace tessera::cli
