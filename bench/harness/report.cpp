// Ratios between rows, and rows as text.
#include "bench/harness/report.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/counted.h"
#include "base/error.h"
#include "base/text/byte_size.h"
#include "base/version.h"
#include "planner/environment.h"

namespace tessera::cli {
namespace {

double median_of_row(const BenchJson& row, const char* name) {
  return row.at(name).at("median").get<double>();
}

// True for rows that differ only in strategy, ranks and a peer's mode.
bool same_variant(const BenchJson& a, const BenchJson& b) {
  const auto who = [](const BenchJson& row) {
    return row["peer"].is_object() ? fmt::format("{} {}", row["peer"].value("name", ""),
                                                 row["peer"].value("compile", false))
                                   : std::string();
  };
  return a["variant"].is_string() && a["variant"] == b["variant"] && who(a) == who(b);
}

std::string mode_of(const BenchJson& row) {
  return row["peer"].is_object() ? row["peer"].value("mode", "") : std::string();
}

// The row of one rank: without a strategy, else with this one.
const BenchJson* baseline_of(const BenchJson& row, const BenchJson& rows) {
  const BenchJson* found = nullptr;
  for (const BenchJson& other : rows) {
    if (!is_measured(other) || other["world_size"] != 1 || !same_variant(row, other)) continue;
    if (other["strategy"] == "none") return &other;
    if (other["strategy"] == row["strategy"] && mode_of(other) == mode_of(row)) found = &other;
  }
  return found;
}

void derive_mfu(BenchJson& row) {
  const BenchJson &model = row["model"], &products = row["products"];
  if (!model.is_object()) return;
  const std::string formula = model.value("formula", "");
  row["mfu_formula"] = formula;
  if (!products.is_object()) return;
  const double peak = products.at("best_flops_per_s"), ranks = row["world_size"];
  const bool samples =
      model["flops_per_sample"].is_number() && model["tokens_per_sample"].is_number();
  const double per_second =
      samples ? model["flops_per_sample"].get<double>() * median_of_row(row, "samples_per_s")
              : model.value("flops_per_token", 0.0) * median_of_row(row, "tokens_per_s");
  if (peak <= 0 || per_second <= 0) return;
  row["mfu"] = per_second / (ranks * peak);
  row["mfu_formula"] = fmt::format(
      "{}; peak {:.4g} GFLOP/s a rank: the fastest of the model's own products in {}, timed alone "
      "on as many ranks in this run ({})",
      formula, peak / 1e9, products.value("dtype", ""), products.value("kernel", ""));
  row["products_share"] = products.at("step_s").get<double>() / median_of_row(row, "step_s");
}

double resident_of(const BenchJson& row) {
  const BenchJson& memory = row["memory"];
  return memory["resident"].is_number() ? memory["resident"].get<double>() : 0;
}

// Compares with our row of the same strategy, ranks and settings.
void derive_ratio(BenchJson& row, const BenchJson& rows) {
  if (!row["peer"].is_object()) return;
  for (const BenchJson& own : rows) {
    if (own["peer"].is_object() || !is_measured(own) || own["strategy"] != row["strategy"] ||
        own["world_size"] != row["world_size"] || !row["variant"].is_string() ||
        own["variant"] != row["variant"])
      continue;
    BenchJson ratio = {
        {"id", own["id"]},
        {"tokens_per_s", median_of_row(own, "tokens_per_s") / median_of_row(row, "tokens_per_s")},
        {"memory", nullptr}};
    if (resident_of(own) > 0 && resident_of(row) > 0)
      ratio["memory"] = resident_of(own) / resident_of(row);
    row["tessera"] = std::move(ratio);
    return;
  }
}

std::string label_of(const BenchJson& row) {
  const std::string strategy = row["strategy"];
  const int ranks = row["world_size"];
  std::string label =
      row["peer"].is_object()
          ? fmt::format("{} {}{}", row["peer"].value("name", ""), row["peer"].value("mode", ""),
                        row["peer"].value("compile", false) ? " compiled" : "")
      : strategy == "none" ? "No parallelism"
      : strategy == "dp"   ? "DP"
                           : strategy;
  if (ranks > 1) label += fmt::format(", {} ranks", ranks);
  for (const auto& [key, value] : row["axes"].items()) {
    const std::size_t dot = key.rfind('.');
    const bool known = key == "sharding.mixed_precision";
    label += known ? ", " + value.get<std::string>()
                   : fmt::format(", {} {}", dot == std::string::npos ? key : key.substr(dot + 1),
                                 value.get<std::string>());
  }
  return label;
}

std::string bytes_or_dash(const BenchJson& value) {
  // The number of a peer or of an older file may be invalid.
  const double bytes = value.is_number() ? value.get<double>() : -1;
  return bytes >= 0 && bytes < 0x1p63 ? bytes_text(static_cast<std::uint64_t>(bytes)) : "-";
}

std::string percent_or_dash(const BenchJson& value) {
  return value.is_number() ? fmt::format("{:.1f} %", 100 * value.get<double>()) : "-";
}

std::string exposed_text(const BenchJson& row) {
  if (!row["exposed_s"].is_object()) return "-";
  double sum = 0;
  for (const auto& [phase, seconds] : row["exposed_s"].items()) {
    if (seconds.is_number()) sum += seconds.get<double>();
  }
  return fmt::format("{:.1f} %", 100 * sum / median_of_row(row, "step_s"));
}

std::string moved_text(const BenchJson& row) {
  std::uint64_t sum = 0;
  for (const BenchJson& call : row["bytes_moved"]) sum += call.value("bytes", std::uint64_t{0});
  if (sum > 0) return bytes_text(sum);
  return bytes_or_dash(row["comm_bytes"]);
}

using Cells = std::vector<std::string>;

Cells cells_of(const BenchJson& row) {
  const BenchJson& rate = row["samples_per_s"];
  const double median = rate["median"];
  const double half = (rate["high"].get<double>() - rate["low"].get<double>()) / 2;
  // A single step in a round has no spread.
  const bool single = half == 0 && rate.value("rounds", BenchJson::array()).size() <= 1;
  const bool speedup = row["speedup"].is_number() && row["world_size"] != 1;
  const BenchJson& engine = row["engine_s_per_unit"];
  return {label_of(row),
          fmt::format("{:.4g} samples/s", median),
          speedup ? fmt::format("({:.3f}x)", row["speedup"].get<double>()) : "",
          single ? "-" : fmt::format("+-{:.1f} %", 100 * half / median),
          fmt::format("{:.0f}", median_of_row(row, "tokens_per_s")),
          speedup ? percent_or_dash(row["efficiency"]) : "-",
          bytes_or_dash(row["memory"]["measured"]),
          bytes_or_dash(row["memory"]["planned"]),
          bytes_or_dash(row["memory"]["resident"]),
          moved_text(row),
          exposed_text(row),
          engine.is_number() ? fmt::format("{:.0f} us", 1e6 * engine.get<double>()) : "-",
          percent_or_dash(row["products_share"]),
          percent_or_dash(row["mfu"]),
          row["launcher"]};
}

// The first and the last column are left-aligned, the others right-aligned; empty columns are left
// out.
std::string aligned(const std::vector<Cells>& lines) {
  std::vector<std::size_t> widths(lines.front().size(), 0);
  std::vector<bool> empty(widths.size(), true);
  for (const Cells& cells : lines) {
    for (std::size_t i = 0; i < cells.size(); ++i) {
      widths[i] = std::max(widths[i], cells[i].size());
      if (&cells != &lines.front() && !cells[i].empty() && cells[i] != "-") empty[i] = false;
    }
  }
  std::string text;
  for (const Cells& cells : lines) {
    std::string line = fmt::format("{:<{}}", cells.front(), widths.front());
    for (std::size_t i = 1; i + 1 < cells.size(); ++i) {
      if (!empty[i]) line += fmt::format("  {:>{}}", cells[i], widths[i]);
    }
    text += line + "  " + cells.back() + "\n";
  }
  return text;
}

std::string heading(const BenchJson& report) {
  const BenchJson &machine = report["machine"], &model = report["model"];
  const BenchJson& settings = report["settings"];
  const std::int64_t threads = settings.value("threads_per_rank", std::int64_t{1});
  return fmt::format(
      "{}: {}, {} parameters; {} of {}, {} a rank; {} after {} of warm-up, {} in turns\n\n",
      report.value("recipe", ""), model.value("architecture", ""),
      model.value("parameters", std::int64_t{0}), counted(machine.value("cores", 0), "core"),
      machine.value("processor", ""), counted(threads, "thread"),
      counted(settings.value("steps", std::int64_t{0}), "step"),
      settings.value("warmup", std::int64_t{0}),
      counted(settings.value("rounds", std::int64_t{0}), "round"));
}

}  // namespace

BenchJson bench_machine(const std::string& device) {
  const nlohmann::ordered_json environment = environment_report();
  const auto& gpus = environment.at("gpus");
  const std::string gpu = gpus.empty() ? "cuda" : gpus.begin().value().get<std::string>();
  return {{"processor", environment.at("cpu").at("model")},
          {"cores", environment.at("cpu").at("usable_cores")},
          {"memory_bytes", environment.at("memory").at("total_bytes")},
          {"device", device == "cuda" ? gpu : "cpu"},
          {"system", environment.at("tessera").at("system")},
          {"tessera", environment.at("tessera").at("version")},
          {"matrix_products", ""}};
}

void derive(BenchJson& report, std::size_t asked) {
  BenchJson& rows = report["rows"];
  for (std::size_t i = 0; i < std::min(asked, rows.size()); ++i) {
    BenchJson& row = rows[i];
    for (const char* name : {"speedup", "efficiency", "mfu", "products_share"}) row[name] = nullptr;
    row.erase("tessera");
    if (!is_measured(row)) continue;
    if (const BenchJson* one = baseline_of(row, rows)) {
      const double speedup =
          median_of_row(row, "samples_per_s") / median_of_row(*one, "samples_per_s");
      row["speedup"] = speedup;
      row["efficiency"] = speedup / row["world_size"].get<double>();
    }
    derive_mfu(row);
    derive_ratio(row, rows);
  }
}

std::string bench_text(const BenchJson& report) {
  std::vector<Cells> lines = {{"", "throughput", "", "spread", "tokens/s", "efficiency", "memory",
                               "planned", "resident", "moved a step", "exposed", "engine a unit",
                               "products", "MFU", "started by"}};
  std::string others;
  for (const bool peers : {false, true}) {
    for (const BenchJson& row : report["rows"]) {
      if (row["peer"].is_object() != peers) continue;
      if (is_measured(row)) {
        lines.push_back(cells_of(row));
        const std::string reason = row.value("reason", "");
        if (!reason.empty()) others += fmt::format("{}: failed later: {}\n", label_of(row), reason);
        continue;
      }
      std::string status = row.value("status", "");
      std::replace(status.begin(), status.end(), '_', ' ');
      others += fmt::format("{}: {}: {}\n", label_of(row), status, row.value("reason", ""));
    }
  }
  std::string text = heading(report);
  if (lines.size() > 1) text += aligned(lines);
  std::string ratios;
  for (const BenchJson& row : report["rows"]) {
    if (!row.contains("tessera")) continue;
    const BenchJson& ratio = row["tessera"];
    ratios += fmt::format("{}: Tessera has {:.2f} of its tokens/s", label_of(row),
                          ratio["tokens_per_s"].get<double>());
    if (ratio["memory"].is_number())
      ratios += fmt::format(" in {:.2f} of its memory", ratio["memory"].get<double>());
    ratios += "\n";
  }
  if (!ratios.empty()) text += "\n" + ratios;
  if (!others.empty()) text += (lines.size() > 1 ? "\n" : "") + others;
  return text;
}

int bench_exit_code(const BenchJson& report, std::size_t asked) {
  const BenchJson& rows = report["rows"];
  for (std::size_t i = 0; i < std::min(asked, rows.size()); ++i) {
    const int code = rows[i].value("exit_code", 0);
    if (code != 0) return code;
    if (!is_measured(rows[i])) return static_cast<int>(ErrorCode::runtime);
  }
  return 0;
}

}  // namespace tessera::cli
