// `tessera convert`: writes a checkpoint in another format.
#include <fmt/format.h>

#include <memory>
#include <optional>
#include <utility>

#include "base/counted.h"
#include "base/error.h"
#include "base/text/byte_size.h"
#include "base/text/nearest.h"
#include "base/text/print.h"
#include "checkpoint/convert/convert.h"
#include "checkpoint/safetensors/safetensors.h"
#include "cli/commands/checkpoint_output.h"
#include "cli/commands/dtype_option.h"
#include "cli/subcommands.h"
#include "models/load/adapter.h"
#include "training/recipe/values.h"

namespace tessera::cli {
namespace {

using checkpoint::ConvertOptions;
using checkpoint::ConvertReport;

constexpr double most_files = 65536;

std::vector<std::string> written_formats() {
  std::vector<std::string> names;
  for (const auto& format : checkpoint::formats::formats()) {
    if (format.create != nullptr) names.emplace_back(format.name);
  }
  return names;
}

struct ConvertCommand {
  std::string source, target, to;
  int world_size = 1, heads = 0, ffn = 0;
  std::string max_shard_size, max_memory = "256MB", dtype, type, json, moments;
  std::string base;
  std::vector<std::string> average;
  bool weights_only = false, merge = false, verify = false, force = false;

  [[nodiscard]] int run() const {
    TESSERA_CHECK(target != "-", ErrorCode::usage,
                  "-: no checkpoint is written to standard output; ./- is a path of this name");
    ConvertOptions options = convert_options();
    const JsonReport output(json, "tessera-convert", outputs_apart_from());
    options.stop = was_interrupted;
    return run_interruptibly([&] {
      ConvertReport report;
      {
        ByteProgress progress;
        options.progress = [&](const checkpoint::ConvertProgress& at) {
          progress.show(at.doing, at.done, at.total);
        };
        report = checkpoint::convert(source, target, options);
      }
      print(report);
      output.write(to_json(report));
      return 0;
    });
  }

 private:
  [[nodiscard]] std::vector<std::string> outputs_apart_from() const {
    std::vector<std::string> paths{source, target, base};
    paths.insert(paths.end(), average.begin(), average.end());
    return paths;
  }

  [[nodiscard]] ConvertOptions convert_options() const {
    ConvertOptions options;
    options.to = format_name();
    options.world_size = world_size;
    options.max_file_size = max_shard_size.empty() ? 0 : bytes("--max-shard-size", max_shard_size);
    options.max_memory = bytes("--max-memory", max_memory);
    options.whole_process = true;
    options.int8 = training::lower_case(dtype) == "int8";
    if (!options.int8) options.dtype = chosen_dtype();
    options.type = training::lower_case(type);
    options.moments = chosen_moments();
    options.weights_only = weights_only;
    options.merge = merge;
    for (const std::string& other : average) options.average.emplace_back(other);
    options.base = base;
    if (heads > 0) options.narrow.heads = heads;
    if (ffn > 0) options.narrow.ffn = ffn;
    options.lies_in_out = models::weights_in_out;
    options.verify = verify;
    options.checksums = !json.empty();
    options.force = force;
    return options;
  }

  [[nodiscard]] std::string format_name() const {
    const std::vector<std::string> names = written_formats();
    TESSERA_CHECK(!to.empty(), ErrorCode::usage, "--to is missing: one of {}",
                  fmt::join(names, ", "));
    const std::string wanted = training::lower_case(to);
    for (const std::string& name : names) {
      if (name == wanted) return name;
    }
    fail(ErrorCode::usage, "--to {}: there are {}{}", to, fmt::join(names, ", "),
         did_you_mean(to, names));
  }

  static std::uint64_t bytes(const char* option, const std::string& text) {
    const auto number = parse_bytes(text);
    TESSERA_CHECK(number.has_value(), ErrorCode::usage,
                  "{} {}: must be a number of bytes, as in 5GB, 512MiB or 1e9", option, text);
    return *number;
  }

  [[nodiscard]] std::optional<DType> chosen_dtype() const {
    if (dtype.empty()) return std::nullopt;
    constexpr DType allowed[] = {float32, bfloat16, float16, float64};
    return parse_dtype_option(dtype, allowed, "int8");
  }

  [[nodiscard]] std::optional<checkpoint::Moments> chosen_moments() const {
    if (moments.empty()) return std::nullopt;
    const std::string wanted = training::lower_case(moments);
    TESSERA_CHECK(wanted == "fp32" || wanted == "8bit", ErrorCode::usage,
                  "--moments {}: there are fp32 and 8bit", moments);
    return wanted == "fp32" ? checkpoint::Moments::fp32 : checkpoint::Moments::eight_bit;
  }

  static void print(const ConvertReport& report) {
    std::size_t model = 0;
    for (const auto& tensor : report.tensors) {
      model += tensor.part == checkpoint::formats::Part::model ? 1 : 0;
    }
    print_out("{} ({}) -> {} ({})\n", report.source, report.source_format, report.target,
              report.target_format);
    print_out("{} of the model, {} of the optimizer, {} read, {} written\n",
              counted(model, "tensor"), report.tensors.size() - model,
              bytes_text(report.bytes_read), bytes_text(report.bytes_written));
    for (const std::string& note : report.notes) print_out("note: {}\n", note);
    const auto rate = static_cast<std::uint64_t>(static_cast<double>(report.bytes_written) /
                                                 std::max(report.seconds, 1e-9));
    print_out("{}{:.1f} s, {}/s, {} of memory at most\n",
              report.verified ? "read again and compared; " : "", report.seconds, bytes_text(rate),
              bytes_text(checkpoint::resident_memory().peak));
  }

  static nlohmann::ordered_json to_json(const ConvertReport& report) {
    nlohmann::ordered_json tensors = nlohmann::ordered_json::array();
    for (const auto& tensor : report.tensors) {
      tensors.push_back({{"part", part_name(tensor.part)},
                         {"name", tensor.name},
                         {"dtype", tensor.stored->name},
                         {"shape", tensor.shape},
                         {"bytes", tensor.bytes},
                         {"xxh3", hexadecimal(tensor.xxh3)}});
    }
    return {{"source", {{"path", report.source}, {"format", report.source_format}}},
            {"target", {{"path", report.target}, {"format", report.target_format}}},
            {"bytes_read", report.bytes_read},
            {"bytes_written", report.bytes_written},
            {"seconds", report.seconds},
            {"peak_memory", checkpoint::resident_memory().peak},
            {"verified", report.verified},
            {"notes", report.notes},
            {"tensors", std::move(tensors)}};
  }
};

}  // namespace

Command describe_convert() {
  const auto options = std::make_shared<ConvertCommand>();
  return {
      .arguments =
          {{.name = "source",
            .target = &options->source,
            .help = "A checkpoint of any format, or a folder of steps (its newest)",
            .type = "SRC",
            .required = true},
           {.name = "target",
            .target = &options->target,
            .help = "The file or folder to write",
            .type = "DST",
            .required = true},
           {.name = "--to",
            .target = &options->to,
            .help = "The format to write",
            .type = fmt::format("{}", fmt::join(written_formats(), "|"))},
           {.name = "--world-size",
            .target = &options->world_size,
            .help = "The number of files, for formats with one file per rank",
            .shows_default = true,
            .least = 1,
            .most = most_files},
           {.name = "--max-shard-size",
            .target = &options->max_shard_size,
            .help = "Bytes of tensors in a file, as in 5GB (default: one file)",
            .type = "BYTES"},
           {.name = "--dtype",
            .target = &options->dtype,
            .help = "The dtype of the model's floating-point tensors (default: unchanged); int8: "
                    "of the linear layers' weights, with scales, for --to hf",
            .type = "fp32|bf16|fp16|fp64|int8"},
           {.name = "--type",
            .target = &options->type,
            .help = "The type of the matrices in a GGUF file (default: as they are stored)",
            .type = "f32|f16|bf16|q8_0|q4_0|q4_k|q6_k"},
           {.name = "--moments",
            .target = &options->moments,
            .help =
                "Convert AdamW's moments to those of train.optimizer: adamw8bit (8bit), or back "
                "(fp32)",
            .type = "fp32|8bit"},
           {.name = "--weights-only",
            .target = &options->weights_only,
            .help = "Leave out the optimizer's state and the position"},
           {.name = "--merge",
            .target = &options->merge,
            .help = "For an adapter (PEFT's folder, a step with model.lora): write the base model "
                    "with the adapter merged into its weights"},
           {.name = "--base",
            .target = &options->base,
            .help = "The base model for --merge, if it is not at the place in adapter_config.json",
            .type = "FOLDER"},
           {.name = "--average",
            .target = &options->average,
            .help =
                "Write the mean of the weights of SRC and of this checkpoint of the same model; "
                "repeatable",
            .type = "CHECKPOINT"},
           {.name = "--heads",
            .target = &options->heads,
            .help = "Keep so many attention heads of each layer, those with the largest weights, "
                    "and leave the others out",
            .least = 1},
           {.name = "--ffn",
            .target = &options->ffn,
            .help = "Keep so many columns of each feed-forward layer, likewise",
            .least = 1},
           {.name = "--max-memory",
            .target = &options->max_memory,
            .help = "The memory that the program may use",
            .type = "BYTES",
            .shows_default = true},
           {.name = "--verify",
            .target = &options->verify,
            .help = "Read the result again and compare it before it gets its name"},
           {.name = "--force",
            .target = &options->force,
            .help = "Replace an existing checkpoint, after the new one is complete"},
           {.name = "--json",
            .target = &options->json,
            .help = "Write the report as JSON to this file, with a checksum of each tensor",
            .type = "FILE"}},
      .run = [options](const std::vector<std::string>&) { return options->run(); },
      .footer = "The format of the source is detected. docs/convert.md lists the formats."};
}

}  // namespace tessera::cli
