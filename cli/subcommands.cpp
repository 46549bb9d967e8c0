// The list of subcommands, in the order of the help.
#include "cli/subcommands.h"

namespace tessera::cli {

const std::vector<Subcommand>& subcommands() {
  static const std::vector<Subcommand> list = {
      {"train", "Train a model from a recipe", describe_train},
      {"launch", "Start a program as N ranks, on this machine or with others", describe_launch, true},
      {"plan", "Memory and traffic of a recipe on any number of ranks, by strategy", describe_plan},
      {"bench", "Compare strategies by measurement, in turns, with the plan beside it",
       describe_bench},
      {"convert", "Convert a checkpoint to another format", describe_convert},
      {"inspect", "List the tensors and the training state of a checkpoint", describe_inspect},
      {"verify", "Check a checkpoint's checksums and coverage", describe_verify},
      {"tokenize", "Turn a text into tokens, for training or as JSON", describe_tokenize},
      {"generate", "Continue a text, or write its logits", describe_generate},
      {"encode", "Sentences of a file to rows of embeddings", describe_encode},
      {"evaluate", "Score a model on a data set", describe_evaluate},
      {"recipe", "Check a recipe and print all its values, or list the keys", describe_recipe},
      {"config", "Write, check and explain Accelerate's configuration files", describe_config},
      {"test", "Prove this installation: ranks, strategies, a save and a resume", describe_test},
      {"env", "Report versions, processor, memory and optional parts", describe_environment},
  };
  return list;
}

}  // namespace tessera::cli
