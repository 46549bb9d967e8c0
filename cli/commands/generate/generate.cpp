// `tessera generate`: continues a text, or writes its logits, with a model from a checkpoint or a
// Hugging Face folder.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "base/counted.h"
#include "base/error.h"
#include "base/text/print.h"
#include "checkpoint/safetensors/safetensors.h"
#include "cli/commands/dtype_option.h"
#include "cli/commands/generate/prompts.h"
#include "cli/subcommands.h"
#include "cli/text_lines.h"
#include "engine/autograd.h"
#include "engine/data/tokenizer.h"
#include "engine/device/backend.h"
#include "engine/storage/output_file.h"
#include "logs/output_files.h"
#include "models/generate.h"
#include "models/load/load.h"
#include "tokenizers/load.h"

namespace tessera::cli {
namespace {

// In the metadata of the file of --logits, which tells it from other files.
constexpr const char* logits_content = "tessera generate --logits";

struct GenerateCommand {
  std::string folder;
  std::string base;
  std::vector<std::string> prompt;  // none, or one that may be empty
  Ids prompt_ids;
  std::string prompts_file;
  std::string column;
  models::GenerateOptions options;
  bool ignore_eos = false;
  bool chat = false;
  std::vector<std::string> system;  // none, or one
  bool stats = false;
  std::string logits_file;
  std::string dtype = "fp32";
  std::string device = "auto";

  [[nodiscard]] int run();
  void check_request() const;
  void check_logits_file() const;
  void write_logits(models::LanguageModel& model, const Ids& ids) const;
  void set_ends(const std::string& model_folder, const Tokenizer* tokenizer);
  void continue_one(models::LanguageModel& model, const Tokenizer* tokenizer, const Ids& ids) const;
  void continue_all(models::LanguageModel& model, const Tokenizer& tokenizer,
                    const Chat* around) const;
};

// In a chat, the text is a user's message. The template writes the special tokens.
Ids encoded(const Tokenizer& tokenizer, const Chat* chat, const std::string& text) {
  const std::vector<std::int32_t> ids =
      tokenizer.encode(chat != nullptr ? chat->text_of(text) : text);
  return {ids.begin(), ids.end()};
}

// The context of a longer prompt is its end.
void note_long_prompt(std::string_view which, const Ids& prompt,
                      const models::LanguageModel& model) {
  if (std::ssize(prompt) <= model.positions()) return;
  print_err("tessera: {} has {} tokens and the model {} positions: its last {} are continued\n",
            which, prompt.size(), model.positions(), model.positions());
}

// Prints a text that grows token by token; an incomplete character waits for its other tokens.
class GrowingText {
 public:
  // The text of the prompt's ids is not printed again, but later tokens may depend on it.
  GrowingText(const Tokenizer& tokenizer, const Ids& prompt)
      : tokenizer_(tokenizer), ids_(prompt.begin(), prompt.end()) {
    printed_ = tokenizer_.decode(ids_).size();
  }
  void add(std::int64_t id) {
    ids_.push_back(static_cast<std::int32_t>(id));
    const std::string text = tokenizer_.decode(ids_);
    constexpr std::string_view incomplete = "\xef\xbf\xbd";  // U+FFFD
    if (text.ends_with(incomplete) && text.size() <= printed_ + 4 * incomplete.size()) return;
    print(text);
  }
  void finish() { print(tokenizer_.decode(ids_)); }

 private:
  void print(const std::string& text) {
    if (text.size() <= printed_) return;
    print_data(std::string_view(text).substr(printed_));
    std::fflush(stdout);
    printed_ = text.size();
  }

  const Tokenizer& tokenizer_;
  std::vector<std::int32_t> ids_;
  std::size_t printed_ = 0;
};

// Measures the numbers for --stats.
class Stopwatch {
 public:
  void token() {
    last_ = Clock::now();
    if (++tokens_ == 1) first_ = last_;
  }
  void report(std::size_t prompt_tokens) const {
    const auto seconds = [](Clock::time_point from, Clock::time_point to) {
      return std::chrono::duration<double>(to - from).count();
    };
    const double all = seconds(begin_, tokens_ == 0 ? begin_ : last_);
    print_err(
        "tessera: {} of prompt, the first new one after {:.3f} s; {} new ones in "
        "{:.3f} s, {:.1f} tokens/s\n",
        counted(prompt_tokens, "token"), tokens_ == 0 ? 0.0 : seconds(begin_, first_), tokens_, all,
        all > 0 ? static_cast<double>(tokens_) / all : 0.0);
  }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point begin_ = Clock::now();
  Clock::time_point first_, last_;
  std::size_t tokens_ = 0;
};

// Before the model is loaded.
void GenerateCommand::check_logits_file() const {
  logs::OutputFiles outputs;
  outputs.add_input(prompts_file);
  outputs.add("--logits " + logits_file, logits_file, [](std::string_view beginning) {
    const std::string mark = fmt::format(R"("content":"{}")", logits_content);
    return beginning.find(mark) != std::string_view::npos;
  });
}

void GenerateCommand::check_request() const {
  TESSERA_CHECK(!chat || prompt_ids.empty(), ErrorCode::usage,
                "--chat makes a conversation of a text; give --prompt or --prompts");
  TESSERA_CHECK(system.empty() || (chat && system.size() == 1), ErrorCode::usage,
                "--system is the system's message of a chat, once; give --chat beside it");
  TESSERA_CHECK(prompt.size() <= 1, ErrorCode::usage,
                "--prompt is given {} times; --prompts FILE takes several, one on each line",
                prompt.size());
  TESSERA_CHECK(chat || prompt.empty() || !prompt.front().empty(), ErrorCode::usage,
                "--prompt is empty, and a text is continued from at least one token; give a text, "
                "or --prompt-ids with the id of the model's first token");
  const int given = static_cast<int>(!prompt.empty()) + static_cast<int>(!prompt_ids.empty()) +
                    static_cast<int>(!prompts_file.empty());
  TESSERA_CHECK(given == 1, ErrorCode::usage,
                "give the beginning of the text either as --prompt TEXT or as --prompt-ids 1,2,3, "
                "or several as --prompts FILE");
  TESSERA_CHECK(column.empty() || !prompts_file.empty(), ErrorCode::usage,
                "--column is the key of the texts in --prompts FILE");
  TESSERA_CHECK(options.sampling.top_p > 0, ErrorCode::usage, "--top-p must be above 0");
  TESSERA_CHECK(logits_file.empty() || prompts_file.empty(), ErrorCode::usage,
                "--logits takes one prompt; give --prompt or --prompt-ids");
}

void GenerateCommand::write_logits(models::LanguageModel& model, const Ids& ids) const {
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
  const checkpoint::ComposedHeader header = checkpoint::compose_safetensors_header(
      {{"logits", float32, {length, model.vocabulary()}}}, {{"content", logits_content}});
  std::string file = header.bytes;
  file.append(reinterpret_cast<const char*>(logits.data()), header.file_bytes - file.size());
  write_output("--logits " + logits_file, logits_file, file);
}

// A chat ends where its tokenizer's texts end, too.
void GenerateCommand::set_ends(const std::string& model_folder, const Tokenizer* tokenizer) {
  if (ignore_eos) return;
  for (const std::int64_t id : end_of_text_ids(model_folder)) options.stop_tokens.push_back(id);
  const auto end = chat ? tokenizer->end_of_text() : std::nullopt;
  if (end) options.stop_tokens.push_back(*end);
}

// The prompt is printed with the first token: a prompt that the model refuses is not printed.
// In a chat, only the answer is printed.
void GenerateCommand::continue_one(models::LanguageModel& model, const Tokenizer* tokenizer,
                                   const Ids& ids) const {
  bool begun = false;
  const auto begin = [&] {
    if (std::exchange(begun, true) || chat) return;
    print_data(tokenizer != nullptr ? prompt.front() : fmt::format("{}", fmt::join(ids, ",")));
  };
  std::optional<GrowingText> text;
  if (tokenizer != nullptr) text.emplace(*tokenizer, ids);
  note_long_prompt("the prompt", ids, model);
  Stopwatch watch;
  models::generate(model, ids, options, [&](std::int64_t id) {
    watch.token();
    begin();
    if (text) {
      text->add(id);
    } else {
      print_out(",{}", id);
      std::fflush(stdout);
    }
  });
  begin();
  if (text) text->finish();
  print_out("\n");
  if (stats) watch.report(ids.size());
}

// Prints one JSON object per prompt, in their order.
void GenerateCommand::continue_all(models::LanguageModel& model, const Tokenizer& tokenizer,
                                   const Chat* around) const {
  const std::vector<std::string> texts = read_prompts(prompts_file, column);
  std::vector<Ids> prompts;
  std::size_t prompt_tokens = 0;
  for (const std::string& text : texts) {
    prompts.push_back(encoded(tokenizer, around, text));
    note_long_prompt(fmt::format("prompt {}", prompts.size()), prompts.back(), model);
    prompt_tokens += prompts.back().size();
  }
  const std::vector<Ids> begun = prompts;
  Stopwatch watch;
  const std::vector<Ids> continued = models::generate_all(
      model, std::move(prompts), options, [&](std::size_t, std::int64_t) { watch.token(); });
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const std::vector<std::int32_t> all(continued[i].begin(), continued[i].end());
    const std::span<const std::int32_t> before = std::span(all).first(begun[i].size());
    const std::vector<std::int32_t> ids(all.begin() + std::ssize(begun[i]), all.end());
    const std::string text = tokenizer.decode(all);
    const std::size_t known = std::min(tokenizer.decode(before).size(), text.size());
    const nlohmann::json line = {
        {"prompt", texts[i]}, {"text", text.substr(known)}, {"tokens", ids}};
    print_out("{}\n", line.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace));
  }
  if (stats) watch.report(prompt_tokens);
}

int GenerateCommand::run() {
  check_request();
  check_logits_file();
  constexpr DType allowed[] = {float32, bfloat16};
  const DType weights = parse_dtype_option(dtype, allowed);
  const Device where = parse_device(device);
  const DeviceGuard on_device(where);
  const models::LoadedLanguageModel loaded =
      models::load_language_model(folder, weights, where, base);
  for (const std::string& reason : loaded.skipped) {
    print_err("tessera: passed over {}\n", reason);
  }
  models::LanguageModel& model = *loaded.model;
  // A step with an adapter has its own tokenizer.
  const bool own = !loaded.adapter.empty() && tokenizers::is_tokenizer_folder(loaded.adapter);
  const std::string& texts_from = own ? loaded.adapter : loaded.folder;
  std::shared_ptr<const Tokenizer> tokenizer;
  if (prompt_ids.empty()) tokenizer = tokenizer_of(texts_from, model);
  std::optional<Chat> conversation;
  if (chat) {
    conversation.emplace(texts_from, system.empty() ? std::nullopt : std::optional(system.front()));
  }
  const Chat* const around = conversation ? &*conversation : nullptr;
  set_ends(loaded.folder, tokenizer.get());
  if (!prompts_file.empty()) {
    continue_all(model, *tokenizer, around);
    return 0;
  }
  const Ids ids = tokenizer ? encoded(*tokenizer, around, prompt.front()) : prompt_ids;
  if (!logits_file.empty()) write_logits(model, ids);
  continue_one(model, tokenizer.get(), ids);
  return 0;
}

std::vector<Argument> prompt_arguments(GenerateCommand& command) {
  return {{.name = "folder",
           .target = &command.folder,
           .help = "A checkpoint, a folder of checkpoints, a Hugging Face folder, or an adapter's",
           .type = "FOLDER",
           .required = true},
          {.name = "--base",
           .target = &command.base,
           .help = "The base model of an adapter, if it is not at the place in adapter_config.json",
           .type = "FOLDER"},
          {.name = "--prompt",
           .target = &command.prompt,
           .help = "The beginning of the text",
           .type = "TEXT"},
          {.name = "--prompt-ids",
           .target = &command.prompt_ids,
           .help = "The same as token ids, as in 1,2,3",
           .type = "IDS",
           .separator = ','},
          {.name = "--prompts",
           .target = &command.prompts_file,
           .help = "Several prompts: a file with one on each line, or - for standard input; each "
                   "text is printed as a line of JSON",
           .type = "FILE"},
          text_column_argument(&command.column),
          {.name = "--chat",
           .target = &command.chat,
           .help = "Take a prompt as a user's message in the model's chat template, and print the "
                   "answer alone"},
          {.name = "--system",
           .target = &command.system,
           .help = "The system's message before it, with --chat",
           .type = "TEXT"}};
}

std::vector<Argument> sampling_arguments(GenerateCommand& command) {
  models::GenerateOptions& options = command.options;
  return {
      {.name = "--max-new-tokens",
       .target = &options.max_new_tokens,
       .help = "The number of tokens to add",
       .shows_default = true,
       .least = 0},
      {.name = "--temperature",
       .target = &options.sampling.temperature,
       .help = "0 takes the most probable token each time",
       .shows_default = true,
       .least = 0},
      {.name = "--top-k",
       .target = &options.sampling.top_k,
       .help = "Draw among the k most probable tokens only; 0: all",
       .shows_default = true,
       .least = 0},
      {.name = "--top-p",
       .target = &options.sampling.top_p,
       .help = "Draw among the most probable tokens that together have this probability; 1: all",
       .shows_default = true,
       .least = 0,
       .most = 1},
      {.name = "--seed",
       .target = &options.sampling.seed,
       .help = "The seed of the draws",
       .shows_default = true},
      {.name = "--stop",
       .target = &options.stop_tokens,
       .help = "Token ids that end the text, beside the model's eos_token_id",
       .type = "IDS",
       .separator = ','},
      {.name = "--ignore-eos",
       .target = &command.ignore_eos,
       .help = "Go on after the model's eos_token_id"}};
}

std::vector<Argument> computing_arguments(GenerateCommand& command) {
  return {{.name = "--dtype",
           .target = &command.dtype,
           .help = "The dtype of weights and computation",
           .type = "fp32|bf16",
           .shows_default = true},
          {.name = "--device",
           .target = &command.device,
           .help = "The device; auto: a GPU if there is one",
           .type = "auto|cpu|cuda",
           .shows_default = true},
          {.name = "--logits",
           .target = &command.logits_file,
           .help = "Write the prompt's logits [tokens, vocabulary] as fp32 safetensors",
           .type = "FILE"},
          {.name = "--stats",
           .target = &command.stats,
           .help = "Print tokens and their rate to standard error"}};
}

}  // namespace

Command describe_generate() {
  const auto command = std::make_shared<GenerateCommand>();
  std::vector<Argument> arguments = prompt_arguments(*command);
  for (const auto part : {sampling_arguments, computing_arguments}) {
    for (Argument& argument : part(*command)) arguments.push_back(std::move(argument));
  }
  return {.arguments = std::move(arguments),
          .run = [command](const std::vector<std::string>&) { return command->run(); }};
}

}  // namespace tessera::cli
