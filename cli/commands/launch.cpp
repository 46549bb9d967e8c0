// `tessera launch`, with torchrun's and Accelerate's names for the same things.
#include <fmt/format.h>
#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <sstream>

#include "base/error.h"
#include "cli/commands/launch_nodes.h"
#include "cli/subcommands.h"
#include "engine/device/backend.h"
#include "launch/launch.h"
#include "training/rank_threads.h"
#include "training/recipe/accelerate/config.h"

namespace tessera::cli {
namespace {

bool counts_this_host(const std::string& text) {
  return text == "cpu" || text == "gpu" || text == "auto";
}

int ranks_from(const char* option, const std::string& text) {
  if (text == "cpu") return launcher::usable_cores();
  if (text == "gpu" || text == "auto") {
    const Backend& gpus = backend_of(DeviceType::cuda);
    const int count = gpus.device_count();
    TESSERA_CHECK(count > 0 || text == "auto", ErrorCode::usage,
                  "{} gpu: found no GPU to start ranks for ({}); use a number, or cpu for one rank "
                  "for each core",
                  option, gpus.unavailable_reason());
    return count > 0 ? count : launcher::usable_cores();
  }
  constexpr int most = 4096;
  int ranks = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), ranks);
  TESSERA_CHECK(
      error == std::errc{} && stop == text.data() + text.size() && ranks > 0 && ranks <= most,
      ErrorCode::usage, "{} must be a number of ranks from 1 to {}, or auto, gpu or cpu, got {}",
      option, most, text);
  return ranks;
}

// Searches as execvp() does.
bool is_on_path(const std::string& name) {
  const char* const path = std::getenv("PATH");
  std::istringstream folders(path != nullptr ? path : "/bin:/usr/bin");
  for (std::string folder; std::getline(folders, folder, ':');) {
    const std::string file = (folder.empty() ? "." : folder) + "/" + name;
    std::error_code error;
    if (std::filesystem::is_regular_file(file, error) && ::access(file.c_str(), X_OK) == 0) {
      return true;
    }
  }
  return false;
}

bool is_training(const std::vector<std::string>& program) {
  std::error_code error;
  const bool ours = std::filesystem::path(program.front()).filename() == "tessera" ||
                    std::filesystem::equivalent(program.front(), "/proc/self/exe", error);
  return ours && program.size() > 1 && program[1] == "train";
}

struct LaunchCommand {
  std::string ranks, all_ranks, threads, module, tee, redirects, start_method, config_file, role;
  std::string address;
  double monitor_interval = 0;
  int master_port = -1;  // not given
  bool standalone = false;
  bool no_python = false;
  bool has_address = false;  // in the configuration file
  LaunchNodes nodes;
  launcher::LaunchOptions launch;

  [[nodiscard]] int run(const std::vector<std::string>& program) {
    check(program);
    launch.command = found(program);
    if (!tee.empty()) launch.output.streams = launcher::parse_tee(tee).streams;
    if (!tee.empty()) launch.output.every_rank = launcher::parse_tee(tee).every_rank;
    TESSERA_CHECK(redirects.empty() || !launch.output.folder.empty(), ErrorCode::usage,
                  "--redirects {} needs --log-dir, the folder of the files", redirects);
    take_configuration();
    if (!address.empty()) launch.master_address = address;
    if (master_port >= 0) launch.master_port = master_port;
    nodes.take_endpoint(launch, address.empty(), master_port < 0);
    nodes.settle(launch, has_address || !address.empty() || nodes.has_endpoint());
    if (!all_ranks.empty()) {
      // auto, gpu and cpu count the cores or GPUs of this node.
      TESSERA_CHECK(launch.nodes == 1 || !counts_this_host(all_ranks), ErrorCode::usage,
                    "--num-processes {}: counts the ranks of all {} nodes, but this node only "
                    "knows its own; write --nproc-per-node {}",
                    all_ranks, launch.nodes, all_ranks);
      launch.ranks = nodes.share_of(ranks_from("--num-processes", all_ranks), "--num-processes");
    }
    if (!ranks.empty()) launch.ranks = ranks_from("--nproc-per-node", ranks);
    if (!role.empty()) launch.variables["ROLE_NAME"] = role;
    if (!threads.empty()) become_threads();
    return launcher::launch(launch);
  }

 private:
  // `tessera` means this program unless another one is on PATH.
  static std::vector<std::string> found(std::vector<std::string> program) {
    std::string& name = program.front();
    if (name.find('/') != std::string::npos || is_on_path(name)) return program;
    for (const Subcommand& subcommand : subcommands()) {
      TESSERA_CHECK(subcommand.name != name, ErrorCode::usage,
                    "cannot run {0}: no program has this name; did you mean tessera {0}?", name);
    }
    if (name == "tessera") name = std::filesystem::read_symlink("/proc/self/exe").string();
    return program;
  }

  void check(const std::vector<std::string>& program) const {
    TESSERA_CHECK(module.empty(), ErrorCode::usage,
                  "-m {}: a program is started, not a Python module; write python3 -m {}", module,
                  module);
    TESSERA_CHECK(!program.empty(), ErrorCode::usage,
                  "name the program after the options, as in: tessera launch --nproc-per-node 2 -- "
                  "tessera train recipe.yaml");
    const std::string& name = program.front();
    TESSERA_CHECK(!name.ends_with(".py") || ::access(name.c_str(), X_OK) == 0, ErrorCode::usage,
                  "{} is a Python file that cannot be executed; write python3 {}", name, name);
    const bool recipe = name.ends_with(".yaml") || name.ends_with(".yml");
    TESSERA_CHECK(!recipe || ::access(name.c_str(), X_OK) == 0, ErrorCode::usage,
                  "{} is a recipe, not a program; write tessera train {}", name, name);
    TESSERA_CHECK(threads.empty() || is_training(program), ErrorCode::usage,
                  "--threads {}: starts the ranks of tessera train; other programs start theirs "
                  "with ts::launch (docs/cpp-api.md)",
                  threads);
    TESSERA_CHECK(threads.empty() || (ranks.empty() && all_ranks.empty()), ErrorCode::usage,
                  "--threads {} and --nproc-per-node {}: ranks are threads or processes; keep one",
                  threads, ranks.empty() ? all_ranks : ranks);
    TESSERA_CHECK(ranks.empty() || all_ranks.empty(), ErrorCode::usage,
                  "--nproc-per-node {} and --num-processes {}: the first counts the ranks of a "
                  "node, the second the ranks of all nodes; keep one",
                  ranks, all_ranks);
  }

  // The command line overrides the file.
  void take_configuration() {
    if (config_file.empty()) return;
    const training::AccelerateConfig config = training::read_accelerate_config(config_file);
    nodes.take_configuration(config);
    const bool said = !ranks.empty() || !all_ranks.empty() || !threads.empty();
    TESSERA_CHECK(config.processes || said, ErrorCode::usage,
                  "{} has no num_processes; give --nproc-per-node", config_file);
    if (config.processes && !said) {
      launch.ranks = nodes.share_of(*config.processes, config_file + ": num_processes:");
    }
    if (config.gpu_ids) launch.variables["CUDA_VISIBLE_DEVICES"] = *config.gpu_ids;
    if (config.master_address) launch.master_address = *config.master_address;
    has_address = config.master_address.has_value();
    if (config.master_port && master_port < 0) launch.master_port = *config.master_port;
    launch.variables[training::config_file_variable] =
        std::filesystem::absolute(config_file).string();
  }

  void become_threads() {
    launch.threads = ranks_from("--threads", threads);
    nodes.check_threads(threads);
    launch.ranks = 1;
    launch.variables[training::rank_threads_variable] = std::to_string(launch.threads);
  }
};

std::vector<Argument> rank_arguments(LaunchCommand& command) {
  launcher::LaunchOptions& options = command.launch;
  return {
      {.name = "--nproc-per-node",
       .target = &command.ranks,
       .help = "Ranks to start on this node (default: 1); gpu: one for each GPU; cpu: one for each "
               "core; auto: one for each GPU, or for each core without GPUs",
       .type = "N|auto|gpu|cpu"},
      {.name = "--num-processes",
       .target = &command.all_ranks,
       .help = "Instead, as in Accelerate: the ranks of all nodes together",
       .type = "N|auto|gpu|cpu"},
      {.name = "--threads",
       .target = &command.threads,
       .help = "Instead: run the ranks of tessera train as threads of one process",
       .type = "N|auto|gpu|cpu"},
      {.name = "--config-file",
       .target = &command.config_file,
       .help = "An Accelerate configuration (YAML or JSON): the number of ranks, and for "
               "tessera train its settings",
       .type = "FILE"},
      {.name = "--max-restarts",
       .target = &options.max_restarts,
       .help = "Number of restarts of all ranks after a failure",
       .shows_default = true,
       .least = 0,
       .most = 1'000'000},
      {.name = "--log-dir",
       .target = &options.output.folder,
       .help = "Write the output of each rank to DIR/rank-N.log",
       .type = "DIR"},
      {.name = "-t,--tee",
       .target = &command.tee,
       .help =
           "Print each line with [rank N]: before it, for stdout (1), stderr (2) or both (3, also "
           "without a value), or by rank as in 0:1,1:2; with --log-dir in addition to the files",
       .type = "STREAMS",
       .implied = "3"}};
}

std::vector<Argument> meeting_arguments(LaunchCommand& command) {
  launcher::LaunchOptions& options = command.launch;
  LaunchNodes& nodes = command.nodes;
  return {
      {.name = "--nnodes,--num-machines",
       .target = &nodes.count,
       .help = "Nodes (default: 1); start a launcher on each, with the same options and its own "
               "--node-rank"},
      {.name = "--node-rank,--machine-rank",
       .target = &nodes.rank,
       .help = "The number of this node, from 0"},
      {.name = "--master-addr,--main-process-ip",
       .target = &command.address,
       .help = "The address of node 0, where rank 0 runs, as the other nodes reach it (default: "
               "127.0.0.1)"},
      {.name = "--master-port,--main-process-port",
       .target = &command.master_port,
       .help = "MASTER_PORT; 0: a free one. Default: 0 on one node, 29500 on several, where "
               "launchers and Tessera's ranks use the next port",
       .type = "PORT",
       .least = 0,
       .most = 65535},
      {.name = "--job-key-file",
       .target = &nodes.key_file,
       .help = "A file with the secret of the job, which ranks and launchers of several nodes need "
               "to connect (default: the variable TESSERA_JOB_KEY)",
       .type = "FILE"},
      {.name = "--no-job-key",
       .target = &nodes.without_key,
       .help = "Run on several nodes without authentication (trusted network only)"},
      {.name = "--run-id,--rdzv-id",
       .target = &options.run_id,
       .help = "The name of the job (default: generated)"},
      {.name = "--role", .target = &command.role, .help = "The variable ROLE_NAME of the ranks"},
      {.name = "--standalone",
       .target = &command.standalone,
       .help = "torchrun's, without effect",
       .hidden = true},
      {.name = "--no-python",
       .target = &command.no_python,
       .help = "torchrun's, without effect: programs are started as they are",
       .hidden = true},
      {.name = "--rdzv-backend",
       .target = &nodes.backend,
       .help = "torchrun's, without effect",
       .hidden = true},
      {.name = "--rdzv-endpoint",
       .target = &nodes.endpoint,
       .help = "torchrun's name for --master-addr and --master-port on several nodes",
       .type = "HOST:PORT"},
      {.name = "--rdzv-conf",
       .target = &nodes.configuration,
       .help = "torchrun's; join_timeout=SECONDS: the time for all nodes to connect (600); the "
               "rest has no effect"},
      {.name = "--monitor-interval",
       .target = &command.monitor_interval,
       .help = "torchrun's, without effect: the launcher sees a rank's end at once",
       .hidden = true},
      {.name = "--start-method",
       .target = &command.start_method,
       .help = "torchrun's, without effect",
       .hidden = true},
      {.name = "-r,--redirects",
       .target = &command.redirects,
       .help = "torchrun's, without effect: --log-dir takes both streams",
       .implied = "3",
       .hidden = true},
      {.name = "-m,--module",
       .target = &command.module,
       .help = "torchrun's, refused: write python3 -m",
       .hidden = true}};
}

}  // namespace

Command describe_launch() {
  const auto command = std::make_shared<LaunchCommand>();
  std::vector<Argument> arguments = rank_arguments(*command);
  for (Argument& argument : meeting_arguments(*command)) arguments.push_back(std::move(argument));
  return {
      .arguments = std::move(arguments),
      .run = [command](const std::vector<std::string>& program) { return command->run(program); },
      .footer =
          "The program and its arguments follow, with or without -- before them. On several nodes, "
          "start the same command on each: only --node-rank differs, --master-addr names node 0, "
          "and all nodes have the same key (docs/several-hosts.md)."};
}

}  // namespace tessera::cli
