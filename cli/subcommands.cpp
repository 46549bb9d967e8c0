// The subcommands, in the order of the help.
#include "cli/subcommands.h"

namespace tessera::cli {

const std::vector<Subcommand>& subcommands() {
  static const std::vector<Subcommand> list = {
      {"train", "Train a model from a recipe", describe_train,
       "tessera train recipe.yaml --set train.steps=100"},
      {"launch", "Start a program as N ranks, on this node or on several", describe_launch,
       "tessera launch --nproc-per-node 2 -- tessera train recipe.yaml\n"
       "tessera launch --nnodes 2 --node-rank 0 --master-addr host0 --job-key-file key -- tessera "
       "train recipe.yaml",
       true},
      {"plan", "Memory and traffic of a recipe on any number of ranks, by strategy", describe_plan,
       "tessera plan recipe.yaml --world-size 64 --strategy all --cluster h100"},
      {"bench", "Measure and compare strategies, and compare them with the plan", describe_bench,
       "tessera bench recipe.yaml --strategies NO_SHARD,FULL_SHARD --world-sizes 2 --html "
       "report.html"},
      {"convert", "Convert a checkpoint to another format", describe_convert,
       "tessera convert out model --to hf --dtype bf16"},
      {"inspect", "List the tensors and the training state of a checkpoint", describe_inspect,
       "tessera inspect out/step-100"},
      {"diff", "Compare two checkpoints of any formats, tensor by tensor", describe_diff,
       "tessera diff out/step-100 model.gguf --tolerance 0.01"},
      {"verify", "Check a checkpoint's checksums and coverage", describe_verify,
       "tessera verify out/step-100"},
      {"tokenize", "Turn a text into tokens, for training or as JSON", describe_tokenize,
       "tessera tokenize corpus.txt --tokenizer tokenizer.json --out corpus.tokens"},
      {"render", "Render conversations with a tokenizer's chat template", describe_render,
       "tessera render conversations.jsonl --tokenizer path/to/tokenizer"},
      {"generate", "Continue a text, or write its logits", describe_generate,
       "tessera generate out --prompt \"Once upon a time\" --max-new-tokens 50"},
      {"encode", "Compute embeddings for the sentences of a file", describe_encode,
       "tessera encode model --input sentences.txt --out embeddings.npy --normalize"},
      {"evaluate", "Score a model on a data set", describe_evaluate,
       "tessera evaluate model --data test.csv --columns 1,2,3 --task similarity"},
      {"recipe", "Check a recipe and print all its values, or list the keys", describe_recipe,
       "tessera recipe recipe.yaml --set train.steps=100"},
      {"config", "Write, check and explain Accelerate's configuration files", describe_config,
       "tessera config --config-file accelerate.yaml"},
      {"test", "Check this installation: ranks, strategies, a save and a resume", describe_test,
       "tessera test --ranks 2"},
      {"env", "Report versions, processor, memory and optional parts", describe_environment,
       "tessera env --json"},
      {"help", "Show the help of a subcommand; the same as its --help", describe_help,
       "tessera help config check", true},
      {"version", "Print the version; the same as --version", describe_version, "tessera version"},
  };
  return list;
}

Argument config_file_argument(std::string* target) {
  return {.name = "--config-file",
          .target = target,
          .help = "An Accelerate configuration (YAML or JSON); its keys override the recipe's",
          .type = "FILE"};
}

}  // namespace tessera::cli
