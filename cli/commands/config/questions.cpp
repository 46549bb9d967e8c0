// Asks questions in the order in which answers decide about further questions.
#include "cli/commands/config/questions.h"

#include <fmt/format.h>

#include <charconv>
#include <map>
#include <vector>

#include "base/error.h"
#include "base/text/nearest.h"
#include "engine/device/backend.h"
#include "launch/launch.h"
#include "training/recipe/values.h"

namespace tessera::cli {
namespace {

std::string without_spaces_around(const std::string& text) {
  const std::size_t first = text.find_first_not_of(" \t\r");
  if (first == std::string::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r") - first + 1);
}

class Interview {
 public:
  explicit Interview(const Ask& ask) : ask_(ask) {}

  // An answer in which `problem` finds no error; an empty line means `fallback`.
  std::string text(const std::string& question, const std::string& fallback,
                   const std::function<std::string(const std::string&)>& problem) {
    std::string complaint;
    for (;;) {
      const auto line = ask_(fmt::format("{}{} [{}]: ", complaint, question, fallback));
      TESSERA_CHECK(line.has_value(), ErrorCode::usage,
                    "the input ended before all questions were answered; nothing was written");
      std::string answer = without_spaces_around(*line);
      if (answer.empty()) return fallback;
      const std::string wrong = problem(answer);
      if (wrong.empty()) return answer;
      complaint = wrong + "\n";
    }
  }

  std::string choice(const std::string& question, const std::string& fallback,
                     const std::vector<std::string>& choices) {
    const auto find = [&](const std::string& answer) -> std::string {
      for (const std::string& one : choices) {
        if (training::lower_case(one) == training::lower_case(answer)) return one;
      }
      return {};
    };
    const std::string answer =
        text(fmt::format("{} ({})", question, fmt::join(choices, ", ")), fallback,
             [&](const std::string& word) {
               return find(word).empty()
                          ? fmt::format("{} is none of them{}", word, did_you_mean(word, choices))
                          : std::string();
             });
    return find(answer);
  }

  bool truth(const std::string& question, bool fallback) {
    const auto is_yes = [](const std::string& word) {
      return training::lower_case(word).starts_with('y');
    };
    return is_yes(
        text(question + " (yes, no)", fallback ? "yes" : "no", [&](const std::string& word) {
          const bool no = training::lower_case(word).starts_with('n');
          return is_yes(word) || no ? std::string() : "answer yes or no";
        }));
  }

  std::int64_t number(const std::string& question, std::int64_t fallback, std::int64_t most) {
    const auto parsed = [](const std::string& word) {
      std::int64_t value = 0;
      const auto [stop, error] = std::from_chars(word.data(), word.data() + word.size(), value);
      return error == std::errc{} && stop == word.data() + word.size() ? value : 0;
    };
    return parsed(text(question, std::to_string(fallback), [&](const std::string& word) {
      const bool good = parsed(word) >= 1 && parsed(word) <= most;
      return good ? std::string() : fmt::format("a whole number from 1 to {}", most);
    }));
  }

 private:
  const Ask& ask_;
};

std::string class_names_problem(const std::string& names) {
  constexpr std::string_view letters =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_, ";
  return names.find_first_not_of(letters) == std::string::npos ? ""
                                                               : "names of classes, with commas";
}

void ask_sharding(Interview& interview, ConfigAnswers& answers) {
  const std::vector<std::string> policies = {"TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP",
                                             "NO_WRAP"};
  answers.version = static_cast<int>(interview.number("Version of FSDP", answers.version, 2));
  const bool first = answers.version == 1;
  if (first) {
    answers.strategy = interview.choice(
        "Strategy", answers.strategy,
        {"FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2"});
  } else {
    answers.reshard =
        interview.truth("Free parameters between forward and backward", answers.reshard);
  }
  answers.offload =
      interview.truth("Keep parameters, gradients and moments on the host", answers.offload);
  answers.wrap_policy =
      interview.choice("How the model is divided into units", answers.wrap_policy, policies);
  if (answers.wrap_policy == policies[0]) {
    const std::string own = "the model's own";
    const std::string names =
        interview.text("Layer classes, with commas", own, class_names_problem);
    answers.layer_classes = names == own ? "" : names;
  } else if (answers.wrap_policy == policies[1]) {
    constexpr std::int64_t usual = 100'000'000;
    answers.min_num_params =
        std::to_string(interview.number("Parameters of the smallest unit", usual, usual * 10'000));
  }
  if (first) {
    answers.backward_prefetch =
        interview.choice("Time to gather the next unit in the backward", answers.backward_prefetch,
                         {"BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH"});
  }
  answers.state_dict_type =
      interview.choice("Checkpoints", first ? "FULL_STATE_DICT" : "SHARDED_STATE_DICT",
                       {"FULL_STATE_DICT", "SHARDED_STATE_DICT"});
  answers.activation_checkpointing =
      interview.truth("Recompute activations in the backward", answers.activation_checkpointing);
}

using AnswerLines = std::map<std::string, std::string>;

const char* truth_text(bool value) {
  return value ? "true" : "false";
}

AnswerLines sharding_lines(const ConfigAnswers& answers) {
  AnswerLines lines = {
      {"fsdp_version", std::to_string(answers.version)},
      {"fsdp_offload_params", truth_text(answers.offload)},
      {"fsdp_auto_wrap_policy", answers.wrap_policy},
      {"fsdp_state_dict_type", answers.state_dict_type},
      {"fsdp_cpu_ram_efficient_loading", "true"},
      {"fsdp_activation_checkpointing", truth_text(answers.activation_checkpointing)}};
  if (answers.version == 1) {
    lines["fsdp_sharding_strategy"] = answers.strategy;
    lines["fsdp_backward_prefetch"] = answers.backward_prefetch;
    lines["fsdp_forward_prefetch"] = "true";
    lines["fsdp_use_orig_params"] = "true";
    lines["fsdp_sync_module_states"] = "true";
  } else {
    lines["fsdp_reshard_after_forward"] = truth_text(answers.reshard);
  }
  if (answers.wrap_policy == "SIZE_BASED_WRAP") {
    lines["fsdp_min_num_params"] = answers.min_num_params;
  }
  if (!answers.layer_classes.empty()) {
    lines["fsdp_transformer_layer_cls_to_wrap"] = answers.layer_classes;
  }
  return lines;
}

std::string type_text(const ConfigAnswers& answers) {
  if (answers.fsdp) return "FSDP";
  if (answers.processes == 1) return "'NO'";
  return answers.cpu ? "MULTI_CPU" : "MULTI_GPU";
}

}  // namespace

ConfigAnswers default_answers() {
  ConfigAnswers answers;
  const int gpus = backend_of(DeviceType::cuda).device_count();
  answers.cpu = gpus == 0;
  answers.processes = gpus > 0 ? gpus : launcher::usable_cores();
  return answers;
}

ConfigAnswers ask_questions(const Ask& ask) {
  constexpr std::int64_t most_ranks = 4096;
  ConfigAnswers answers = default_answers();
  Interview interview(ask);
  answers.processes =
      static_cast<int>(interview.number("Ranks on this node", answers.processes, most_ranks));
  answers.cpu = interview.truth("Compute on the CPU, even if there is a GPU", answers.cpu);
  answers.mixed_precision = interview.choice("Mixed precision", "no", {"no", "bf16", "fp16"});
  answers.fsdp = interview.truth("Shard the model over the ranks (FSDP)", true);
  if (answers.fsdp) ask_sharding(interview, answers);
  return answers;
}

std::string config_text(const ConfigAnswers& answers) {
  const AnswerLines top = {
      {"compute_environment", "LOCAL_MACHINE"},
      {"debug", "false"},
      {"distributed_type", type_text(answers)},
      {"machine_rank", "0"},
      {"main_training_function", "main"},
      {"mixed_precision", answers.mixed_precision == "no" ? "'no'" : answers.mixed_precision},
      {"num_machines", "1"},
      {"num_processes", std::to_string(answers.processes)},
      {"rdzv_backend", "static"},
      {"same_network", "true"},
      {"use_cpu", truth_text(answers.cpu)}};
  std::string text;
  for (const auto& [name, value] : top) {
    text += fmt::format("{}: {}\n", name, value);
    if (name != "distributed_type" || !answers.fsdp) continue;
    text += "fsdp_config:\n";
    for (const auto& [key, setting] : sharding_lines(answers)) {
      text += fmt::format("  {}: {}\n", key, setting);
    }
  }
  return text;
}

}  // namespace tessera::cli
