// Every CPU kernel, the head, grouped products, the collectives and checkpoint files, compared with
// their bounds, as one Google Benchmark program.
#include <fmt/format.h>

#include <charconv>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <string_view>

#include "base/parallel.h"
#include "bench/kernels/rows.h"
#include "kernels/cpu/description.h"
#include "kernels/cpu/matmul/matmul_amx.h"

namespace {

using namespace tessera;

constexpr std::string_view help = R"(usage: kernels_bench [OPTION=VALUE ...] [--benchmark_...]

Times every CPU kernel on one thread, in processor time, in turns with what bounds it: memcpy of the bytes that it
must move and oneDNN's best rate for the operations of its products; a language model's head; the grouped products of
a mixture of experts, whose of_onednn is against one dense product of the same work; collectives against memcpy; saving
and loading against plain writing and reading. A row's counters: bytes_per_second, flops_per_second, of_bound (1: as
fast as the bound), of_onednn (against bare products of the same shapes), peak_bytes. Medians of the rounds; time and
CPU of a row are Google Benchmark's means.

  --rounds=15      rounds of a row (a third of them where a round is long)
  --ranks=2        ranks of collectives and checkpoints
  --folder=.       where the checkpoints are written (and removed)
  --state-mib=256  their size

Google Benchmark's own options are the rest, among them --benchmark_filter=REGEX, --benchmark_list_tests and
--benchmark_out=FILE.json. All of it into one file:

  kernels_bench --benchmark_out=kernels.json --benchmark_out_format=json
)";

// Takes the value of `--name=` from the argument; false if it is another argument.
bool take(std::string_view argument, std::string_view name, std::string& value) {
  if (!argument.starts_with(name) || argument.size() <= name.size() ||
      argument[name.size()] != '=') {
    return false;
  }
  value = argument.substr(name.size() + 1);
  return true;
}

int refuse(std::string_view what) {
  fmt::print(stderr, "kernels_bench: {}; --help lists the options\n", what);
  return 2;
}

// Returns 0 or an exit code. Google Benchmark's own arguments stay.
int parse(int& count, char** arguments, bench::WholeOptions& options) {
  int kept = 1;
  for (int i = 1; i < count; ++i) {
    std::string value;
    std::int64_t* number = nullptr;
    std::int64_t rounds = 0, ranks = 0;
    if (take(arguments[i], "--rounds", value))
      number = &rounds;
    else if (take(arguments[i], "--ranks", value))
      number = &ranks;
    else if (take(arguments[i], "--state-mib", value))
      number = &options.state_mib;
    else if (take(arguments[i], "--folder", options.folder))
      continue;
    if (number == nullptr) {
      arguments[kept++] = arguments[i];
      continue;
    }
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), *number);
    constexpr std::int64_t most = 1 << 20;
    if (error != std::errc{} || end != value.data() + value.size() || *number < 1 ||
        *number > most) {
      return refuse(fmt::format("{}: a whole number of at least 1", arguments[i]));
    }
    if (rounds > 0) options.rounds = static_cast<int>(rounds);
    if (ranks > 0) options.ranks = static_cast<int>(ranks);
  }
  count = kept;
  if (!std::filesystem::is_directory(options.folder)) {
    return refuse(fmt::format("--folder={}: no such folder", options.folder));
  }
  return 0;
}

// The properties of the machine that affect the figures.
void add_context() {
  const kernels::cpu::Description machine = kernels::cpu::describe();
  benchmark::AddCustomContext("onednn", machine.onednn_version + " with " + machine.onednn_isa);
  benchmark::AddCustomContext("bfloat16_products", kernels::cpu::has_amx_products()
                                                       ? "the library's own AMX kernel"
                                                   : machine.bf16_products ? "oneDNN"
                                                                           : "widening to float32");
}

// False if a kernel has no row.
bool add_kernel_rows(int rounds) {
  bool complete = true;
#define TESSERA_ADD_ROWS(name, Arguments)                                     \
  {                                                                           \
    bench::Rows rows(#name, rounds);                                          \
    bench::rows_of_##name(rows);                                              \
    if (rows.added() == 0) {                                                  \
      fmt::print(stderr, "kernels_bench: the kernel {} has no row\n", #name); \
      complete = false;                                                       \
    }                                                                         \
  }
  TESSERA_KERNELS(TESSERA_ADD_ROWS)
#undef TESSERA_ADD_ROWS
  return complete;
}

}  // namespace

int main(int count, char** arguments) {
  for (int i = 1; i < count; ++i) {
    if (std::string_view(arguments[i]) == "--help" || std::string_view(arguments[i]) == "-h") {
      fmt::print("{}", help);
      return 0;
    }
  }
  bench::WholeOptions options;
  if (const int code = parse(count, arguments, options); code != 0) return code;
  benchmark::Initialize(&count, arguments);
  if (benchmark::ReportUnrecognizedArguments(count, arguments)) return 2;
  std::signal(SIGPIPE, SIG_IGN);  // a rank that ended is an error of its row
  set_compute_threads(1);
  add_context();
  if (!add_kernel_rows(options.rounds)) return 1;
  bench::add_head_rows(options);
  bench::add_grouped_rows(options);
  bench::add_collective_rows(options);
  bench::add_checkpoint_rows(options);
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
