// `tessera verify`: checks the checksums and the coverage of a checkpoint, or of every step of a
// run, and reports the damage and its effect.
#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <filesystem>
#include <memory>
#include <set>
#include <utility>

#include "base/counted.h"
#include "base/error.h"
#include "base/text/byte_size.h"
#include "base/text/print.h"
#include "checkpoint/convert/convert.h"
#include "checkpoint/convert/plan.h"
#include "checkpoint/formats/format.h"
#include "checkpoint/steps/lineage.h"
#include "checkpoint/steps/manifest.h"
#include "cli/commands/checkpoint_output.h"
#include "cli/subcommands.h"
#include "training/interruption.h"

namespace tessera::cli {
namespace {

struct Verdict {
  std::string path;
  std::string format = "unknown";
  std::size_t tensors = 0;
  std::uint64_t bytes = 0;  // of its tensors
  std::vector<std::string> damages;
  std::uint64_t damaged_bytes = 0;
  std::set<std::string> damaged_tensors;
  bool readable = true;  // false: nothing in it is usable
  bool found = true;     // false: it is not a checkpoint and shows no sign of one
};

// Ends verify() between two blocks.
struct Stopped : std::exception {};

// True if a path that no format recognises was a checkpoint: its name shows it, or it has a
// manifest that cannot be read.
bool was_checkpoint(const std::filesystem::path& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    return std::filesystem::exists(path / checkpoint::manifest_name, error) ||
           checkpoint::parse_committed_name(path.filename().string()).has_value();
  }
  constexpr std::string_view endings[] = {".safetensors", ".pt", ".pth", ".bin", ".ckpt"};
  return std::find(std::begin(endings), std::end(endings), path.extension().string()) !=
         std::end(endings);
}

Verdict verdict_of(const std::filesystem::path& path, ByteProgress& progress) {
  Verdict verdict;
  verdict.path = path.string();
  std::error_code error_of_path;
  TESSERA_CHECK(std::filesystem::exists(path, error_of_path), ErrorCode::checkpoint,
                "'{}' does not exist", path.string());
  std::unique_ptr<checkpoint::formats::Source> source;
  try {
    const auto& format = checkpoint::formats::recognise(path);
    verdict.format = format.name;
    source = format.open(path);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::checkpoint) throw;
    verdict.damages.emplace_back(error.what());
    verdict.readable = false;
    verdict.found = verdict.format != "unknown" || was_checkpoint(path);
    return verdict;
  }
  const auto& tensors = source->contents().tensors;
  verdict.tensors = tensors.size();
  for (const auto& tensor : tensors) verdict.bytes += checkpoint::bytes_of(tensor);
  std::uint64_t done = 0;
  const auto damages = source->examine([&](std::uint64_t bytes) {
    if (training::InterruptionWatch::signal() != 0) throw Stopped();
    done += bytes;
    progress.show("verifying", done, std::max(done, verdict.bytes));
  });
  for (const auto& damage : damages) {
    verdict.damages.push_back(damage.text);
    verdict.damaged_bytes += damage.bytes;
    for (const std::size_t tensor : damage.tensors) {
      verdict.damaged_tensors.insert(part_name(tensors[tensor].part) + " " + tensors[tensor].name);
    }
  }
  return verdict;
}

void print_verdict(const Verdict& verdict) {
  if (verdict.damages.empty()) {
    print_out("{}: sound ({}, {}, {})\n", verdict.path, verdict.format,
              counted(verdict.tensors, "tensor"), bytes_text(verdict.bytes));
    return;
  }
  if (!verdict.found) {
    print_out("{}: no checkpoint is there\n", verdict.path);
  } else if (!verdict.readable) {
    // The line below has the reason: damage, or a form that is refused.
    print_out("{}: {} ({}); nothing in it can be used\n", verdict.path,
              verdict.format == "unknown" ? "damaged" : "cannot be opened", verdict.format);
  } else {
    print_out("{}: damaged ({}); {} in {} of {} cannot be trusted\n", verdict.path, verdict.format,
              bytes_text(verdict.damaged_bytes), verdict.damaged_tensors.size(),
              counted(verdict.tensors, "tensor"));
  }
  for (const std::string& line : verdict.damages) print_out("  {}\n", line);
}

nlohmann::ordered_json verdict_json(const Verdict& verdict) {
  return {{"path", verdict.path},
          {"format", verdict.format},
          {"sound", verdict.damages.empty()},
          {"found", verdict.found},
          {"readable", verdict.readable},
          {"tensors", verdict.tensors},
          {"bytes", verdict.bytes},
          {"damaged_bytes", verdict.damaged_bytes},
          {"damaged_tensors", verdict.damaged_tensors},
          {"damages", verdict.damages}};
}

struct VerifyCommand {
  std::string path, json;

  [[nodiscard]] int run() const {
    const JsonReport output(json, "tessera-verify", {path});
    const training::SignalThread signals;
    const training::InterruptionWatch watch;
    std::vector<Verdict> verdicts;
    try {
      ByteProgress progress;
      for (const auto& one : paths()) verdicts.push_back(verdict_of(one, progress));
    } catch (const Stopped&) {
      print_err("tessera: stopped by signal {}\n", training::InterruptionWatch::signal());
      return 128 + training::InterruptionWatch::signal();
    }
    nlohmann::ordered_json all = nlohmann::ordered_json::array();
    bool sound = true;
    for (const Verdict& verdict : verdicts) {
      print_verdict(verdict);
      all.push_back(verdict_json(verdict));
      sound = sound && verdict.damages.empty();
    }
    output.write({{"sound", sound}, {"checkpoints", std::move(all)}});
    return sound ? 0 : static_cast<int>(ErrorCode::checkpoint);
  }

 private:
  // All steps of a folder of steps.
  [[nodiscard]] std::vector<std::filesystem::path> paths() const {
    std::vector<std::filesystem::path> steps = checkpoint::steps_of_run(path);
    if (!steps.empty()) return steps;
    return {path};
  }
};

}  // namespace

Command describe_verify() {
  const auto options = std::make_shared<VerifyCommand>();
  return {.arguments = {{.name = "path",
                         .target = &options->path,
                         .help = "A checkpoint of any format, or a folder of steps (all of them)",
                         .type = "PATH",
                         .required = true},
                        {.name = "--json",
                         .target = &options->json,
                         .help = "Write the results as JSON to this file",
                         .type = "FILE"}},
          .run = [options](const std::vector<std::string>&) { return options->run(); },
          .footer =
              "Exit code 5: a checkpoint is damaged or missing. Formats without checksums are read "
              "completely, and their structure is checked."};
}

}  // namespace tessera::cli
