// `tokenize`: turns a text into token ids, as a stream for training, or line by line as JSON.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <optional>
#include <system_error>

#include "base/counted.h"
#include "base/error.h"
#include "base/text/byte_size.h"
#include "base/text/print.h"
#include "base/write_failure.h"
#include "checkpoint/io/file.h"
#include "cli/subcommands.h"
#include "cli/text_lines.h"
#include "engine/data/text_reader.h"
#include "engine/data/token_shards.h"
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

namespace fs = std::filesystem;

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

bool is_empty_or_stream(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::string beginning(token_stream_magic.size(), '\0');
  file.read(beginning.data(), static_cast<std::streamsize>(beginning.size()));
  return file.gcount() == 0 || beginning == token_stream_magic;
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
  std::string text;  // "-": standard input
  std::string tokenizer;
  std::string column;
  std::string out;
  std::string shard;
  std::string json;
  std::int64_t workers = 1;
  bool lines = false;
  bool special = false;

  [[nodiscard]] int run() const {
    TESSERA_CHECK(!lines || (out.empty() && !json.empty()), ErrorCode::usage,
                  "--lines writes JSON: give --json FILE, and no --out");
    TESSERA_CHECK(lines || (!out.empty() && json.empty() && !special), ErrorCode::usage,
                  "give --out FILE for the stream; --json and --special-tokens belong to --lines");
    TESSERA_CHECK(!lines || (shard.empty() && !tables()), ErrorCode::usage,
                  "--lines reads a text and writes one file; leave it out for Parquet and Arrow, "
                  "and with --shard");
    TESSERA_CHECK(!tokenizer.empty(), ErrorCode::usage,
                  "give --tokenizer FOLDER, with a tokenizer.json, vocab.txt or tokenizer.model");
    // Before another file gets its number.
    TESSERA_CHECK(!reads_standard_input() || ::fcntl(STDIN_FILENO, F_GETFD) != -1, ErrorCode::data,
                  "standard input is closed; pipe the text into this command");
    const tasks::TokenOutput output = token_output();
    check_outputs(output);
    const training::SignalThread signals;
    const training::InterruptionWatch watch;
    const auto loaded = tokenizers::load_tokenizer(tokenizer);
    try {
      if (lines) {
        write_lines(*loaded);
      } else {
        write_stream(*loaded, output);
      }
    } catch (const TokenizeStopped&) {
      print_err("tessera: stopped by signal {}\n", training::InterruptionWatch::signal());
      return 128 + training::InterruptionWatch::signal();
    }
    return 0;
  }

 private:
  [[nodiscard]] std::vector<std::string> columns() const {
    return column.empty() ? std::vector<std::string>() : std::vector<std::string>{column};
  }

  [[nodiscard]] bool reads_standard_input() const { return text == "-"; }

  [[nodiscard]] std::optional<std::vector<tasks::TableFile>> tables() const {
    return reads_standard_input() ? std::nullopt : tasks::find_table_files({text});
  }

  // The file of the stream. A folder of shards is made here.
  [[nodiscard]] tasks::TokenOutput token_output() const {
    if (shard.empty()) return {out};
    const TokenShard place = parse_token_shard(shard);
    require_file_name("--out " + out, out);
    std::error_code problem;
    fs::create_directories(out, problem);
    TESSERA_CHECK(!problem, full_disk_or(problem.value(), ErrorCode::configuration),
                  "--out {}: with --shard it is a folder, and it cannot be made: {}", out,
                  problem.message());
    return {token_shard_path(out, place), place};
  }

  void check_outputs(const tasks::TokenOutput& output) const {
    logs::OutputFiles outputs;
    outputs.add_input(reads_standard_input() ? "/dev/stdin" : text);
    outputs.add_input(tokenizer);
    outputs.add("--json " + json, json, is_list_of_ids);
    if (lines) return;
    const std::string what = "--out " + output.path.string();
    logs::require_regular_output(what, output.path);
    // The stream's writer finds out whether it can be written, by a file that later runs remove if
    // this one is killed.
    outputs.add_checked(what, output.path);
    TESSERA_CHECK(is_empty_or_stream(output.path), ErrorCode::configuration,
                  "{}: exists and has another format; name another file", what);
  }

  [[nodiscard]] TextReader open_text() const {
    return reads_standard_input() ? TextReader::standard_input(stop_where_asked) : TextReader(text);
  }

  void write_stream(const Tokenizer& loaded, const tasks::TokenOutput& output) const {
    const auto begin = std::chrono::steady_clock::now();
    std::string from = reads_standard_input() ? "standard input" : text;
    std::int64_t tokens = 0;
    const auto stop = [] { stop_where_asked(); };
    std::string of = fmt::format(" of {} (vocabulary {})", loaded.name(), loaded.vocabulary_size());
    if (auto files = tables()) {
      of = "";  // ids may be another tokenizer's
      from = counted(static_cast<std::int64_t>(files->size()), "file");
      tokens = tasks::write_table_tokens({std::move(*files), columns(), tokenizer}, loaded,
                                         static_cast<int>(workers), output, stop);
    } else if (!column.empty() && reads_standard_input()) {
      of = "";
      TextReader reader = open_text();
      tokens = tasks::write_row_tokens(reader, {{}, columns(), tokenizer}, loaded,
                                       static_cast<int>(workers), output, stop);
    } else if (!column.empty()) {
      of = "";
      const auto lines_of = tasks::json_lines(tasks::expand_files({text}));
      if (lines_of.size() > 1) from = counted(static_cast<std::int64_t>(lines_of.size()), "file");
      tokens = tasks::write_table_tokens({lines_of, columns(), tokenizer}, loaded,
                                         static_cast<int>(workers), output, stop);
    } else {
      tokens = write_text(loaded, output, from);
    }
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    print_out("{}: {}{} from {} in {:.2f} s\n", output.path.string(), counted(tokens, "token"), of,
              from, seconds.count());
  }

  // Returns the number of tokens, and in `from` the size of the text.
  [[nodiscard]] std::int64_t write_text(const Tokenizer& loaded, const tasks::TokenOutput& output,
                                        std::string& from) const {
    const bool piped = reads_standard_input();
    TextReader reader = open_text();
    TextStamp source;
    if (!piped) {
      const TextStamp stamp = stamp_of_text(text);
      source = {stamp.bytes, stamp.modified_ns};  // those that a copy of the text keeps
    }
    TokenStreamWriter writer(output.path, loaded, source, output.shard);
    TokenizeOptions options;
    options.workers = static_cast<int>(workers);
    options.ends_whole = piped && loaded.name() != "bytes";
    const std::int64_t bytes =
        tokenize_text(reader, loaded, options, [&](std::span<const std::int32_t> ids) {
          stop_where_asked();
          writer.append(ids);
        });
    TESSERA_CHECK(writer.tokens() > 0 || output.shard.count > 0, ErrorCode::data,
                  "{} gives no tokens", reader.name());
    writer.finish();
    from = bytes_text(static_cast<std::uint64_t>(bytes));
    return writer.tokens();
  }

  [[nodiscard]] std::string whole_text() const {
    constexpr std::uint64_t most_bytes = std::uint64_t{4} << 30;
    if (reads_standard_input()) {
      TextReader reader = open_text();
      std::string contents;
      while (reader.append(contents, std::int64_t{1} << 20)) {
        TESSERA_CHECK(contents.size() <= most_bytes, ErrorCode::data,
                      "{} has more than {} bytes; give it in parts", reader.name(), most_bytes);
      }
      return contents;
    }
    try {
      return checkpoint::read_file(text, most_bytes);
    } catch (const Error& error) {
      throw Error(ErrorCode::data, error.what());
    }
  }

  void write_lines(const Tokenizer& loaded) const {
    const std::string contents = whole_text();
    const std::vector<std::string_view> all = lines_of(contents);
    const std::string place = reads_standard_input() ? "standard input" : text;
    std::vector<std::string> written(all.size());
    on_workers(all.size(), static_cast<int>(workers), [&](std::size_t first, std::size_t last) {
      for (std::size_t i = first; i < last; ++i) {
        stop_where_asked();
        const std::string one =
            text_of_line(std::string(all[i]), column, fmt::format("{}:{}", place, i + 1));
        const auto ids = special ? loaded.encode_sequence(one, 0) : loaded.encode(one);
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
            .help =
                "The text, in UTF-8, JSON lines (with --column), or Parquet, Arrow or tar: a file, "
                "a folder, or a pattern in quotes; - is standard input, for texts and JSON lines. "
                "All but Parquet and Arrow may be compressed by gzip or Zstandard",
            .type = "FILE",
            .required = true},
           {.name = "--tokenizer",
            .target = &options->tokenizer,
            .help = "tokenizer.json, vocab.txt, a SentencePiece .model or another file of "
                    "docs/tokenizers.md, a folder with one of them, or 'bytes'",
            .type = "PATH"},
           {.name = "--column",
            .target = &options->column,
            .help = "The column of Parquet or Arrow that has the texts, token ids or messages; by "
                    "default text, input_ids or tokens, or those of a conversation. A text with a "
                    "column is JSON lines, and this is the key of the texts",
            .type = "NAME"},
           {.name = "--out",
            .target = &options->out,
            .help = "Write the tokens of the whole text to this file, as a stream for data.train",
            .type = "FILE"},
           {.name = "--shard",
            .target = &options->shard,
            .help = "The text is part I of N of a corpus, which other processes write: --out is a "
                    "folder, and gets tokens-I-of-N.tokens; data.train takes the folder",
            .type = "I/N"},
           {.name = "--lines",
            .target = &options->lines,
            .help =
                "Treat each line, or with --column the text in it, as a separate text, and write "
                "a list of ids for each"},
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
