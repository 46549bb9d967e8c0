// `tessera diff`: compares two checkpoints of any formats.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "base/counted.h"
#include "base/error.h"
#include "base/text/print.h"
#include "base/text/printable.h"
#include "checkpoint/convert/diff.h"
#include "cli/commands/checkpoint_output.h"
#include "cli/subcommands.h"

namespace tessera::cli {
namespace {

using checkpoint::DiffReport;
using checkpoint::TensorDiff;

constexpr int exit_different = 1;

struct DiffCommand {
  std::string first, second, json;
  double tolerance = 0;
  bool weights_only = false, all = false;

  [[nodiscard]] int run() const {
    const JsonReport output(json, "tessera-diff", {first, second});
    checkpoint::DiffOptions options;
    options.tolerance = tolerance;
    options.weights_only = weights_only;
    options.stop = was_interrupted;
    return run_interruptibly([&] {
      DiffReport report;
      {
        ByteProgress progress;
        options.progress = [&](const checkpoint::ConvertProgress& at) {
          progress.show(at.doing, at.done, at.total);
        };
        report = checkpoint::diff(first, second, options);
      }
      print(report);
      output.write(to_json(report));
      return report.different == 0 ? 0 : exit_different;
    });
  }

 private:
  static bool compared(const TensorDiff& tensor) {
    return tensor.difference == checkpoint::Difference::none ||
           tensor.difference == checkpoint::Difference::values;
  }

  void print(const DiffReport& report) const {
    print_out("{} ({})\n{} ({})\n", report.first, report.first_format, report.second,
              report.second_format);
    for (const TensorDiff& tensor : report.tensors) {
      const bool equal = tensor.difference == checkpoint::Difference::none;
      if (equal && !all) continue;
      print_out("  {}{}: {}",
                part_name(tensor.part) == "model" ? "" : "optimizer: ", printable(tensor.name),
                name_of(tensor.difference));
      if (!tensor.first.empty()) print_out(", {}", tensor.first);
      if (!tensor.second.empty() && tensor.second != tensor.first) {
        print_out("{}{}", tensor.first.empty() ? ", " : " and ", tensor.second);
      }
      if (compared(tensor)) {
        print_out(", norms {:.9g} and {:.9g}, largest difference {:.3g}", tensor.first_norm,
                  tensor.second_norm, tensor.largest);
      }
      print_out("\n");
    }
    double largest = 0;
    for (const TensorDiff& tensor : report.tensors) largest = std::max(largest, tensor.largest);
    print_out("{} of {} differ, largest difference {:.3g}\n", report.different,
              counted(report.tensors.size(), "tensor"), largest);
  }

  // JSON has no infinity: such a difference is null.
  static nlohmann::ordered_json number(double value) {
    return std::isfinite(value) ? nlohmann::ordered_json(value) : nlohmann::ordered_json(nullptr);
  }

  nlohmann::ordered_json to_json(const DiffReport& report) const {
    nlohmann::ordered_json tensors = nlohmann::ordered_json::array();
    for (const TensorDiff& tensor : report.tensors) {
      nlohmann::ordered_json row{{"part", part_name(tensor.part)},
                                 {"name", printable(tensor.name)},
                                 {"result", name_of(tensor.difference)},
                                 {"first", tensor.first},
                                 {"second", tensor.second}};
      if (compared(tensor)) {
        row["norms"] = {number(tensor.first_norm), number(tensor.second_norm)};
        row["largest"] = number(tensor.largest);
      }
      tensors.push_back(std::move(row));
    }
    return {{"first", {{"path", report.first}, {"format", report.first_format}}},
            {"second", {{"path", report.second}, {"format", report.second_format}}},
            {"tolerance", tolerance},
            {"different", report.different},
            {"tensors", std::move(tensors)}};
  }
};

}  // namespace

Command describe_diff() {
  const auto options = std::make_shared<DiffCommand>();
  return {.arguments = {{.name = "first",
                         .target = &options->first,
                         .help = "A checkpoint of any format, or a folder of steps (its newest)",
                         .type = "A",
                         .required = true},
                        {.name = "second",
                         .target = &options->second,
                         .help = "Likewise",
                         .type = "B",
                         .required = true},
                        {.name = "--tolerance",
                         .target = &options->tolerance,
                         .help = "The largest difference of two elements that counts as none",
                         .shows_default = true,
                         .least = 0},
                        {.name = "--weights-only",
                         .target = &options->weights_only,
                         .help = "Leave out the optimizer's state"},
                        {.name = "--all",
                         .target = &options->all,
                         .help = "List the tensors that are equal, too"},
                        {.name = "--json",
                         .target = &options->json,
                         .help = "Write the report as JSON to this file",
                         .type = "FILE"}},
          .run = [options](const std::vector<std::string>&) { return options->run(); },
          .footer =
              "Exit code: 0 if names, shapes and values are equal, 1 if not, 2 and above for "
              "errors (docs/errors.md)."};
}

}  // namespace tessera::cli
