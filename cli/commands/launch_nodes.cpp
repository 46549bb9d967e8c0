// One node needs none of these options; several nodes need an address, a port, a number for each
// node, and a key.
#include "cli/commands/launch_nodes.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <string_view>

#include "base/error.h"
#include "base/text/print.h"

namespace tessera::cli {
namespace {

constexpr int most_nodes = 4096;
constexpr int usual_port = 29500;  // torchrun's
constexpr int last_port = 65535;

std::optional<int> number_in(std::string_view text) {
  int value = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || stop != text.data() + text.size()) return std::nullopt;
  return value;
}

bool is_here(const std::string& host) {
  return host.empty() || host == "localhost" || host == "127.0.0.1" || host == "0.0.0.0" ||
         host == "::1";
}

// "join_timeout=600,read_timeout=60".
std::optional<int> join_timeout(const std::string& configuration) {
  std::string_view rest = configuration;
  while (!rest.empty()) {
    const std::string_view item = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), item.size() + 1));
    constexpr std::string_view name = "join_timeout=";
    if (!item.starts_with(name)) continue;
    const std::optional<int> seconds = number_in(item.substr(name.size()));
    TESSERA_CHECK(seconds && *seconds > 0 && *seconds <= 1'000'000, ErrorCode::usage,
                  "--rdzv-conf {}: must be a number of seconds", item);
    return seconds;
  }
  return std::nullopt;
}

}  // namespace

int LaunchNodes::nodes() const {
  if (count.empty()) return 1;
  std::string_view text = count;
  // torchrun's range of nodes: only a range of one number, because nodes cannot join or leave.
  const std::size_t colon = text.find(':');
  const std::optional<int> least = number_in(text.substr(0, colon));
  const std::optional<int> most =
      colon == std::string_view::npos ? least : number_in(text.substr(colon + 1));
  TESSERA_CHECK(least && most && *least >= 1 && *least <= most_nodes && *most >= *least,
                ErrorCode::usage, "--nnodes {}: must be a number of nodes from 1 to {}", count,
                most_nodes);
  TESSERA_CHECK(*least == *most, ErrorCode::usage,
                "--nnodes {}: nodes that join and leave are not supported; give one number", count);
  return *least;
}

int LaunchNodes::node_rank() const {
  const std::optional<int> number = rank.empty() ? 0 : number_in(rank);
  TESSERA_CHECK(number && *number >= 0 && *number < nodes(), ErrorCode::usage,
                "--node-rank {}: the numbers of {} {} are 0 to {}", rank, nodes(),
                nodes() == 1 ? "node" : "nodes", nodes() - 1);
  return *number;
}

void LaunchNodes::take_configuration(const training::AccelerateConfig& config) {
  if (count.empty() && config.machines) count = std::to_string(*config.machines);
  if (rank.empty() && config.machine_rank) rank = std::to_string(*config.machine_rank);
}

void LaunchNodes::take_endpoint(launcher::LaunchOptions& launch, bool wants_address,
                                bool wants_port) const {
  const std::size_t colon = endpoint.rfind(':');
  const std::string host = endpoint.substr(0, colon);
  if (nodes() == 1) {
    TESSERA_CHECK(is_here(host), ErrorCode::usage,
                  "--rdzv-endpoint {}: is another host, but the ranks run on one node; give "
                  "--nnodes for several nodes",
                  endpoint);
    if (backend != "static" || !endpoint.empty() || !configuration.empty()) {
      print_err(
          "tessera: --rdzv-* has no effect: the ranks of one node find each other without it\n");
    }
    return;
  }
  if (endpoint.empty()) return;
  if (wants_address) launch.master_address = host;
  if (colon == std::string::npos || !wants_port) return;
  const std::optional<int> port = number_in(std::string_view(endpoint).substr(colon + 1));
  TESSERA_CHECK(port && *port > 0 && *port < last_port, ErrorCode::usage,
                "--rdzv-endpoint {}: must be HOST:PORT", endpoint);
  launch.master_port = *port;
}

comm::control::JobKey LaunchNodes::key() const {
  using comm::control::JobKey;
  TESSERA_CHECK(key_file.empty() || !without_key, ErrorCode::usage,
                "--job-key-file {} and --no-job-key: keep one", key_file);
  if (!key_file.empty()) return JobKey::from_file(key_file);
  if (without_key) return JobKey::none();
  JobKey key = JobKey::from_environment();
  if (key.given() || key.declined()) return key;
  TESSERA_CHECK(
      nodes() == 1, ErrorCode::configuration,
      "--nnodes {}: ranks on several nodes need a secret key: give all launchers the same {} or "
      "--job-key-file (`openssl rand -hex 32` makes one), or --no-job-key on a trusted network",
      nodes(), comm::control::job_key_variable);
  return JobKey::made();
}

void LaunchNodes::settle(launcher::LaunchOptions& launch, bool has_address) const {
  launch.nodes = nodes();
  launch.node_rank = node_rank();
  if (launch.nodes > 1) settle_meeting(launch, has_address);
  launch.job_key = key();
}

void LaunchNodes::settle_meeting(launcher::LaunchOptions& launch, bool has_address) const {
  TESSERA_CHECK(has_address, ErrorCode::usage,
                "--nnodes {}: give --master-addr, node 0's name or address as the others reach it",
                launch.nodes);
  TESSERA_CHECK(!rank.empty(), ErrorCode::usage,
                "--nnodes {}: give each node its --node-rank, 0 to {}", launch.nodes,
                launch.nodes - 1);
  if (launch.master_port == 0) launch.master_port = usual_port;
  TESSERA_CHECK(
      launch.master_port < last_port, ErrorCode::usage,
      "--master-port {}: the launchers of several nodes use the port after it; use one below {}",
      launch.master_port, last_port);
  if (const auto seconds = join_timeout(configuration)) {
    launch.meeting = std::chrono::seconds(*seconds);
  }
}

int LaunchNodes::share_of(int ranks, const std::string& what) const {
  TESSERA_CHECK(ranks % nodes() == 0, ErrorCode::usage,
                "{} {}: these are the ranks of all nodes, but {} does not divide them; use "
                "--nproc-per-node on each node",
                what, ranks, nodes());
  return ranks / nodes();
}

void LaunchNodes::check_threads(const std::string& threads) const {
  TESSERA_CHECK(nodes() == 1, ErrorCode::usage,
                "--threads {}: threads are the ranks of one process; use --nproc-per-node with "
                "--nnodes {}",
                threads, nodes());
}

}  // namespace tessera::cli
