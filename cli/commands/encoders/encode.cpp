// `tessera encode`: the sentences of a file, one per line, as a matrix of embeddings.
#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/counted.h"
#include "base/error.h"
#include "base/text/print.h"
#include "cli/commands/encoders/embedding_file.h"
#include "cli/commands/encoders/encoder_folder.h"
#include "cli/subcommands.h"
#include "cli/text_lines.h"
#include "logs/output_files.h"
#include "tasks/table_rows.h"
#include "training/device.h"

namespace tessera::cli {
namespace {

// Sentences that are sorted by length together; limits the memory for files of any length.
constexpr std::size_t window_sentences = 16'384;

// A file's lines, or those of stdin.
class Lines {
 public:
  // `column`: of JSON lines, or nothing.
  Lines(const std::string& path, std::string column)
      : path_(path == "-" ? "stdin" : path), column_(std::move(column)) {
    if (path == "-") return;
    file_.open(path, std::ios::binary);
    TESSERA_CHECK(file_.is_open() && !std::filesystem::is_directory(path), ErrorCode::data,
                  "{}: cannot be read", path);
  }

  // The next lines, at most `limit`; none at the end. Error(data) for a line that is not a
  // sentence.
  std::vector<std::string> take(std::size_t limit) {
    std::vector<std::string> lines;
    std::string line;
    std::istream& from = file_.is_open() ? file_ : std::cin;
    while (lines.size() < limit && std::getline(from, line)) {
      ++number_;
      if (!line.empty() && line.back() == '\r') line.pop_back();
      const std::string place = fmt::format("{}:{}", path_, number_);
      TESSERA_CHECK(!tasks::malformed_utf8(line), ErrorCode::data,
                    "{}: not UTF-8; convert the file, as with iconv", place);
      std::string text = line.empty() ? line : text_of_line(std::move(line), column_, place);
      TESSERA_CHECK(!text.empty(), ErrorCode::data,
                    "{}: an empty line; each line has to be a sentence", place);
      lines.push_back(std::move(text));
    }
    TESSERA_CHECK(!from.bad(), ErrorCode::data, "{}: cannot be read to its end", path_);
    return lines;
  }

 private:
  std::string path_;
  std::string column_;
  std::ifstream file_;
  std::int64_t number_ = 0;
};

void check_embedding_file(const std::string& out, const std::string& input) {
  logs::OutputFiles outputs;
  if (input != "-") outputs.add_input(input);
  logs::require_regular_output("--out " + out, out);
  outputs.add("--out " + out, out, EmbeddingFile::is_one);
}

struct EncodeCommand {
  std::string folder, base, input, column, out;
  std::int64_t batch_size = 32;
  bool normalize = false;
  std::vector<std::string> prompts;  // none: the folder's
  std::string device = "auto";
  std::string dtype = "float32";

  [[nodiscard]] int run() const;
  // This rank's batches of a window, whose first sentence is row `first`.
  void encode_window(const std::vector<std::string>& window, std::int64_t first,
                     const LoadedEncoder& encoder, const Context& context,
                     EmbeddingFile& file) const;
};

void scale_to_unit(std::vector<float>& row) {
  double squares = 0;
  for (const float value : row) squares += static_cast<double>(value) * value;
  const double norm = std::max(std::sqrt(squares), 1e-12);
  for (float& value : row) value = static_cast<float>(value / norm);
}

void EncodeCommand::encode_window(const std::vector<std::string>& window, std::int64_t first,
                                  const LoadedEncoder& encoder, const Context& context,
                                  EmbeddingFile& file) const {
  std::vector<std::size_t> lengths;
  for (const std::string& line : window) lengths.push_back(line.size());
  const std::vector<std::size_t> order = tasks::longest_first(lengths);
  std::vector<std::size_t> mine;
  std::vector<std::string_view> texts;
  for (std::size_t i = 0; i < order.size(); ++i) {
    const std::size_t batch = i / static_cast<std::size_t>(batch_size);
    if (batch % static_cast<std::size_t>(context.world_size()) !=
        static_cast<std::size_t>(context.rank())) {
      continue;
    }
    mine.push_back(order[i]);
    texts.emplace_back(window[order[i]]);
  }
  std::vector<float> values;
  tasks::encode_texts(texts, encoder.tokens(), encoder.encode(),
                      {.batch_size = batch_size, .device = context.device()},
                      [&](std::size_t text, std::span<const float> row) {
                        values.assign(row.begin(), row.end());
                        if (normalize) scale_to_unit(values);
                        file.write_row(first + static_cast<std::int64_t>(mine[text]), values);
                      });
}

int EncodeCommand::run() const {
  TESSERA_CHECK(!input.empty() && !out.empty(), ErrorCode::usage,
                "give the sentences as --input FILE (- for stdin) and the result as --out F.npy or "
                "--out F.safetensors");
  EmbeddingFile::check_name(out);
  TESSERA_CHECK(prompts.size() <= 1, ErrorCode::usage, "--prompt is given {} times; give one",
                prompts.size());
  const DType compute = parse_compute_dtype(dtype);
  const comm::World world = comm::world_from_environment();
  TESSERA_CHECK(input != "-" || world.size == 1, ErrorCode::usage,
                "--input -: {} ranks cannot share stdin; give a file", world.size);
  Lines lines(input, column);
  check_embedding_file(out, input);  // before the work
  const Context context = init(training::choose_device(device, world));
  const LoadedEncoder encoder(
      folder, context,
      {.dtype = compute,
       .base = base,
       .many_texts = true,
       .prompt = prompts.empty() ? std::nullopt : std::optional(prompts.front())});
  EmbeddingFile file(out, encoder.model().embedding_width(), context);
  const auto begin = std::chrono::steady_clock::now();
  std::int64_t rows = 0;
  for (auto window = lines.take(window_sentences); !window.empty();
       window = lines.take(window_sentences)) {
    encode_window(window, rows, encoder, context, file);
    rows += static_cast<std::int64_t>(window.size());
  }
  TESSERA_CHECK(rows > 0, ErrorCode::data, "{}: no sentences in it", input);
  file.finish(rows);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  if (context.is_main()) {
    print_out("{}: {} as rows of {} numbers, {:.1f} sentences/s\n", out, counted(rows, "sentence"),
              encoder.model().embedding_width(), static_cast<double>(rows) / seconds.count());
  }
  return 0;
}

}  // namespace

Command describe_encode() {
  const auto command = std::make_shared<EncodeCommand>();
  return {.arguments = {{.name = "folder",
                         .target = &command->folder,
                         .help = "A folder of Sentence Transformers, of a bare encoder as BERT "
                                 "(mean pooling), of a run's steps, or of an adapter",
                         .type = "FOLDER",
                         .required = true},
                        base_argument(command->base),
                        {.name = "--input",
                         .target = &command->input,
                         .help = "The sentences, one per line, in UTF-8; - reads stdin",
                         .type = "FILE"},
                        text_column_argument(&command->column),
                        {.name = "--out",
                         .target = &command->out,
                         .help = "The result, one row of fp32 per sentence: F.npy, or "
                                 "F.safetensors with the tensor `embeddings`",
                         .type = "FILE"},
                        {.name = "--batch-size",
                         .target = &command->batch_size,
                         .help = "Sentences in one forward; does not change the result",
                         .shows_default = true,
                         .least = 1},
                        {.name = "--prompt",
                         .target = &command->prompts,
                         .help = "A text that comes before each sentence, as 'query: ' (default: "
                                 "the folder's default prompt, usually none)",
                         .type = "TEXT"},
                        {.name = "--normalize",
                         .target = &command->normalize,
                         .help = "Scale each row to length 1"},
                        encoding_device_argument(command->device),
                        encoding_dtype_argument(command->dtype)},
          .run = [command](const std::vector<std::string>&) { return command->run(); },
          .footer = "Ranks under `tessera launch` share the sentences and write one file."};
}

}  // namespace tessera::cli
