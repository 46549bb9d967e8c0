// `tessera launch`.
#include <fmt/format.h>

#include <charconv>
#include <memory>

#include "cli/launch.h"
#include "cli/subcommands.h"
#include "kernels/base/error.h"

namespace tessera::cli {
namespace {

int ranks_from(const std::string& text) {
  if (text == "auto" || text == "cpu") return usable_cores();
  TESSERA_CHECK(text != "gpu", ErrorCode::usage,
                "--nproc-per-node gpu: give the number of GPUs instead; tessera env lists them");
  constexpr int most = 4096;
  int ranks = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), ranks);
  TESSERA_CHECK(
      error == std::errc{} && stop == text.data() + text.size() && ranks > 0 && ranks <= most,
      ErrorCode::usage, "--nproc-per-node must be a number of ranks from 1 to {}, or auto, got {}",
      most, text);
  return ranks;
}

struct LaunchCommand {
  std::string ranks = "1";
  int nodes = 1;
  LaunchOptions launch;

  [[nodiscard]] int run(const std::vector<std::string>& program) {
    TESSERA_CHECK(nodes == 1, ErrorCode::usage,
                  "--nnodes {}: several machines are not available in this version; use 1", nodes);
    TESSERA_CHECK(!program.empty(), ErrorCode::usage,
                  "name the program after --, as in: tessera launch --nproc-per-node 2 -- "
                  "tessera train recipe.yaml");
    launch.ranks = ranks_from(ranks);
    launch.command = program;
    return cli::launch(launch);
  }
};

}  // namespace

Command describe_launch() {
  const auto command = std::make_shared<LaunchCommand>();
  LaunchOptions& options = command->launch;
  return {
      .arguments = {{.name = "--nproc-per-node",
                     .target = &command->ranks,
                     .help = "Ranks to start; auto: one for each core",
                     .type = "N",
                     .shows_default = true},
                    {.name = "--nnodes",
                     .target = &command->nodes,
                     .help = "Machines; more than 1 is not available in this version",
                     .shows_default = true},
                    {.name = "--max-restarts",
                     .target = &options.max_restarts,
                     .help = "Times to start all ranks again after a failure",
                     .shows_default = true,
                     .least = 0,
                     .most = 1'000'000},
                    {.name = "--master-addr",
                     .target = &options.master_address,
                     .help = "Where rank 0 is",
                     .shows_default = true},
                    {.name = "--master-port",
                     .target = &options.master_port,
                     .help = "Rank 0's port; 0: a free one",
                     .shows_default = true,
                     .least = 0,
                     .most = 65535},
                    {.name = "--run-id",
                     .target = &options.run_id,
                     .help = "The job's name; made up when not given"}},
      .run = [command](const std::vector<std::string>& program) { return command->run(program); },
      .footer =
          "The program and its arguments follow --, as in\n  tessera launch --nproc-per-node 2 -- "
          "tessera train recipe.yaml"};
}

}  // namespace tessera::cli
