// `tessera inspect`: lists the contents of a checkpoint of any format.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "base/counted.h"
#include "base/text/byte_size.h"
#include "base/text/print.h"
#include "base/text/printable.h"
#include "checkpoint/convert/convert.h"
#include "checkpoint/convert/plan.h"
#include "checkpoint/formats/format.h"
#include "checkpoint/state/scalars_json.h"
#include "cli/commands/checkpoint_output.h"
#include "cli/subcommands.h"

namespace tessera::cli {
namespace {

using checkpoint::formats::Contents;
using checkpoint::formats::Part;
using checkpoint::formats::TensorInfo;

struct Totals {
  std::size_t tensors = 0;
  std::int64_t elements = 0;
  std::uint64_t bytes = 0;
};

Totals totals_of(const Contents& contents, Part part) {
  Totals totals;
  for (const TensorInfo& tensor : contents.tensors) {
    if (tensor.part != part) continue;
    ++totals.tensors;
    totals.elements += checkpoint::element_count(tensor.shape, tensor.name);
    totals.bytes += checkpoint::bytes_of(tensor);
  }
  return totals;
}

std::vector<std::string> names_of_files(const Contents& contents) {
  std::vector<std::string> names;
  for (const auto& entry : contents.files) names.push_back(entry.first);
  for (const auto& entry : contents.texts) names.push_back(entry.first);
  std::sort(names.begin(), names.end());
  return names;
}

// A line for each value, with slashes between groups; long lists, and counts that hold for every
// parameter, are shortened.
void print_scalars(const nlohmann::json& value, const std::string& path) {
  if (value.is_object() && value.size() <= 16) {
    for (const auto& [key, child] : value.items()) {
      print_scalars(child, path.empty() ? key : path + "/" + key);
    }
    return;
  }
  constexpr std::size_t longest = 120;
  std::string text = value.is_object()
                         ? fmt::format("{} values", value.size())
                         : value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  if (text.size() > longest) text = text.substr(0, longest) + "...";
  print_out("  {} = {}\n", path, text);
}

struct InspectCommand {
  std::string path, json;

  [[nodiscard]] int run() const {
    const JsonReport output(json, "tessera-inspect", {path});
    const std::filesystem::path step = checkpoint::step_of_run(path);
    const auto& format = checkpoint::formats::recognise(step);
    const auto source = format.open(step);
    print(step, format, source->contents());
    output.write(to_json(step, format, source->contents()));
    return 0;
  }

 private:
  void print(const std::filesystem::path& step, const checkpoint::formats::Format& format,
             const Contents& contents) const {
    print_out("{}: {}, {}\n", step.string(), format.name, format.description);
    print_steps(step);
    for (const std::string& note : contents.notes) print_out("note: {}\n", note);
    for (const Part part : {Part::model, Part::optimizer}) print_tensors(contents, part);
    for (const auto& [alias, name] : contents.aliases) {
      print_out("{} is {} (tied)\n", alias, name);
    }
    const std::vector<std::string> files = names_of_files(contents);
    if (!files.empty()) print_out("files: {}\n", fmt::format("{}", fmt::join(files, " ")));
    const nlohmann::json& scalars = checkpoint::json_of(contents.scalars);
    if (!scalars.empty()) {
      print_out("training state:\n");
      print_scalars(scalars, "");
    }
  }

  void print_steps(const std::filesystem::path& step) const {
    if (step == std::filesystem::path(path)) return;
    std::vector<std::string> names;
    for (const auto& folder : checkpoint::steps_of_run(path)) {
      names.push_back(folder.filename().string());
    }
    print_out("the newest of {}: {}\n", counted(names.size(), "step"),
              fmt::format("{}", fmt::join(names, " ")));
  }

  static void print_tensors(const Contents& contents, Part part) {
    const Totals totals = totals_of(contents, part);
    if (totals.tensors == 0) {
      print_out("{}: nothing\n", part_name(part));
      return;
    }
    print_out("{}: {}, {}, {}\n", part_name(part), counted(totals.tensors, "tensor"),
              counted(totals.elements, "element"), bytes_text(totals.bytes));
    std::size_t width = 0;
    for (const TensorInfo& tensor : contents.tensors) {
      if (tensor.part == part) width = std::max(width, printable(tensor.name).size());
    }
    width = std::min<std::size_t>(width, 60);
    for (const TensorInfo& tensor : contents.tensors) {
      if (tensor.part != part) continue;
      print_out("  {:<{}}  {:<4} {:<16} {:>9}  {}\n", tensor.name, width, tensor.stored->name,
                checkpoint::describe_shape(tensor.shape), bytes_text(checkpoint::bytes_of(tensor)),
                tensor.where);
    }
  }

  static nlohmann::ordered_json to_json(const std::filesystem::path& step,
                                        const checkpoint::formats::Format& format,
                                        const Contents& contents) {
    nlohmann::ordered_json tensors = nlohmann::ordered_json::array();
    for (const TensorInfo& tensor : contents.tensors) {
      tensors.push_back({{"part", part_name(tensor.part)},
                         {"name", tensor.name},
                         {"dtype", tensor.stored->name},
                         {"shape", tensor.shape},
                         {"bytes", checkpoint::bytes_of(tensor)},
                         {"where", tensor.where}});
    }
    nlohmann::ordered_json json{{"path", step.string()}, {"format", format.name}};
    for (const Part part : {Part::model, Part::optimizer}) {
      const Totals totals = totals_of(contents, part);
      json[part_name(part)] = {
          {"tensors", totals.tensors}, {"elements", totals.elements}, {"bytes", totals.bytes}};
    }
    json["aliases"] = contents.aliases;
    json["files"] = names_of_files(contents);
    json["scalars"] = checkpoint::json_of(contents.scalars);
    json["notes"] = contents.notes;
    json["tensors"] = std::move(tensors);
    return json;
  }
};

}  // namespace

Command describe_inspect() {
  const auto options = std::make_shared<InspectCommand>();
  return {.arguments = {{.name = "path",
                         .target = &options->path,
                         .help = "A checkpoint of any format, or a folder of steps (its newest)",
                         .type = "PATH",
                         .required = true},
                        {.name = "--json",
                         .target = &options->json,
                         .help = "Write the list as JSON to this file",
                         .type = "FILE"}},
          .run = [options](const std::vector<std::string>&) { return options->run(); }};
}

}  // namespace tessera::cli
