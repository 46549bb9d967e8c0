// Names, targets and help of the options.
#include "cli/commands/bench_options.h"

#include <utility>

#include "cli/subcommands.h"
#include "planner/sweep.h"
#include "training/recipe/accelerate/config.h"

namespace tessera::cli {
namespace {

std::vector<Argument> list_arguments(BenchOptions& command) {
  BenchLists& lists = command.lists;
  return {
      {.name = "--strategies",
       .target = &lists.strategies,
       .help = "none (one rank), dp (ranks as threads of one process), and sharding strategies "
               "(default: all that differ for this recipe)",
       .type = "none|dp|" + planner::strategy_names("|") + ",...",
       .separator = ','},
      {.name = "--world-sizes",
       .target = &lists.world_sizes,
       .help =
           "Numbers of ranks (default: 1, and one rank for each core, at most 8, or for each GPU)",
       .type = "N,...",
       .separator = ','},
      {.name = "--precisions",
       .target = &lists.precisions,
       .help = "fp32, bf16, fp16: sharding.mixed_precision",
       .type = "fp32|bf16|fp16,...",
       .separator = ','},
      {.name = "--batch-sizes",
       .target = &lists.batch_sizes,
       .help = "data.batch_size, of one rank",
       .type = "N,...",
       .separator = ','},
      {.name = "--prefetch",
       .target = &lists.prefetch,
       .help = "BACKWARD_PRE, BACKWARD_POST, NO_PREFETCH: sharding.backward_prefetch",
       .type = "BACKWARD_PRE|BACKWARD_POST|NO_PREFETCH,...",
       .separator = ','},
      {.name = "--offload",
       .target = &lists.offload,
       .help =
           "device, host, file: the place of parameters, gradients and moments in sharding.offload",
       .type = "device|host|file,...",
       .separator = ','},
      {.name = "--activation-checkpointing",
       .target = &lists.checkpointing,
       .help = "false, true, selective",
       .type = "false|true|selective,...",
       .separator = ','},
      {.name = "--axis",
       .target = &lists.axes,
       .help = "Any other key as a list, as in sharding.reduce_dtype=fp32,bf16; repeatable",
       .type = "KEY=V,..."}};
}

std::vector<Argument> measuring_arguments(BenchOptions& command) {
  bench::BenchSettings& settings = command.settings;
  return {{.name = "--steps",
           .target = &settings.steps,
           .help = "Measured steps in a round (default: as many as --budget allows, at most 20)",
           .least = 1,
           .most = 1'000'000},
          {.name = "--rounds",
           .target = &settings.rounds,
           .help = "Rounds; in each, every row is measured once (default: 3, or fewer if --budget "
                   "requires it)",
           .least = 1,
           .most = 10'000},
          {.name = "--warmup",
           .target = &settings.warmup,
           .help = "Steps at the beginning of each run that are not measured",
           .shows_default = true,
           .least = 0,
           .most = 10'000},
          {.name = "--budget",
           .target = &settings.budget,
           .help = "Time for the whole measurement in seconds; steps and rounds are chosen to fit",
           .shows_default = true,
           .least = 1,
           .most = 1e7},
          {.name = "--time-limit",
           .target = &settings.time_limit,
           .help = "Seconds after which the measurement ends and reports the finished rows "
                   "(default: no limit)",
           .least = 1,
           .most = 1e7},
          {.name = "--row-time-limit",
           .target = &settings.row_time_limit,
           .help = "Seconds after which one run of a row is killed",
           .shows_default = true,
           .least = 1,
           .most = 1e7},
          {.name = "--threads-per-rank",
           .target = &command.threads_per_rank,
           .help = "Threads of each rank (default: OMP_NUM_THREADS, else the cores divided by the "
                   "largest world)",
           .least = 1,
           .most = 4096},
          {.name = "--fill-cores",
           .target = &command.fill_cores,
           .help = "If a row has fewer ranks than the largest world, run copies of it at the same "
                   "time, so that the same number of cores is busy in every row"},
          {.name = "--device",
           .target = &command.device,
           .help = "The device of the ranks; the same as train.device",
           .type = "auto|cpu|cuda"},
          {.name = "--device-memory",
           .target = &command.device_memory,
           .help = "Memory of one rank, as in 80GB (default: the memory of this node)",
           .type = "BYTES"}};
}

std::vector<Argument> result_arguments(BenchOptions& command) {
  return {
      {.name = "--json",
       .target = &command.json,
       .help =
           "Write the report to this file; rows that the file already has are not measured again",
       .type = "FILE"},
      {.name = "--again", .target = &command.again, .help = "Measure those rows again"},
      {.name = "--html",
       .target = &command.html,
       .help = "Write the report as an HTML page with plots",
       .type = "FILE"},
      {.name = "--compare",
       .target = &command.compare,
       .help = "An earlier --json file: report the rows that are now slower beyond the noise",
       .type = "FILE"},
      {.name = "--peer",
       .target = &command.peers,
       .help = "Measure these frameworks too: pytorch, sentence-transformers, deepspeed",
       .type = "pytorch|sentence-transformers|deepspeed,...",
       .separator = ','},
      {.name = "--peer-modes",
       .target = &command.peer_modes,
       .help = "Modes of the peers (default: the counterparts of the strategies)",
       .type = "NAME,...",
       .separator = ','},
      {.name = "--peer-compile",
       .target = &command.peer_compile,
       .help = "Measure the peers also with torch.compile"},
      {.name = "--peer-python",
       .target = &command.settings.peers.python,
       .help = "The Python that has the peers installed",
       .type = "PROGRAM",
       .shows_default = true},
      {.name = "--peer-scripts",
       .target = &command.settings.peers.scripts,
       .help = "The folder of the peers' scripts (default: bench/peers beside the build, or the "
               "installed one)",
       .type = "DIR"},
      {.name = "--time-products",
       .target = &command.products,
       .help = "Run one rank of the measurement of matrix products",
       .type = "FILE",
       .hidden = true}};
}

}  // namespace

std::vector<Argument> bench_arguments(BenchOptions& options) {
  std::vector<Argument> arguments = {
      {.name = "recipe", .target = &options.file, .help = "The recipe", .type = "FILE"},
      {.name = "--set",
       .target = &options.overrides,
       .help = "Override a key in all rows, as in data.batch_size=1; repeatable",
       .type = "KEY=VALUE"},
      config_file_argument(&options.config_file)};
  for (const auto list : {list_arguments, measuring_arguments, result_arguments}) {
    for (Argument& argument : list(options)) arguments.push_back(std::move(argument));
  }
  return arguments;
}

}  // namespace tessera::cli
