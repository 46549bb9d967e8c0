// `tessera bench`: measures strategies against each other, and compares them with the plan.
#include <fmt/format.h>
#include <stdlib.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <memory>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/text/byte_size.h"
#include "base/text/nearest.h"
#include "base/text/print.h"
#include "base/write_failure.h"
#include "bench/harness/report.h"
#include "bench/harness/run.h"
#include "checkpoint/io/removal.h"
#include "cli/commands/bench_options.h"
#include "cli/report/html_report.h"
#include "cli/subcommands.h"
#include "comm/shared/join/rendezvous.h"
#include "engine/device/backend.h"
#include "launch/launch.h"
#include "logs/output_files.h"
#include "training/recipe/accelerate/config.h"

namespace tessera::cli {
namespace {

using bench::BenchGrid;
using bench::BenchReport;
namespace fs = std::filesystem;

constexpr int regression_code = 9;

// A folder for the files of the runs; removed at the end.
class BenchFolder {
 public:
  BenchFolder() {
    std::string pattern = (fs::temp_directory_path() / "tessera-bench-XXXXXX").string();
    TESSERA_CHECK(::mkdtemp(pattern.data()) != nullptr,
                  full_disk_or(errno, ErrorCode::configuration),
                  "{} cannot be created: {}; set TMPDIR to a writable folder", pattern,
                  describe_errno("mkdtemp", errno));
    path_ = pattern;
  }
  ~BenchFolder() { checkpoint::try_remove_tree(path_); }
  BenchFolder(const BenchFolder&) = delete;
  BenchFolder& operator=(const BenchFolder&) = delete;
  [[nodiscard]] const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

struct BenchCommand : BenchOptions {
  [[nodiscard]] int run() {
    if (!products.empty()) {
      bench::time_products(products);
      return 0;
    }
    TESSERA_CHECK(!file.empty(), ErrorCode::usage,
                  "name a recipe, as in: tessera bench examples/gpt2-bytes.yaml --world-sizes 1,2");
    const BenchFolder folder;
    bench::BenchProcesses processes(folder.path());
    try {
      return run(folder, processes);
    } catch (const bench::Stopped& stopped) {
      print_err(
          "tessera: stopped by signal {}{}\n", stopped.signal,
          json.empty()
              ? "; --json FILE keeps the measurements and continues from them"
              : fmt::format("; {} has the measurements, and the same command continues from them",
                            json));
      return 128 + stopped.signal;
    }
  }

 private:
  int run(const BenchFolder& folder, bench::BenchProcesses& processes) {
    bench::check_peers(peers);
    check_modes();
    TESSERA_CHECK(!fill_cores || peers.empty(), ErrorCode::usage,
                  "--fill-cores: only rows of Tessera get copies, so peers would have more cores "
                  "to themselves; leave out --peer");
    if (!device_memory.empty()) {
      settings.device_memory = read_memory_size("--device-memory", device_memory);
    }
    const BenchGrid grid = make_grid();
    check_outputs();
    const BenchReport old = compare.empty() ? BenchReport() : old_report();
    const auto kept = json.empty() ? std::nullopt : kept_report(grid);
    bench::BenchFile output("--json", json);
    if (!peers.empty())
      settings.peers.scripts = bench::peer_scripts(settings.peers, peers).string();
    std::vector<bench::BenchRow> rows = bench::make_rows(grid);
    if (!compare.empty()) check_partners(rows, old);
    bench::take_model_work(rows);
    refuse_all(rows);
    const std::size_t asked = rows.size();
    bench::BenchRun bench(grid, settings, std::move(rows), runner(grid, folder, processes), output,
                          command_text());
    if (kept) bench.take_over(*kept, again);
    output.keep(bench.report());
    bench.measure();
    const BenchReport& report = bench.report();
    const std::exception_ptr unwritten = write_files(output, report);
    print_text(bench::bench_text(report));
    const bool worse = !compare.empty() && print_comparison(report, old, asked);
    const int code = bench::bench_exit_code(report, asked);
    std::fflush(stdout);
    if (unwritten) std::rethrow_exception(unwritten);
    return code == 0 && worse ? regression_code : code;
  }

  // kept_report() says more of a file of --json that is something else.
  void check_outputs() const {
    logs::OutputFiles outputs;
    for (const std::string& input : {file, config_file}) outputs.add_input(input);
    outputs.add_checked("--json " + json, json);
    outputs.add_input(compare);
    outputs.add("--html " + html, html, is_html_report);
  }

  // Writes all files and returns the first failure: the measurements are printed in any case.
  [[nodiscard]] std::exception_ptr write_files(bench::BenchFile& output,
                                               const BenchReport& report) const {
    std::exception_ptr failure;
    const auto attempt = [&](const auto& write) {
      try {
        write();
      } catch (...) {
        if (!failure) failure = std::current_exception();
      }
    };
    attempt([&] { output.write(report); });
    if (!html.empty())  // parsed again, because all bytes are UTF-8 then
      attempt([&] {
        write_html_report(bench::BenchJson::parse(bench::json_text(bench::report_json(report))),
                          html);
      });
    return failure;
  }

  void check_partners(const std::vector<bench::BenchRow>& rows, const BenchReport& old) const {
    const bool any = std::any_of(rows.begin(), rows.end(), [&](const bench::BenchRow& row) {
      return bench::has_measured(old, row.id);
    });
    TESSERA_CHECK(any, ErrorCode::configuration,
                  "--compare {}: has none of these rows; use the options of its command, {}",
                  compare, bench::json_text(bench::BenchJson(old.command)));
  }

  // If every row is refused, that is an error, not a table.
  static void refuse_all(const std::vector<bench::BenchRow>& rows) {
    const auto refused = [](const bench::BenchRow& row) { return row.refused.has_value(); };
    const std::optional<Error>& first = rows.front().refused;
    if (first && std::all_of(rows.begin(), rows.end(), refused)) throw Error(*first);
  }

  void check_modes() const {
    TESSERA_CHECK(peer_modes.empty() || !peers.empty(), ErrorCode::usage,
                  "--peer-modes {}: requires --peer", fmt::join(peer_modes, ","));
    const std::vector<std::string> known = bench::all_peer_modes(peers);
    for (const std::string& mode : peer_modes) {
      TESSERA_CHECK(std::find(known.begin(), known.end(), mode) != known.end(), ErrorCode::usage,
                    "--peer-modes {}: there are {}{}", mode, fmt::join(known, ", "),
                    did_you_mean(mode, known));
    }
  }

  [[nodiscard]] BenchReport old_report() const {
    std::error_code ignored;
    TESSERA_CHECK(json.empty() || !fs::equivalent(compare, json, ignored), ErrorCode::usage,
                  "--compare {}: is also the file of --json; name a copy of it, or another --json",
                  compare);
    auto old = bench::read_bench_file("--compare", compare);
    TESSERA_CHECK(old.has_value(), ErrorCode::configuration,
                  "--compare {}: does not exist, or is empty", compare);
    return std::move(*old);
  }

  // The rows of an earlier run of the same recipe on the same machine.
  [[nodiscard]] std::optional<BenchReport> kept_report(const BenchGrid& grid) const {
    auto kept = bench::read_bench_file("--json", json);
    if (!kept) return kept;
    TESSERA_CHECK(kept->recipe == file, ErrorCode::configuration,
                  "--json {}: is a report of {}; name another file for {}", json,
                  bench::json_text(bench::BenchJson(kept->recipe)), file);
    const auto same = [&](const char* what, const auto& before, const auto& now) {
      TESSERA_CHECK(again || before == now, ErrorCode::configuration,
                    "--json {}: was measured with {} {}, but this node has {}; name another file, "
                    "or give --again to replace it",
                    json, what, bench::json_text(bench::BenchJson(before)),
                    bench::json_text(bench::BenchJson(now)));
      return before == now;
    };
    const bench::BenchMachine &old = kept->machine, &here = grid.machine;
    const bool kept_machine =
        same("processor", old.processor, here.processor) && same("cores", old.cores, here.cores) &&
        same("device", old.device, here.device) && same("tessera", old.tessera, here.tessera);
    return kept_machine ? std::move(kept) : std::nullopt;
  }

  [[nodiscard]] BenchGrid make_grid() const {
    BenchGrid grid;
    grid.recipe = file;
    grid.config_file = config_file;
    grid.settings = overrides;
    if (!device.empty()) grid.settings.push_back("train.device=" + device);
    const training::Recipe recipe =
        training::load_recipe(file, grid.settings, training::chosen_config_file(config_file));
    grid.strategies = bench::strategy_names(lists.strategies.empty() ? usual_strategies(recipe)
                                                                     : lists.strategies);
    grid.axes = axes();
    grid.peers = peers;
    grid.peer_modes = peer_modes;
    grid.peer_compile = peer_compile;
    const bool gpus = uses_gpus(recipe);
    grid.world_sizes = lists.world_sizes.empty() ? usual_world_sizes(gpus) : lists.world_sizes;
    for (const std::int64_t ranks : grid.world_sizes) {
      TESSERA_CHECK(ranks >= 1 && ranks <= comm::max_ranks_on_node, ErrorCode::usage,
                    "--world-sizes {}: must be numbers of ranks from 1 to {}, on one node", ranks,
                    comm::max_ranks_on_node);
    }
    grid.threads_per_rank = threads(grid);
    grid.fill_cores = fill_cores;
    grid.machine = bench::bench_machine(gpus ? "cuda" : "cpu");
    return grid;
  }

  // HYBRID_* differs from FULL_SHARD if the recipe sets a group size.
  static std::vector<std::string> usual_strategies(const training::Recipe& recipe) {
    std::vector<std::string> names = {"none",          "dp",        "NO_SHARD", "SHARD_OPTIMIZER",
                                      "SHARD_GRAD_OP", "FULL_SHARD"};
    if (recipe.sharding.group_size) {
      names.insert(names.end(), {"HYBRID_SHARD", "HYBRID_SHARD_ZERO2"});
    }
    return names;
  }

  static bool uses_gpus(const training::Recipe& recipe) {
    return recipe.train.device == training::DeviceChoice::cuda ||
           (recipe.train.device == training::DeviceChoice::automatic &&
            backend_of(DeviceType::cuda).device_count() > 0);
  }

  static std::vector<std::int64_t> usual_world_sizes(bool gpus) {
    constexpr int most = 8;
    const int devices = gpus ? backend_of(DeviceType::cuda).device_count()
                             : std::max(2, std::min(most, launcher::usable_cores()));
    if (devices <= 1) return {1};
    return {1, devices};
  }

  // The same for every row, so that a rank always has the same number of cores: one or more.
  [[nodiscard]] int threads(const BenchGrid& grid) const {
    if (threads_per_rank > 0) return threads_per_rank;
    for (const char* name : {"TESSERA_NUM_THREADS", "OMP_NUM_THREADS"}) {
      const char* text = std::getenv(name);
      if (text != nullptr && std::atoi(text) > 0) return std::atoi(text);
    }
    const std::int64_t most = *std::max_element(grid.world_sizes.begin(), grid.world_sizes.end());
    return static_cast<int>(std::max<std::int64_t>(1, launcher::usable_cores() / most));
  }

  [[nodiscard]] std::vector<bench::BenchAxis> axes() const {
    std::vector<bench::BenchAxis> all;
    const auto add = [&](const std::string& key, const std::vector<std::string>& values) {
      if (!values.empty()) all.push_back(bench::axis_of(key, values));
    };
    add("sharding.mixed_precision", lists.precisions);
    std::vector<std::string> batches;
    for (const std::int64_t batch : lists.batch_sizes) batches.push_back(std::to_string(batch));
    add("data.batch_size", batches);
    add("sharding.backward_prefetch", lists.prefetch);
    if (!lists.offload.empty()) all.push_back(bench::offload_axis(lists.offload));
    add("sharding.activation_checkpointing", lists.checkpointing);
    for (const std::string& text : lists.axes) all.push_back(bench::parse_axis(text));
    return all;
  }

  [[nodiscard]] bench::RowRunner runner(const BenchGrid& grid, const BenchFolder& folder,
                                        bench::BenchProcesses& processes) const {
    return {.processes = processes,
            .folder = folder.path(),
            .program = fs::read_symlink("/proc/self/exe"),
            .recipe = file,
            .config_file = config_file,
            .threads_per_rank = grid.threads_per_rank,
            .filled_ranks = grid.fill_cores ? static_cast<int>(*std::max_element(
                                                  grid.world_sizes.begin(), grid.world_sizes.end()))
                                            : 0};
  }

  // Quotes a word for a shell.
  static std::string shell_word(const std::string& text) {
    constexpr const char* plain =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=.,:/%@";
    if (!text.empty() && text.find_first_not_of(plain) == std::string::npos) return text;
    std::string quoted = "'";
    for (const char letter : text) quoted += letter == '\'' ? "'\\''" : std::string(1, letter);
    return quoted + "'";
  }

  // With all options that affect the measurement.
  [[nodiscard]] std::string command_text() const {
    std::vector<std::string> words = {"tessera bench", shell_word(file)};
    const auto list = [&](const char* option, const auto& values) {
      if (!values.empty())
        words.push_back(
            fmt::format("{} {}", option, shell_word(fmt::format("{}", fmt::join(values, ",")))));
    };
    const auto text = [&](const char* option, const std::string& value) {
      if (!value.empty()) words.push_back(fmt::format("{} {}", option, shell_word(value)));
    };
    const auto number = [&](const char* option, auto value, auto usual) {
      if (value != usual) words.push_back(fmt::format("{} {}", option, value));
    };
    list("--strategies", lists.strategies);
    list("--world-sizes", lists.world_sizes);
    list("--precisions", lists.precisions);
    list("--batch-sizes", lists.batch_sizes);
    list("--prefetch", lists.prefetch);
    list("--offload", lists.offload);
    list("--activation-checkpointing", lists.checkpointing);
    for (const std::string& axis : lists.axes) text("--axis", axis);
    for (const std::string& setting : overrides) text("--set", setting);
    text("--config-file", config_file);
    text("--device", device);
    text("--device-memory", device_memory);
    list("--peer", peers);
    list("--peer-modes", peer_modes);
    if (peer_compile) words.emplace_back("--peer-compile");
    if (fill_cores) words.emplace_back("--fill-cores");
    const bench::BenchSettings usual;
    if (settings.peers.python != usual.peers.python) text("--peer-python", settings.peers.python);
    number("--threads-per-rank", threads_per_rank, 0);
    number("--steps", settings.steps, usual.steps);
    number("--rounds", settings.rounds, usual.rounds);
    number("--warmup", settings.warmup, usual.warmup);
    number("--budget", settings.budget, usual.budget);
    number("--time-limit", settings.time_limit, usual.time_limit);
    number("--row-time-limit", settings.row_time_limit, usual.row_time_limit);
    return fmt::format("{}", fmt::join(words, " "));
  }

  // Returns true if a row is worse beyond the noise.
  [[nodiscard]] bool print_comparison(const BenchReport& report, const BenchReport& old,
                                      std::size_t asked) const {
    const bench::BenchComparison comparison = bench::compare_reports(report, old, asked);
    print_out("\nagainst {}:\n", compare);
    for (const std::string& line : comparison.lines) print_out("  {}\n", line);
    for (const std::string& line : comparison.regressions) print_out("regression: {}\n", line);
    return !comparison.regressions.empty();
  }
};

}  // namespace

Command describe_bench() {
  const auto command = std::make_shared<BenchCommand>();
  return {.arguments = bench_arguments(*command),
          .run = [command](const std::vector<std::string>&) { return command->run(); },
          .footer =
              "Exit code 9: --compare found a row that is slower beyond the noise. Otherwise the "
              "code of the first row that could not be measured (docs/errors.md), or 0."};
}

}  // namespace tessera::cli
