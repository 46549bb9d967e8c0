// `render`: conversations as the text that the tokenizer's chat template makes of them.
#include <chrono>
#include <memory>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/text/print.h"
#include "cli/subcommands.h"
#include "engine/data/text_reader.h"
#include "engine/storage/output_file.h"
#include "logs/output_files.h"
#include "tasks/columnar/table_files.h"
#include "tasks/columnar/table_reader.h"
#include "tasks/conversations/conversation.h"
#include "tokenizers/chat/template_files.h"

namespace tessera::cli {
namespace {

struct RenderCommand {
  std::string file, tokenizer, chat_template, json;
  std::vector<std::string> columns;
  bool generation_prompt = false;

  [[nodiscard]] int run() const {
    TESSERA_CHECK(!tokenizer.empty(), ErrorCode::usage,
                  "give --tokenizer FOLDER, whose chat template renders the conversations");
    logs::OutputFiles outputs;
    outputs.add_input(file == "-" ? "/dev/stdin" : file);
    outputs.add_input(tokenizer);
    outputs.add("--json " + json, json,
                [](std::string_view beginning) { return beginning.starts_with("{\"text\":"); });
    const auto tables = file == "-" ? std::nullopt : tasks::find_table_files({file});
    TESSERA_CHECK(
        !tables || tasks::has_json_rows(tables->front().kind), ErrorCode::data,
        "'{}' is Parquet or Arrow, and tessera render takes JSON lines; write some of its "
        "rows so, in Python: pandas.read_parquet(FILE).to_json('rows.jsonl', "
        "orient='records', lines=True)",
        file);
    const auto templates = tokenizers::ChatTemplates::load(tokenizer, chat_template);
    TextReader reader = file == "-" ? TextReader::standard_input() : TextReader(file);
    std::string lines;
    const auto kind = tables ? tables->front().kind : tasks::TableFileKind::json_lines;
    const auto print = [&](const nlohmann::ordered_json& row, const std::string& place) {
      const std::string text = rendered(row, place, templates);
      if (json.empty()) {
        print_data(text + "\n");
      } else {
        lines += nlohmann::json{{"text", text}}.dump() + "\n";
      }
    };
    tasks::for_each_json_row(kind, reader, print);
    if (!json.empty()) write_output("--json " + json, json, lines);
    return 0;
  }

 private:
  [[nodiscard]] std::string rendered(const nlohmann::ordered_json& row, const std::string& place,
                                     const tokenizers::ChatTemplates& templates) const {
    const std::vector<std::string> names = tasks::member_names(row);
    const tasks::ConversationRow one =
        tasks::conversation_of(row, tasks::conversation_columns(names, columns, place), place);
    if (one.conversation.messages.is_null()) return one.prompt + one.completion;
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    const tokenizers::RenderOptions options{
        .add_generation_prompt = generation_prompt,
        .now = std::chrono::duration_cast<std::chrono::seconds>(now).count()};
    try {
      return templates.choose(one.conversation).render(one.conversation, options).text;
    } catch (const Error& problem) {
      throw Error(problem.code(), place + ": " + problem.what());
    }
  }
};

}  // namespace

Command describe_render() {
  const auto options = std::make_shared<RenderCommand>();
  return {
      .arguments =
          {{.name = "conversations",
            .target = &options->file,
            .help =
                "JSON lines, or a tar of samples, with messages, conversations (from and value), "
                "or prompt and completion, and perhaps tools; - is standard input",
            .type = "FILE",
            .required = true},
           {.name = "--tokenizer",
            .target = &options->tokenizer,
            .help = "The tokenizer whose chat template is used: its folder",
            .type = "PATH"},
           {.name = "--chat-template",
            .target = &options->chat_template,
            .help = "A file with a template, in place of the tokenizer's",
            .type = "FILE"},
           {.name = "--column",
            .target = &options->columns,
            .help = "The key of the messages; given twice, those of a prompt and a completion",
            .type = "NAME"},
           {.name = "--generation-prompt",
            .target = &options->generation_prompt,
            .help = "End with the beginning of the answer, as for `tessera generate`"},
           {.name = "--json",
            .target = &options->json,
            .help = "Write JSON lines to this file, an object with the text in each",
            .type = "FILE"}},
      .run = [options](const std::vector<std::string>&) { return options->run(); }};
}

}  // namespace tessera::cli
