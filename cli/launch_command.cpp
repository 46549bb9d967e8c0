// `tessera launch`.
#include <fmt/format.h>

#include <charconv>

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

}  // namespace

void add_launch(CLI::App& command, Invocation& invocation) {
  struct Options {
    std::string ranks = "1";
    int nodes = 1;
    LaunchOptions launch;
  };
  const auto options = std::make_shared<Options>();
  command.footer(
      "The program and its arguments follow --, as in\n  tessera launch --nproc-per-node 2 -- "
      "tessera train recipe.yaml");
  command.add_option("--nproc-per-node", options->ranks, "Ranks to start; auto: one for each core")
      ->type_name("N")
      ->capture_default_str();
  command
      .add_option("--nnodes", options->nodes,
                  "Machines; more than 1 is not available in this version")
      ->capture_default_str();
  command
      .add_option("--max-restarts", options->launch.max_restarts,
                  "Times to start all ranks again after a failure")
      ->check(CLI::Range(0, 1'000'000))
      ->capture_default_str();
  command.add_option("--master-addr", options->launch.master_address, "Where rank 0 is")
      ->capture_default_str();
  command.add_option("--master-port", options->launch.master_port, "Rank 0's port; 0: a free one")
      ->check(CLI::Range(0, 65535))
      ->capture_default_str();
  command.add_option("--run-id", options->launch.run_id, "The job's name; made up when not given");
  command.callback([options, &invocation] {
    invocation.action = [options, &invocation] {
      TESSERA_CHECK(options->nodes == 1, ErrorCode::usage,
                    "--nnodes {}: several machines are not available in this version; use 1",
                    options->nodes);
      TESSERA_CHECK(!invocation.trailing.empty(), ErrorCode::usage,
                    "name the program after --, as in: tessera launch --nproc-per-node 2 -- "
                    "tessera train recipe.yaml");
      options->launch.ranks = ranks_from(options->ranks);
      options->launch.command = invocation.trailing;
      return launch(options->launch);
    };
  });
}

}  // namespace tessera::cli
