// `tessera generate`: text, or logits, from a checkpoint or a Hugging Face folder.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <cstdio>
#include <memory>
#include <optional>
#include <utility>

#include "checkpoint/checkpoint.h"
#include "checkpoint/safetensors.h"
#include "cli/subcommands.h"
#include "engine/autograd.h"
#include "engine/backend.h"
#include "engine/data/tokenizer.h"
#include "kernels/base/error.h"
#include "models/generate.h"
#include "models/registry.h"
#include "sharding/comm/world.h"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;

struct GenerateCommand {
  std::string folder;
  std::string prompt;
  std::vector<std::int64_t> prompt_ids;
  models::GenerateOptions options;
  std::string logits_file;
  std::string device = "auto";

  [[nodiscard]] int run() const;
  [[nodiscard]] std::unique_ptr<models::LanguageModel> load_model() const;
  [[nodiscard]] std::vector<std::int64_t> tokens(const models::LanguageModel& model) const;
  void write_logits(models::LanguageModel& model, const std::vector<std::int64_t>& ids) const;
};

std::vector<checkpoint::LogicalTensor> whole_tensors(const models::LanguageModel& model) {
  std::vector<checkpoint::LogicalTensor> tensors;
  for (const auto& parameter : model.named_parameters()) {
    const auto sizes = parameter.shape.sizes();
    tensors.push_back(
        {parameter.name,
         parameter.tensor.dtype(),
         {sizes.begin(), sizes.end()},
         {{0, parameter.tensor.elements(), parameter.tensor.data(), parameter.tensor.device()}}});
  }
  return tensors;
}

std::unique_ptr<models::LanguageModel> GenerateCommand::load_model() const {
  const auto alone = comm::connect(comm::World{});
  fs::path path = folder;
  TESSERA_CHECK(fs::is_directory(path), ErrorCode::checkpoint, "{}: no such folder", folder);
  if (!fs::exists(path / "config.json")) {  // a folder of steps
    const auto found = checkpoint::find_latest(*alone, path);
    if (found) {
      for (const std::string& reason : found->skipped) {
        fmt::print(stderr, "tessera: passed over {}\n", reason);
      }
      path = found->path;
    }
  }
  TESSERA_CHECK(fs::exists(path / "config.json"), ErrorCode::checkpoint,
                "{}: no config.json there; name a checkpoint of tessera train or a folder that "
                "transformers saved",
                path.string());
  auto model = models::make_language_model(models::read_config(path.string()),
                                           (path / "config.json").string());
  checkpoint::State state;
  state.model = whole_tensors(*model);
  if (fs::exists(path / "manifest.json")) {
    checkpoint::load(*alone, path, state, checkpoint::LoadParts::model_only);
  } else {
    const models::HuggingFaceNames names = model->hugging_face_names();
    checkpoint::load_hugging_face(path, state.model, names.ignored, names.aliases);
  }
  model->eval();
  return model;
}

std::vector<std::int64_t> GenerateCommand::tokens(const models::LanguageModel& model) const {
  if (!prompt_ids.empty()) return prompt_ids;
  const ByteTokenizer bytes;
  TESSERA_CHECK(
      model.vocabulary() == bytes.vocabulary_size(), ErrorCode::usage,
      "--prompt is read as bytes, and this model has a vocabulary of {}; give --prompt-ids",
      model.vocabulary());
  const auto ids = bytes.encode(prompt);
  return {ids.begin(), ids.end()};
}

void GenerateCommand::write_logits(models::LanguageModel& model,
                                   const std::vector<std::int64_t>& ids) const {
  const NoGradGuard no_grad;
  const auto length = static_cast<std::int64_t>(ids.size());
  TESSERA_CHECK(length > 0 && length <= model.positions(), ErrorCode::usage,
                "--logits: a prompt of {} tokens; the model takes 1 to {}", length,
                model.positions());
  const Tensor logits =
      cast(model.forward(
               Tensor::from(std::span<const std::int64_t>(ids), {1, length}).to(default_device())),
           float32)
          .to(Device::cpu());
  checkpoint::write_safetensors(
      logits_file, {{{"logits", float32, {length, model.vocabulary()}}, logits.data()}});
}

int GenerateCommand::run() const {
  TESSERA_CHECK(prompt.empty() != prompt_ids.empty(), ErrorCode::usage,
                "give the beginning of the text either as --prompt TEXT or as --prompt-ids 1,2,3");
  const DeviceGuard on_device(parse_device(device));
  const auto model = load_model();
  const std::vector<std::int64_t> ids = tokens(*model);
  if (!logits_file.empty()) write_logits(*model, ids);
  const ByteTokenizer bytes;
  const bool as_text = prompt_ids.empty();
  bool begun = false;
  // The prompt comes with the first token: one that the model refuses is not printed.
  const auto begin = [&] {
    if (std::exchange(begun, true)) return;
    if (as_text) {
      fmt::print("{}", prompt);
    } else {
      fmt::print("{}", fmt::join(ids, ","));
    }
  };
  const auto print = [&](std::int64_t id) {
    begin();
    const auto token = static_cast<std::int32_t>(id);
    if (as_text) {
      const std::string text = bytes.decode(std::span(&token, 1));
      std::fwrite(text.data(), 1, text.size(), stdout);
    } else {
      fmt::print(",{}", id);
    }
    std::fflush(stdout);
  };
  models::generate(*model, ids, options, print);
  begin();
  fmt::print("\n");
  return 0;
}

}  // namespace

Command describe_generate() {
  const auto command = std::make_shared<GenerateCommand>();
  models::GenerateOptions& options = command->options;
  return {
      .arguments = {{.name = "folder",
                     .target = &command->folder,
                     .help = "A checkpoint, a folder of checkpoints, or a Hugging Face folder",
                     .type = "FOLDER",
                     .required = true},
                    {.name = "--prompt",
                     .target = &command->prompt,
                     .help = "How the text begins (models of bytes)",
                     .type = "TEXT"},
                    {.name = "--prompt-ids",
                     .target = &command->prompt_ids,
                     .help = "The same as token ids, as in 1,2,3",
                     .type = "IDS",
                     .separator = ','},
                    {.name = "--max-new-tokens",
                     .target = &options.max_new_tokens,
                     .help = "How many tokens to add",
                     .shows_default = true,
                     .least = 0},
                    {.name = "--temperature",
                     .target = &options.temperature,
                     .help = "0 takes the most probable token each time",
                     .shows_default = true,
                     .least = 0},
                    {.name = "--top-k",
                     .target = &options.top_k,
                     .help = "Draw among the k most probable tokens only; 0: all",
                     .shows_default = true,
                     .least = 0},
                    {.name = "--seed",
                     .target = &options.seed,
                     .help = "Of the draws",
                     .shows_default = true},
                    {.name = "--device",
                     .target = &command->device,
                     .help = "Where to compute; auto takes a GPU where there is one",
                     .type = "auto|cpu|cuda",
                     .shows_default = true},
                    {.name = "--logits",
                     .target = &command->logits_file,
                     .help = "Write the prompt's logits [tokens, vocabulary] as fp32 safetensors",
                     .type = "FILE"}},
      .run = [command](const std::vector<std::string>&) { return command->run(); }};
}

}  // namespace tessera::cli
