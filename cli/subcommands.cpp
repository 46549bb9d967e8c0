// The list of subcommands, in the order of the help.
#include "cli/subcommands.h"

namespace tessera::cli {

const std::vector<Subcommand>& subcommands() {
  static const std::vector<Subcommand> list = {
      {"train", "Train a model from a recipe", add_train},
      {"launch", "Start a program as N ranks on this machine", add_launch, true},
      {"generate", "Continue a text, or write its logits", add_generate},
      {"recipe", "Check a recipe and print all its values, or list the keys", add_recipe},
      {"env", "Report versions, processor, memory and optional parts", add_environment},
  };
  return list;
}

}  // namespace tessera::cli
