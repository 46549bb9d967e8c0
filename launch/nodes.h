// The launchers of a job's nodes. They start and end their ranks together.
//
// Node 0's launcher listens at the port after MASTER_PORT, where rank 0 listens later. The others
// connect to it, prove that they know the job's key, and stay connected. Each reports when a rank
// of its node has failed, when all its ranks have ended, and which signal it got. Node 0 passes
// this on to the others, and at the end it sends the result of the whole job. Both sides send
// heartbeats. The job ends on all other nodes when a launcher is gone, or is silent for three
// seconds longer than a silent rank may be (so that ranks, which know more, report first).
#pragma once

#include <poll.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "comm/control/door.h"
#include "comm/control/frame_stream.h"
#include "comm/watch/running_clock.h"
#include "launch/launch.h"
#include "launch/report.h"
#include "launch/signals.h"

namespace tessera::launcher {

// The place of this node's ranks in the world.
struct LaunchPlan {
  int world = 1;  // ranks
  int first_rank = 0;
  int max_restarts = 0;
  std::string run_id;
  std::string launch_id;
  std::string place;     // " on host7" if there are several nodes, else empty
  int listener = -1;     // on node 0, rank 0's for the control plane
  int control_port = 0;  // its port
};

class LaunchNodes {
 public:
  // The plan of a launch on this node alone. Other nodes than node 0 get theirs from node 0.
  LaunchNodes(const LaunchOptions& options, const LaunchPlan& plan);
  ~LaunchNodes();
  LaunchNodes(const LaunchNodes&) = delete;
  LaunchNodes& operator=(const LaunchNodes&) = delete;

  // Waits for the other launchers. Returns the signal that ended the waiting, if one did. Throws
  // Error(configuration) for launchers that do not fit together, and Error(rank_failed) with the
  // nodes that did not come.
  std::optional<int> meet(SignalQueue& signals);
  [[nodiscard]] const LaunchPlan& plan() const { return plan_; }

  // watched() returns the descriptors for poll(); call serve() after it, several times a second.
  [[nodiscard]] std::vector<pollfd> watched() const;
  void serve();

  // Report to the other nodes: this node's ranks have failed and are being ended; all have ended;
  // they must stop because this launcher got a signal (SIGKILL: at once).
  void tell_failure(const LaunchReport& report);
  void tell_end(const LaunchReport& report);
  void tell_signal(int signal);

  // The first failure on another node, or the loss of a node.
  [[nodiscard]] const std::optional<LaunchReport>& failure_elsewhere() const { return elsewhere_; }
  // A signal that another launcher got; each is returned once.
  std::optional<int> take_signal();
  // Set when all ranks of all nodes have ended.
  struct Verdict {
    LaunchReport report;
    bool again = false;  // the next attempt begins
  };
  [[nodiscard]] const std::optional<Verdict>& verdict() const { return verdict_; }
  void begin_next_attempt();

 private:
  using Clock = std::chrono::steady_clock;
  struct Peer {
    int node = 0;
    int ranks = 1;
    int first_rank = 0;
    std::string name;  // "node 1 (pid 4711 on host7)"
    comm::control::FrameStream stream;
    std::chrono::nanoseconds heard{0};
    bool ended = false;  // all its ranks have ended
  };

  // rendezvous.cpp
  std::optional<int> gather(SignalQueue& signals);
  std::optional<int> come(SignalQueue& signals);
  void let_in(comm::control::Door& door);
  [[nodiscard]] std::string reason_to_refuse(const std::string& its) const;
  [[nodiscard]] std::string introduction() const;
  [[nodiscard]] comm::control::Meeting meeting() const;
  void add_peer(comm::FileDescriptor connection, comm::control::Session session,
                const std::string& its);
  std::string try_to_come();
  void check_master_address() const;
  void send_plans();
  [[nodiscard]] std::string missing_nodes() const;  // "1, 3"
  [[noreturn]] void fail_for_missing_nodes();
  [[nodiscard]] int port() const { return plan_.control_port; }

  [[nodiscard]] bool leads() const { return options_.node_rank == 0; }
  void send(Peer& peer, const std::string& message);
  void send_to_all(const std::string& message, int but_node = -1);
  void receive_from(Peer& peer);
  void take(Peer& peer, const std::string& text);
  void take_from_member(Peer& peer, const std::string& kind, const LaunchReport& report);
  void lose(Peer& peer, const std::string& how, int weight);
  void add(const LaunchReport& report);
  void decide();

  const LaunchOptions options_;
  const std::chrono::milliseconds silence_;
  LaunchPlan plan_;
  std::vector<Peer> peers_;  // node 0: all others; another node: node 0 alone
  comm::RunningClock clock_;
  std::chrono::nanoseconds beat_at_{0};
  bool met_ = false;
  bool own_ended_ = false;
  bool lost_ = false;  // a node is lost, for good
  bool told_of_name_ = false;
  bool stopped_ = false;  // by a signal, on any node
  int attempt_ = 0;
  std::optional<LaunchReport> elsewhere_;
  std::optional<LaunchReport> gravest_;  // of all nodes, as far as this one knows
  std::optional<Verdict> verdict_;
  std::vector<int> signals_;  // that other launchers got
};

}  // namespace tessera::launcher
