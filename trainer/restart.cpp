// Finds restarts in the environment.
#include "trainer/restart.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <string_view>

#include "checkpoint/io/checksum.h"
#include "comm/communicator.h"

namespace tessera {
namespace {

std::string_view environment_text(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? std::string_view() : text;
}

// The first line of a file in /proc, or an empty text.
std::string first_line(const std::string& path) {
  std::ifstream stream(path);
  std::string line;
  std::getline(stream, line);
  return line;
}

// Identifies a process, and no later process with the same number: its start is field 22, counted
// after the name, which may hold any character.
std::string process_identity(pid_t pid) {
  const std::string stat = first_line(fmt::format("/proc/{}/stat", pid));
  std::size_t at = stat.rfind(')');
  for (int field = 2; field < 22 && at != std::string::npos; ++field) at = stat.find(' ', at + 1);
  const std::string start =
      at == std::string::npos ? "" : stat.substr(at + 1, stat.find(' ', at + 1) - at - 1);
  return fmt::format("{}:{}:{}", pid, start, first_line("/proc/sys/kernel/random/boot_id"));
}

int restarts_of_this_rank() {
  const std::string_view text = environment_text("TORCHELASTIC_RESTART_COUNT");
  int count = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  return error == std::errc{} && end == text.data() + text.size() && count > 0 ? count : 0;
}

std::string launch_of_this_rank() {
  const std::string_view own = environment_text(launch_variable);
  if (checkpoint::is_hex_id(own)) return std::string(own);
  const std::string_view job = environment_text("TORCHELASTIC_RUN_ID");
  if (job.empty()) return {};
  // On one node the agent lives through all restarts, and its identity tells two launches with the
  // same name apart. On several nodes rank 0 may move to another node, and users name their jobs.
  const std::string_view local = environment_text("LOCAL_WORLD_SIZE");
  const bool one_node = local.empty() || local == environment_text("WORLD_SIZE");
  const std::string launch =
      one_node ? fmt::format("{}:{}", job, process_identity(::getppid())) : std::string(job);
  return checkpoint::to_hex(checkpoint::checksum(launch));
}

}  // namespace

LaunchOfRanks agree_on_launch(comm::Communicator& communicator) {
  const auto all =
      communicator.exchange(fmt::format("{} {}", restarts_of_this_rank(), launch_of_this_rank()));
  LaunchOfRanks launch;
  for (const std::string& rank : all) {
    int restarts = 0;
    std::from_chars(rank.data(), rank.data() + rank.size(), restarts);
    launch.restarts = std::max(launch.restarts, restarts);
  }
  launch.id = all.front().substr(all.front().find(' ') + 1);
  return launch;
}

}  // namespace tessera
