// Ratios between rows, and rows as text.
#include "bench/harness/report.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/counted.h"
#include "base/error.h"
#include "base/text/byte_size.h"
#include "base/version.h"
#include "planner/environment.h"

namespace tessera::bench {
namespace {

// True for rows that differ only in strategy, ranks and a peer's mode.
bool same_variant(const RowResult& a, const RowResult& b) {
  const auto who = [](const RowResult& row) {
    return row.peer ? fmt::format("{} {}", row.peer->name, row.peer->compile) : std::string();
  };
  return a.variant && a.variant == b.variant && who(a) == who(b);
}

std::string mode_of(const RowResult& row) {
  return row.peer ? row.peer->mode : std::string();
}

// The row of one rank: without a strategy, else with this one.
const RowResult* baseline_of(const RowResult& row, const std::vector<RowResult>& rows) {
  const RowResult* found = nullptr;
  for (const RowResult& other : rows) {
    if (!other.is_measured() || other.world_size != 1 || !same_variant(row, other)) continue;
    if (other.strategy == "none") return &other;
    if (other.strategy == row.strategy && mode_of(other) == mode_of(row)) found = &other;
  }
  return found;
}

void derive_mfu(RowResult& row) {
  if (!row.model) return;
  const ModelFigures& model = *row.model;
  row.mfu_formula = model.formula;
  if (!row.products) return;
  const ProductTimes& products = *row.products;
  const double peak = products.best_flops_per_s;
  const double per_second = model.flops_per_sample && model.tokens_per_sample
                                ? *model.flops_per_sample * row.samples_per_s.median
                                : model.flops_per_token * row.tokens_per_s.median;
  if (peak <= 0 || per_second <= 0) return;
  row.mfu = per_second / (row.world_size * peak);
  row.mfu_formula = fmt::format(
      "{}; peak {:.4g} GFLOP/s a rank: the fastest of the model's own products in {}, timed alone "
      "on as many ranks in this run ({})",
      model.formula, peak / 1e9, products.dtype, products.kernel);
  row.products_share = products.step_s / row.step_s.median;
}

// Compares with our row of the same strategy, ranks and settings.
void derive_ratio(RowResult& row, const std::vector<RowResult>& rows) {
  if (!row.peer || !row.variant) return;
  for (const RowResult& own : rows) {
    if (own.peer || !own.is_measured() || own.strategy != row.strategy ||
        own.world_size != row.world_size || own.variant != row.variant)
      continue;
    PeerRatio ratio{own.id, own.tokens_per_s.median / row.tokens_per_s.median, {}};
    const auto ours = static_cast<double>(own.memory.resident.value_or(0));
    const auto theirs = static_cast<double>(row.memory.resident.value_or(0));
    if (ours > 0 && theirs > 0) ratio.memory = ours / theirs;
    row.tessera = std::move(ratio);
    return;
  }
}

std::string label_of(const RowResult& row) {
  std::string label = row.peer ? fmt::format("{} {}{}", row.peer->name, row.peer->mode,
                                             row.peer->compile ? " compiled" : "")
                      : row.strategy == "none" ? "No parallelism"
                      : row.strategy == "dp"   ? "DP"
                                               : row.strategy;
  if (row.world_size > 1) label += fmt::format(", {} ranks", row.world_size);
  for (const auto& [key, value] : row.axes) {
    const std::size_t dot = key.rfind('.');
    const bool known = key == "sharding.mixed_precision";
    label +=
        known ? ", " + value
              : fmt::format(", {} {}", dot == std::string::npos ? key : key.substr(dot + 1), value);
  }
  return label;
}

std::string bytes_or_dash(const std::optional<std::uint64_t>& bytes) {
  return bytes ? bytes_text(*bytes) : "-";
}

std::string percent_or_dash(const std::optional<double>& value) {
  return value ? fmt::format("{:.1f} %", 100 * *value) : "-";
}

std::string exposed_text(const RowResult& row) {
  if (!row.exposed_s) return "-";
  double sum = 0;
  for (const auto& [phase, seconds] : *row.exposed_s) sum += seconds;
  return fmt::format("{:.1f} %", 100 * sum / row.step_s.median);
}

std::string moved_text(const RowResult& row) {
  std::uint64_t sum = 0;
  for (const MovedBytes& call : row.bytes_moved) sum += call.bytes;
  if (sum > 0) return bytes_text(sum);
  return bytes_or_dash(row.comm_bytes);
}

using Cells = std::vector<std::string>;

Cells cells_of(const RowResult& row) {
  const Spread& rate = row.samples_per_s;
  const double half = (rate.high - rate.low) / 2;
  // A single step in a round has no spread.
  const bool single = half == 0 && row.rounds() <= 1;
  const bool speedup = row.speedup && row.world_size != 1;
  const std::optional<double>& engine = row.engine_s_per_unit;
  return {label_of(row),
          fmt::format("{:.4g} samples/s", rate.median),
          speedup ? fmt::format("({:.3f}x)", row.speedup.value_or(0)) : "",
          single ? "-" : fmt::format("+-{:.1f} %", 100 * half / rate.median),
          fmt::format("{:.0f}", row.tokens_per_s.median),
          speedup ? percent_or_dash(row.efficiency) : "-",
          bytes_or_dash(row.memory.measured),
          bytes_or_dash(row.memory.planned),
          bytes_or_dash(row.memory.resident),
          moved_text(row),
          exposed_text(row),
          engine ? fmt::format("{:.0f} us", 1e6 * *engine) : "-",
          percent_or_dash(row.products_share),
          percent_or_dash(row.mfu),
          row.launcher};
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

std::string heading(const BenchReport& report) {
  const ModelFigures model = report.model.value_or(ModelFigures());
  const ReportSettings settings = report.settings.value_or(ReportSettings());
  return fmt::format(
      "{}: {}, {} parameters; {} of {}, {} a rank; {} after {} of warm-up, {} in turns\n\n",
      report.recipe, model.architecture, model.parameters, counted(report.machine.cores, "core"),
      report.machine.processor, counted(settings.threads_per_rank, "thread"),
      counted(settings.steps, "step"), settings.warmup, counted(settings.rounds, "round"));
}

}  // namespace

BenchMachine bench_machine(const std::string& device) {
  const BenchJson environment = planner::environment_report();
  const BenchJson& gpus = environment.at("gpus");
  const std::string gpu = gpus.empty() ? "cuda" : gpus.begin().value().get<std::string>();
  return {.processor = environment.at("cpu").at("model"),
          .cores = environment.at("cpu").at("usable_cores"),
          .memory_bytes = environment.at("memory").at("total_bytes"),
          .device = device == "cuda" ? gpu : "cpu",
          .system = environment.at("tessera").at("system"),
          .tessera = environment.at("tessera").at("version"),
          .matrix_products = {}};
}

void derive(BenchReport& report, std::size_t asked) {
  for (std::size_t i = 0; i < std::min(asked, report.rows.size()); ++i) {
    RowResult& row = report.rows[i];
    row.speedup = row.efficiency = row.mfu = row.products_share = std::nullopt;
    row.tessera.reset();
    if (!row.is_measured()) continue;
    if (const RowResult* one = baseline_of(row, report.rows)) {
      const double speedup = row.samples_per_s.median / one->samples_per_s.median;
      row.speedup = speedup;
      row.efficiency = speedup / row.world_size;
    }
    derive_mfu(row);
    derive_ratio(row, report.rows);
  }
}

std::string bench_text(const BenchReport& report) {
  std::vector<Cells> lines = {{"", "throughput", "", "spread", "tokens/s", "efficiency", "memory",
                               "planned", "resident", "moved a step", "exposed", "engine a unit",
                               "products", "MFU", "started by"}};
  std::string others;
  for (const bool peers : {false, true}) {
    for (const RowResult& row : report.rows) {
      if (row.peer.has_value() != peers) continue;
      if (row.is_measured()) {
        lines.push_back(cells_of(row));
        if (!row.reason.empty())
          others += fmt::format("{}: failed later: {}\n", label_of(row), row.reason);
        continue;
      }
      std::string state(name_of(row.state));
      std::replace(state.begin(), state.end(), '_', ' ');
      others += fmt::format("{}: {}: {}\n", label_of(row), state, row.reason);
    }
  }
  std::string text = heading(report);
  if (lines.size() > 1) text += aligned(lines);
  std::string ratios;
  for (const RowResult& row : report.rows) {
    if (!row.tessera) continue;
    ratios += fmt::format("{}: Tessera has {:.2f} of its tokens/s", label_of(row),
                          row.tessera->tokens_per_s);
    if (row.tessera->memory)
      ratios += fmt::format(" in {:.2f} of its memory", *row.tessera->memory);
    ratios += "\n";
  }
  if (!ratios.empty()) text += "\n" + ratios;
  if (!others.empty()) text += (lines.size() > 1 ? "\n" : "") + others;
  return text;
}

int bench_exit_code(const BenchReport& report, std::size_t asked) {
  for (std::size_t i = 0; i < std::min(asked, report.rows.size()); ++i) {
    const RowResult& row = report.rows[i];
    if (row.exit_code != 0) return row.exit_code;
    if (!row.is_measured()) return static_cast<int>(ErrorCode::runtime);
  }
  return 0;
}

}  // namespace tessera::bench
