// Connects a world over several nodes: first the control plane, over which the ranks exchange their
// locations; then each node's memory; then the connections for data.
#include "comm/connect/nodes.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <map>
#include <random>
#include <string_view>

#include "base/error.h"
#include "base/home_process.h"
#include "comm/control/payloads.h"
#include "comm/nodes/communicator.h"
#include "comm/nodes/mpi/mpi_network.h"
#include "comm/nodes/tcp/own_address.h"
#include "comm/nodes/tcp/tcp_network.h"
#include "comm/outcome.h"
#include "comm/shared/join/connect.h"
#include "comm/shared/join/single_process.h"
#include "comm/timeout.h"

namespace tessera::comm {
namespace {

// The control plane names the ranks that do not come: this node's own waits end after that.
constexpr std::chrono::milliseconds lead_of_control{30'000};

constexpr const char* backend_variable = "TESSERA_BACKEND";

// A new network is a row.
struct NetworkRow {
  HostsBackend backend;
  std::unique_ptr<Network> (*make)(const World&, Protection);
};
constexpr std::array<NetworkRow, 2> networks{{
    {HostsBackend::tcp,
     [](const World& world, Protection protection) -> std::unique_ptr<Network> {
       return std::make_unique<TcpNetwork>(world, protection);
     }},
    {HostsBackend::mpi,
     [](const World& world, Protection) -> std::unique_ptr<Network> {
       return std::make_unique<MpiNetwork>(world);
     }},
}};

// TCP works everywhere and authenticates, so a start by mpirun alone does not select MPI.
std::unique_ptr<Network> make_network(const World& world, HostsBackend backend,
                                      Protection protection) {
  if (backend == HostsBackend::automatic) backend = HostsBackend::tcp;
  const auto row = std::find_if(networks.begin(), networks.end(), [backend](const NetworkRow& one) {
    return one.backend == backend;
  });
  return row->make(world, protection);
}

// Without a key the ranks share no secret that a stranger on the network cannot read.
Protection protection_of(HostsBackend backend, const control::JobKey& key) {
  if (!encrypts_between_nodes()) return key.given() ? Protection::authenticated : Protection::none;
  TESSERA_CHECK(backend != HostsBackend::mpi, ErrorCode::configuration,
                "{}=1 encrypts data between hosts over TCP, and backend shm+mpi sends it as it is: "
                "use {}=shm+tcp, or unset {} if MPI's network needs no encryption",
                encrypt_variable, backend_variable, encrypt_variable);
  TESSERA_CHECK(key.given(), ErrorCode::configuration,
                "{}=1 requires a job key, by which the ranks agree on secrets: give all hosts the "
                "same {} (`openssl rand -hex 32` makes one) or {}, or unset {}",
                encrypt_variable, control::job_key_variable, control::job_key_file_variable,
                encrypt_variable);
  return Protection::encrypted;
}

// Each rank's description of itself.
std::string describe_self(const World& world, const Network& network) {
  std::random_device random;
  control::Writer writer;
  writer.text(network.backend());
  writer.text(own_node(world));
  writer.text(control::name_of(control::introduction_of(world)));
  writer.number(std::uint64_t{random()} << 32 | random());
  writer.text(network.contact());
  return writer.bytes();
}

std::vector<NodesJob::Member> members_of(const std::vector<std::string>& descriptions,
                                         std::vector<std::uint64_t>& secrets) {
  std::map<std::string, int> nodes;
  std::vector<NodesJob::Member> members;
  std::string backend;
  for (const std::string& description : descriptions) {
    control::Reader reader(description);
    const std::string other(reader.text());
    if (members.empty()) backend = other;
    const std::string node(reader.text());
    const int number = nodes.emplace(node, static_cast<int>(nodes.size())).first->second;
    NodesJob::Member& member = members.emplace_back();
    member.node = number;
    member.name = reader.text();
    secrets.push_back(reader.number<std::uint64_t>());
    member.contact = reader.text();
    TESSERA_CHECK(other == backend, ErrorCode::configuration,
                  "{} has backend {} and {} {}: set {} to the same value on all hosts",
                  members.front().name, backend, member.name, other, backend_variable);
  }
  return members;
}

// This node's part of the world, as a separate world. Only this job's ranks know the name under
// which its ranks meet.
World world_of_node(const World& world, const std::vector<NodesJob::Member>& members,
                    const std::vector<std::uint64_t>& secrets, std::vector<int>& ranks_here) {
  const int node = members[static_cast<std::size_t>(world.rank)].node;
  for (std::size_t rank = 0; rank < members.size(); ++rank) {
    if (members[rank].node == node) ranks_here.push_back(static_cast<int>(rank));
  }
  World result = world;
  result.size = result.local_size = static_cast<int>(ranks_here.size());
  result.rank = result.local_rank = static_cast<int>(
      std::find(ranks_here.begin(), ranks_here.end(), world.rank) - ranks_here.begin());
  result.run_id +=
      fmt::format("/{}/{:x}", node, secrets[static_cast<std::size_t>(ranks_here.front())]);
  return result;
}

// Either all ranks get the network or none does.
void start_network(Network& network, const std::vector<NodesJob::Member>& members,
                   control::HubGroup& group) {
  std::vector<std::string> contacts;
  for (const NodesJob::Member& member : members) contacts.push_back(member.contact);
  Call call(Op::exchange, {.phase = Phase::setup});
  call.set_name("the network between hosts");
  std::string outcome = encode_success(0);
  try {
    network.start(contacts);
  } catch (const Error& error) {
    outcome = encode_error(error);
  }
  for (const std::string& result : group.exchange(call, outcome)) (void)decode_result(result);
}

}  // namespace

HostsBackend hosts_backend(const ConnectOptions& options) {
  if (options.hosts_backend != HostsBackend::automatic) return options.hosts_backend;
  const char* text = std::getenv(backend_variable);
  const std::string_view name = text == nullptr ? "" : text;
  if (name.empty() || name == "auto") return HostsBackend::automatic;
  if (name == "shm+tcp") return HostsBackend::tcp;
  if (name == "shm+mpi") return HostsBackend::mpi;
  fail(ErrorCode::configuration,
       "environment variable {} is '{}': use auto, shm+tcp or shm+mpi, for ranks on CPUs of "
       "several hosts",
       backend_variable, name);
}

bool encrypts_between_nodes() {
  const char* text = std::getenv(encrypt_variable);
  const std::string_view value = text == nullptr ? "" : text;
  TESSERA_CHECK(value.empty() || value == "0" || value == "1", ErrorCode::configuration,
                "environment variable {} is '{}': use 1, which encrypts data between hosts, or 0",
                encrypt_variable, value);
  return value == "1";
}

std::shared_ptr<Communicator> connect_nodes(const World& world, const ConnectOptions& options) {
  const auto timeout = collective_timeout(options);
  const HostsBackend backend = hosts_backend(options);
  const control::JobKey key = control::JobKey::from_environment();
  const Protection protection = protection_of(backend, key);
  // MPI starts only once in a process: before the ranks find each other through it, or else when
  // all have come.
  std::unique_ptr<Network> network;
  if (backend == HostsBackend::mpi) network = make_network(world, backend, protection);
  const auto plane = std::make_shared<control::ControlPlane>(
      control::connect_control_plane(world,
                                     {.rendezvous = options.rendezvous_timeout,
                                      .collective = timeout,
                                      .standstill = standstill_timeout(options)},
                                     key));
  control::RankControl& control = *plane->control;
  std::vector<std::int32_t> all_ranks;
  for (int rank = 0; rank < world.size; ++rank) all_ranks.push_back(rank);
  control::HubGroup group(plane->control, all_ranks, 1, "world");
  try {
    if (network == nullptr) network = make_network(world, backend, protection);
    Call call(Op::exchange, {.phase = Phase::setup});
    call.set_name("where the ranks are");
    std::vector<std::uint64_t> secrets;
    std::vector<NodesJob::Member> members =
        members_of(group.exchange(call, describe_self(world, *network)), secrets);
    start_network(*network, members, group);
    network->meet([plane, call] { plane->control->check(call); });
    std::vector<int> ranks_here;
    const World node = world_of_node(world, members, secrets, ranks_here);
    const JoinedJob local = join_shared_job(
        node, options, timeout + lead_of_control,
        {.world_ranks = ranks_here,
         .watch = std::shared_ptr<StandstillWatch>(plane, &control.watch()),
         .look = [plane](const Call& in) { plane->control->check(in); },
         .tell_failure = [plane](std::string_view text) { plane->control->abort(text); }});
    auto of_node =
        std::static_pointer_cast<SharedCommunicator>(make_world(local.job, local.world_group));
    const auto job =
        std::make_shared<NodesJob>(plane, std::move(network), std::move(members), timeout);
    std::vector<int> world_ranks(all_ranks.begin(), all_ranks.end());
    return make_shared_at_home<NodesCommunicator>(job, std::move(group), std::move(world_ranks),
                                                  std::move(of_node));
  } catch (const Error& error) {
    control.abort(error.what());
    throw;
  }
}

}  // namespace tessera::comm
