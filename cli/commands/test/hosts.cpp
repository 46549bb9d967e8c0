#include "cli/commands/test/hosts.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <map>
#include <optional>
#include <vector>

#include "base/error.h"
#include "base/text/print.h"
#include "bench/harness/network/host_links.h"
#include "comm/exchange_values.h"
#include "planner/cluster_file.h"
#include "sharding/context/context.h"

namespace tessera::cli {
namespace {

struct Hosts {
  std::vector<int> of_rank;  // numbers from 0 on, by the nodes' first ranks
  std::vector<std::string> names;
};

Hosts hosts_of(const Context& context) {
  struct Answer {
    int node_rank;
    std::array<char, 64> name;
  };
  Answer mine{context.world().node_rank, {}};
  TESSERA_SYSTEM(::gethostname(mine.name.data(), mine.name.size() - 1));
  Hosts hosts;
  std::map<int, int> numbers;
  for (const Answer& answer :
       comm::exchange_values(context.communicator(), mine, {0, 0, comm::Phase::setup})) {
    const auto [number, is_new] =
        numbers.try_emplace(answer.node_rank, static_cast<int>(numbers.size()));
    if (is_new) {
      hosts.names.push_back(fmt::format("node {} ({})", answer.node_rank, answer.name.data()));
    }
    hosts.of_rank.push_back(number->second);
  }
  return hosts;
}

}  // namespace

int test_hosts(const std::string& cluster_name) {
  std::optional<Link> expected;
  if (!cluster_name.empty()) {
    expected = planner::find_cluster(cluster_name).across;
    TESSERA_CHECK(expected, ErrorCode::configuration,
                  "--cluster {}: it has no `across`, the link between nodes", cluster_name);
  }
  const Context context = init();
  const Hosts hosts = hosts_of(context);
  TESSERA_CHECK(hosts.names.size() > 1, ErrorCode::usage,
                "--hosts measures the network between nodes, and this job has one node: start it "
                "on each, as with tessera launch --nnodes 2 --node-rank .. --master-addr .. -- "
                "tessera test --hosts");
  const std::vector<bench::HostLink> links =
      bench::measure_host_links(context.communicator(), hosts.of_rank);
  const std::vector<std::string> slow = bench::slow_links(links, hosts.names, expected);
  if (context.is_main()) {
    const auto name = [&](int host) { return hosts.names[static_cast<std::size_t>(host)]; };
    print_out("{} nodes, {} ranks, over {}\n", hosts.names.size(), context.world_size(),
              context.communicator().backend());
    for (const bench::HostLink& link : links) {
      print_out("  {} - {}: {:.0f} us, {:.3g} GB/s there, {:.3g} GB/s back\n", name(link.first),
                name(link.second), link.latency_s * 1e6, link.there / 1e9, link.back / 1e9);
    }
    if (expected) {
      print_out("expected: {:.0f} us, {:.3g} GB/s ({})\n", expected->latency * 1e6,
                expected->rate / 1e9, cluster_name);
    }
    for (const std::string& line : slow) print_out("slow: {}\n", line);
    print_out("{}\n", slow.empty() ? "the network is even" : "the network has slow links");
  }
  std::fflush(stdout);
  context.barrier();  // the first rank that ends with an error stops the others
  return slow.empty() || !context.is_main() ? 0 : static_cast<int>(ErrorCode::runtime);
}

}  // namespace tessera::cli
