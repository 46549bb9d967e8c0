// `tokenize`: turns a text into token ids, as a stream for training, or line by line as JSON.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <future>
#include <memory>

#include "base/counted.h"
#include "base/error.h"
#include "base/text/byte_size.h"
#include "base/text/print.h"
#include "checkpoint/io/file.h"
#include "cli/subcommands.h"
#include "engine/data/token_stream.h"
#include "engine/data/tokenize_text.h"
#include "engine/storage/output_file.h"
#include "logs/output_files.h"
#include "tasks/columnar/table_corpus.h"
#include "tasks/columnar/table_files.h"
#include "tokenizers/load.h"
#include "training/interruption.h"

namespace tessera::cli {
namespace {

struct TokenizeStopped : std::exception {};

void stop_where_asked() {
  if (training::InterruptionWatch::signal() != 0) throw TokenizeStopped();
}

// The text's lines, without their ends. Text after the last line's end is a line if it is not
// empty.
std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    lines.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return lines;
}

// The output of --lines begins as [[1,2,3],
bool is_list_of_ids(std::string_view beginning) {
  return beginning.starts_with("[") &&
         beginning.find_first_not_of("[]0123456789,\n") == std::string_view::npos;
}

// Runs parts of [0, count) on `workers` threads; each part has its own place for results.
template <class Body>
void on_workers(std::size_t count, int workers, const Body& body) {
  const std::size_t threads = std::min(count, static_cast<std::size_t>(workers));
  std::vector<std::future<void>> running;
  for (std::size_t t = 0; t < threads; ++t) {
    running.push_back(std::async(std::launch::async, [&body, count, threads, t] {
      body(count * t / threads, count * (t + 1) / threads);
    }));
  }
  for (auto& one : running) one.get();
}

struct TokenizeCommand {
  std::string text;
  std::string tokenizer;
  std::string column;
  std::string out;
  std::string json;
  std::int64_t workers = 1;
  bool lines = false;
  bool special = false;

  [[nodiscard]] int run() const {
    TESSERA_CHECK(!lines || (out.empty() && !json.empty()), ErrorCode::usage,
                  "--lines writes JSON: give --json FILE, and no --out");
    TESSERA_CHECK(lines || (!out.empty() && json.empty() && !special), ErrorCode::usage,
                  "give --out FILE for the stream; --json and --special-tokens belong to --lines");
    TESSERA_CHECK(!lines || (column.empty() && !tasks::find_table_files({text})), ErrorCode::usage,
                  "--lines reads a text; leave it out for Parquet and Arrow files");
    TESSERA_CHECK(!tokenizer.empty(), ErrorCode::usage,
                  "give --tokenizer FOLDER, with a tokenizer.json, vocab.txt or tokenizer.model");
    check_outputs();
    const training::SignalThread signals;
    const training::InterruptionWatch watch;
    const auto loaded = tokenizers::load_tokenizer(tokenizer);
    try {
      if (lines) {
        write_lines(*loaded);
      } else {
        write_stream(*loaded);
      }
    } catch (const TokenizeStopped&) {
      print_err("tessera: stopped by signal {}\n", training::InterruptionWatch::signal());
      return 128 + training::InterruptionWatch::signal();
    }
    return 0;
  }

 private:
  void check_outputs() const {
    logs::OutputFiles outputs;
    outputs.add_input(text);
    outputs.add_input(tokenizer);
    outputs.add("--json " + json, json, is_list_of_ids);
    if (!lines) logs::require_regular_output("--out " + out, out);
    outputs.add("--out " + out, out, logs::begins_as(std::string(token_stream_magic), ""));
  }

  void write_stream(const Tokenizer& loaded) const {
    if (auto tables = tasks::find_table_files({text})) {
      write_rows({std::move(*tables), column}, loaded);
      return;
    }
    TESSERA_CHECK(column.empty(), ErrorCode::usage,
                  "--column is for Parquet and Arrow files, and {} is neither", text);
    const auto begin = std::chrono::steady_clock::now();
    TokenStreamWriter writer(out, loaded, stamp_of_text(text));
    TokenizeOptions options;
    options.workers = static_cast<int>(workers);
    const std::int64_t bytes =
        tokenize_text(text, loaded, options, [&](std::span<const std::int32_t> ids) {
          stop_where_asked();
          writer.append(ids);
        });
    TESSERA_CHECK(writer.tokens() > 0, ErrorCode::data, "text {} gives no tokens", text);
    writer.finish();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    print_out("{}: {} of {} (vocabulary {}) from {} in {:.2f} s\n", out,
              counted(writer.tokens(), "token"), loaded.name(), loaded.vocabulary_size(),
              bytes_text(static_cast<std::uint64_t>(bytes)), seconds.count());
  }

  void write_rows(const tasks::TableText& table, const Tokenizer& loaded) const {
    const auto begin = std::chrono::steady_clock::now();
    const std::int64_t tokens = tasks::write_table_tokens(table, loaded, static_cast<int>(workers),
                                                          out, [] { stop_where_asked(); });
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    print_out("{}: {} from {} in {:.2f} s\n", out, counted(tokens, "token"),
              counted(static_cast<std::int64_t>(table.files.size()), "file"), seconds.count());
  }

  void write_lines(const Tokenizer& loaded) const {
    std::string contents;
    try {
      contents = checkpoint::read_file(text, std::uint64_t{4} << 30);
    } catch (const Error& error) {
      throw Error(ErrorCode::data, error.what());
    }
    const std::vector<std::string_view> all = lines_of(contents);
    std::vector<std::string> written(all.size());
    on_workers(all.size(), static_cast<int>(workers), [&](std::size_t first, std::size_t last) {
      for (std::size_t i = first; i < last; ++i) {
        stop_where_asked();
        const auto ids = special ? loaded.encode_sequence(all[i], 0) : loaded.encode(all[i]);
        for (const std::int32_t id : ids) {
          fmt::format_to(std::back_inserter(written[i]), "{}{}", written[i].empty() ? "" : ",", id);
        }
      }
    });
    std::string list = "[";
    for (std::size_t i = 0; i < written.size(); ++i) {
      list += i == 0 ? "[" : ",\n[";
      list += written[i];
      list += ']';
    }
    list += "]\n";
    write_output("--json " + json, json, list);
  }
};

}  // namespace

Command describe_tokenize() {
  const auto options = std::make_shared<TokenizeCommand>();
  return {
      .arguments =
          {{.name = "text",
            .target = &options->text,
            .help = "The text, in UTF-8, or Parquet or Arrow: a file, a folder, or a pattern in "
                    "quotes",
            .type = "FILE",
            .required = true},
           {.name = "--tokenizer",
            .target = &options->tokenizer,
            .help = "tokenizer.json, vocab.txt, a SentencePiece .model or another file of "
                    "docs/tokenizers.md, a folder with one of them, or 'bytes'",
            .type = "PATH"},
           {.name = "--column",
            .target = &options->column,
            .help =
                "The column of Parquet or Arrow that has the texts or token ids; by default text, "
                "input_ids or tokens",
            .type = "NAME"},
           {.name = "--out",
            .target = &options->out,
            .help = "Write the tokens of the whole text to this file, as a stream for data.train",
            .type = "FILE"},
           {.name = "--lines",
            .target = &options->lines,
            .help = "Treat each line as a separate text, and write a list of ids for each"},
           {.name = "--json",
            .target = &options->json,
            .help = "The file for --lines: a JSON list of lists",
            .type = "FILE"},
           {.name = "--special-tokens",
            .target = &options->special,
            .help = "With --lines: put the tokenizer's special tokens around each line"},
           {.name = "--workers",
            .target = &options->workers,
            .help = "Threads that encode; the ids do not depend on it",
            .shows_default = true,
            .least = 1,
            .most = 1024}},
      .run = [options](const std::vector<std::string>&) { return options->run(); }};
}

}  // namespace tessera::cli
