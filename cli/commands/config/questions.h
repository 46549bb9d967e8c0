// The questions of `tessera config`, and the file that is made from the answers.
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace tessera::cli {

// The values of a file; the defaults are those of `tessera config default`.
struct ConfigAnswers {
  int processes = 1;
  bool cpu = true;
  std::string mixed_precision = "no";
  bool fsdp = true;
  int version = 2;
  std::string strategy = "FULL_SHARD";  // version 1
  bool reshard = true;                  // version 2
  bool offload = false;
  std::string wrap_policy = "TRANSFORMER_BASED_WRAP";
  std::string layer_classes;  // empty: the model's own
  std::string min_num_params = "100000000";
  std::string backward_prefetch = "BACKWARD_PRE";  // version 1
  std::string state_dict_type = "SHARDED_STATE_DICT";
  bool activation_checkpointing = false;
};

// For this node: one rank for each GPU, or on the CPU one for each core.
ConfigAnswers default_answers();

// `ask` prints a question and returns a line, or nothing at the end of the input, which is an
// Error(usage). A wrong answer is asked for again.
using Ask = std::function<std::optional<std::string>(const std::string& question)>;
ConfigAnswers ask_questions(const Ask& ask);

// YAML as Accelerate reads and writes it: sorted keys.
std::string config_text(const ConfigAnswers& answers);

}  // namespace tessera::cli
