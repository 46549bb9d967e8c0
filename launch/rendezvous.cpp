// How the launchers of a job's nodes find each other.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <exception>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/version.h"
#include "comm/control/wire.h"
#include "comm/wait_notice.h"
#include "launch/nodes.h"

namespace tessera::launcher {
namespace {

using comm::FileDescriptor;
using comm::control::Door;
using comm::control::FrameStream;
using comm::control::NotOurHub;
using Json = nlohmann::json;

constexpr std::chrono::milliseconds turn{200};
constexpr std::chrono::milliseconds connection_patience{500};
constexpr std::chrono::milliseconds introduction_patience{5'000};
constexpr std::uint64_t longest_message = std::uint64_t{1} << 20;

std::string own_host() {
  std::array<char, 65> host{};
  TESSERA_SYSTEM(::gethostname(host.data(), host.size() - 1));
  return host.data();
}

}  // namespace

comm::control::Meeting LaunchNodes::meeting() const {
  return comm::control::meeting_of("launchers", options_.run_id, options_.job_key);
}

std::string LaunchNodes::introduction() const {
  const Json its = {{"node", options_.node_rank}, {"nodes", options_.nodes},
                    {"ranks", options_.ranks},    {"pid", ::getpid()},
                    {"host", own_host()},         {"version", version()}};
  return its.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::optional<int> LaunchNodes::meet(SignalQueue& signals) {
  plan_.place = " on " + own_host();
  return leads() ? gather(signals) : come(signals);
}

namespace {

// A signal that ends the launcher. A batch system's early warning does not: there is nothing to
// save yet.
std::optional<int> stop_within(SignalQueue& signals, std::vector<pollfd> watched) {
  const auto signal = signals.wait(turn, std::move(watched));
  return signal == SIGUSR1 ? std::nullopt : signal;
}

}  // namespace

std::optional<int> LaunchNodes::gather(SignalQueue& signals) {
  check_master_address();
  FileDescriptor listener(TESSERA_SYSTEM(::fcntl(plan_.listener, F_DUPFD_CLOEXEC, 0)));
  Door door(std::move(listener), meeting(), "the launcher", {});
  const auto deadline = Clock::now() + options_.meeting;
  comm::WaitNotice notice(options_.meeting);
  while (peers_.size() + 1 < static_cast<std::size_t>(options_.nodes)) {
    notice.look([this] {
      return fmt::format("node 0 waits for the launcher of node(s) {} of {} at {} port {}",
                         missing_nodes(), options_.nodes, options_.master_address, port());
    });
    if (Clock::now() > deadline) fail_for_missing_nodes();
    std::vector<pollfd> all = watched();
    door.add_to(all);
    if (const auto signal = stop_within(signals, std::move(all))) return signal;
    let_in(door);
    serve();
    std::erase_if(peers_, [](const Peer& peer) { return !peer.stream.open(); });
  }
  met_ = true;
  send_plans();
  return std::nullopt;
}

void LaunchNodes::let_in(Door& door) {
  for (Door::Caller& caller : door.serve()) {
    try {
      if (const std::string why = reason_to_refuse(caller.introduction); !why.empty()) {
        Door::refuse(caller, why);
        continue;
      }
      comm::control::Session session = Door::answer(caller, introduction());
      add_peer(std::move(caller.connection), std::move(session), caller.introduction);
    } catch (const std::exception&) {
      // It is gone, or its message is not valid; it may come again.
    }
  }
}

std::string LaunchNodes::reason_to_refuse(const std::string& its) const {
  const Json other = Json::parse(its, nullptr, false);
  if (!other.is_object()) return "the launcher's introduction is not valid";
  if (other.value("version", "") != version()) {
    return fmt::format("node 0 runs Tessera {}, and this launcher is of {}: use one version",
                       version(), other.value("version", ""));
  }
  const int node = other.value("node", -1);
  if (other.value("nodes", 0) != options_.nodes) {
    return fmt::format("--nnodes {} here and {} on node 0: give all launchers the same",
                       other.value("nodes", 0), options_.nodes);
  }
  const auto same = [node](const Peer& peer) { return peer.node == node; };
  const auto there = std::find_if(peers_.begin(), peers_.end(), same);
  if (node < 1 || node >= options_.nodes || there != peers_.end()) {
    return fmt::format(
        "--node-rank {}: {} has this number; give each of the {} launchers its own, "
        "0 to {}",
        node, there != peers_.end() ? there->name : "node 0", options_.nodes, options_.nodes - 1);
  }
  return "";
}

void LaunchNodes::add_peer(FileDescriptor connection, comm::control::Session session,
                           const std::string& its) {
  const Json other = Json::parse(its, nullptr, false);
  TESSERA_CHECK(other.is_object(), ErrorCode::rank_failed, "an introduction is not valid");
  comm::control::prepare_connection(connection.get(), 2 * silence_);
  Peer& peer = peers_.emplace_back();
  peer.node = other.value("node", 0);
  peer.ranks = other.value("ranks", 1);
  peer.name = fmt::format("node {} (pid {} on {})", peer.node, other.value("pid", 0),
                          other.value("host", "?"));
  peer.heard = clock_.look();
  peer.stream = FrameStream(std::move(connection), std::move(session), longest_message);
}

void LaunchNodes::send_plans() {
  std::sort(peers_.begin(), peers_.end(),
            [](const Peer& a, const Peer& b) { return a.node < b.node; });
  plan_.world = options_.ranks;
  for (Peer& peer : peers_) {
    peer.first_rank = plan_.world;
    plan_.world += peer.ranks;
  }
  for (Peer& peer : peers_) {
    const Json plan = {{"kind", "plan"},
                       {"world", plan_.world},
                       {"first_rank", peer.first_rank},
                       {"max_restarts", plan_.max_restarts},
                       {"run_id", plan_.run_id},
                       {"launch_id", plan_.launch_id}};
    send(peer, plan.dump(-1, ' ', false, Json::error_handler_t::replace));
  }
}

std::string LaunchNodes::missing_nodes() const {
  std::string missing;
  for (int node = 1; node < options_.nodes; ++node) {
    const auto is_it = [node](const Peer& peer) { return peer.node == node; };
    if (std::any_of(peers_.begin(), peers_.end(), is_it)) continue;
    missing += fmt::format("{}{}", missing.empty() ? "" : ", ", node);
  }
  return missing;
}

void LaunchNodes::fail_for_missing_nodes() {
  const std::string text = fmt::format(
      "the launcher of node(s) {} of {} did not come to {} port {} within {} s; start `tessera "
      "launch --node-rank N` on every host with the same --master-addr and --master-port",
      missing_nodes(), options_.nodes, options_.master_address, port(),
      std::chrono::duration<double>(options_.meeting).count());
  const Json verdict = {
      {"kind", "verdict"}, {"code", static_cast<int>(ErrorCode::rank_failed)}, {"line", text}};
  send_to_all(verdict.dump(-1, ' ', false, Json::error_handler_t::replace));
  fail(ErrorCode::rank_failed, "{}", text);
}

// Node 0 itself needs no address. But if it cannot resolve it, the others cannot either.
void LaunchNodes::check_master_address() const {
  try {
    comm::control::require_address(options_.master_address);
  } catch (const comm::control::NoNameServer& silent) {
    say(fmt::format("waiting: {}", silent.what()));
  }
}

// Empty if it has connected; else the reason why not.
std::string LaunchNodes::try_to_come() {
  std::optional<comm::FileDescriptor> connection;
  try {
    connection = comm::control::connect_to(options_.master_address, port(), connection_patience);
  } catch (const comm::control::NoNameServer& silent) {
    if (!std::exchange(told_of_name_, true)) say(fmt::format("waiting: {}", silent.what()));
    return silent.what();
  }
  if (!connection) return "no program listens there";
  try {
    comm::control::Admission admission = comm::control::introduce(
        connection->get(), meeting(), introduction(), introduction_patience);
    add_peer(std::move(*connection), std::move(admission.session), admission.introduction);
    return "";
  } catch (const NotOurHub& other) {
    if (other.code() == ErrorCode::configuration) throw;
    return other.what();
  }
}

std::optional<int> LaunchNodes::come(SignalQueue& signals) {
  const auto deadline = Clock::now() + options_.meeting;
  comm::WaitNotice notice(options_.meeting);
  for (std::string reason = try_to_come(); !reason.empty(); reason = try_to_come()) {
    notice.look([&] {
      return fmt::format("node {} waits for node 0's launcher at {} port {} ({})",
                         options_.node_rank, options_.master_address, port(), reason);
    });
    TESSERA_CHECK(Clock::now() < deadline, ErrorCode::rank_failed,
                  "node {} did not find node 0's launcher at {} port {} within {} s: {}; start it "
                  "there with the same --master-addr, --master-port and --run-id",
                  options_.node_rank, options_.master_address, port(),
                  std::chrono::duration<double>(options_.meeting).count(), reason);
    if (const auto signal = stop_within(signals, {})) return signal;
  }
  // Node 0 reports when all have come, or that some have not.
  while (!met_) {
    notice.look([this] {
      return fmt::format("node {} has found node 0 at {} port {} and waits for the other nodes",
                         options_.node_rank, options_.master_address, port());
    });
    if (const auto signal = stop_within(signals, watched())) return signal;
    serve();
    if (verdict_) throw Error(static_cast<ErrorCode>(verdict_->report.code), verdict_->report.line);
    TESSERA_CHECK(met_ || peers_.front().stream.open(), ErrorCode::rank_failed,
                  "node 0's launcher ended before all nodes had come; see its messages on {}",
                  options_.master_address);
  }
  return std::nullopt;
}

}  // namespace tessera::launcher
