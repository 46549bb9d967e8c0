// The launcher: one loop over signals, the ranks' exits and other launchers.
#include "launch/launch.h"

#include <fmt/format.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "base/counted.h"
#include "base/error.h"
#include "checkpoint/state/line.h"
#include "comm/control/bootstrap.h"
#include "comm/control/wire.h"
#include "comm/file_descriptor.h"
#include "comm/timeout.h"
#include "comm/watch/port_holder.h"
#include "launch/end_ranks.h"
#include "launch/failure_channel.h"
#include "launch/launcher_death.h"
#include "launch/nodes.h"
#include "launch/rank_process.h"
#include "launch/report.h"
#include "launch/signals.h"
#include "trainer/restart.h"

namespace tessera::launcher {
namespace {

using Clock = std::chrono::steady_clock;
constexpr Clock::duration last_words = std::chrono::seconds(1);

// A free port of this node for the program: the wanted one, or any for 0.
int free_port(int wanted) {
  const auto listener = comm::control::listen_on(wanted, true);
  TESSERA_CHECK(listener, ErrorCode::configuration,
                "--master-port {}: {} has this port; choose another, or 0 for a free one", wanted,
                comm::holder_of_port(wanted).name);
  return comm::control::port_of(listener->get());
}

// Rank 0's listener for the control plane; none on the other nodes.
comm::FileDescriptor control_listener(const LaunchOptions& options) {
  if (options.node_rank != 0) return {};
  const bool here = options.nodes == 1;
  auto listener =
      comm::control::listen_on(here ? 0 : options.master_port + 1,
                               here && comm::control::is_loopback(options.master_address));
  TESSERA_CHECK(listener, ErrorCode::configuration,
                "--master-port {}: the control plane uses the port after it, and {} has that; "
                "choose another",
                options.master_port, comm::holder_of_port(options.master_port + 1).name);
  return std::move(*listener);
}

// The ranks of one attempt, from start to end.
class Attempt {
 public:
  // `nodes`: the other launchers, if there are any.
  Attempt(const LaunchOptions& options, const LaunchPlan& plan, int restart, SignalQueue& signals,
          LauncherDeathGuard& guard, LaunchNodes* nodes)
      : plan_(plan),
        signals_(signals),
        nodes_(nodes),
        output_(options.output, options.ranks, plan.first_rank, restart > 0) {
    const bool first = nodes == nullptr && (restart == 0 || options.master_port == 0);
    const int port = first ? free_port(options.master_port) : options.master_port;
    for (int rank = 0; rank < options.ranks; ++rank) {
      RankProcess::Start start;
      start.command = options.command;
      start.environment = environment(options, rank, restart, port);
      // A rank that reads a terminal from a background process group would be stopped.
      start.keeps_stdin = plan.first_rank + rank == 0 && ::isatty(STDIN_FILENO) == 0;
      start.signal_mask = signals.mask_before();
      start.keep_descriptors = {channel_.write_end()};
      if (plan.first_rank + rank == 0) {
        start.keep_descriptors.push_back(plan.listener);
        start.environment[comm::control::listener_variable] = std::to_string(plan.listener);
      }
      start.output = output_.ends_of(rank);
      ranks_.emplace_back(plan.first_rank + rank, start, guard);
    }
    output_.close_ends();
  }

  LaunchOutcome run() {
    LaunchOutcome outcome;
    for (;;) {
      const bool running = collect(outcome);
      if (nodes_ != nullptr) listen_to_nodes(outcome, running);
      if (!running && (nodes_ == nullptr || nodes_->verdict())) {
        // Wait until a pager has read the output; the other nodes see this one waiting.
        output_.finish();
        if (output_.is_passed_on() || given_up_printing_) break;
      }
      ending_.keep_time();
      if (const auto signal = signals_.wait(waiting_time(), watched())) {
        given_up_printing_ = !running && *signal != SIGUSR1;
        take_signal(*signal, outcome);
      }
      output_.pass_on();
    }
    append(outcome.messages, channel_.take());
    outcome.lacked_room = output_.lacked_room();
    return outcome;
  }

 private:
  std::map<std::string, std::string> environment(const LaunchOptions& options, int rank,
                                                 int restart, int port) const {
    const std::string size = std::to_string(plan_.world);
    const std::string here = std::to_string(options.ranks);
    const std::string number = std::to_string(plan_.first_rank + rank);
    std::map<std::string, std::string> variables = {
        {"RANK", number},
        {"LOCAL_RANK", std::to_string(rank)},
        {"ROLE_RANK", number},
        {"GROUP_RANK", std::to_string(options.node_rank)},
        {"WORLD_SIZE", size},
        {"LOCAL_WORLD_SIZE", here},
        {"ROLE_WORLD_SIZE", size},
        {"GROUP_WORLD_SIZE", std::to_string(options.nodes)},
        {"ROLE_NAME", "default"},
        {"MASTER_ADDR", options.master_address},
        {"MASTER_PORT", std::to_string(port)},
        {"TORCHELASTIC_RUN_ID", plan_.run_id},
        {"TORCHELASTIC_RESTART_COUNT", std::to_string(restart)},
        {"TORCHELASTIC_MAX_RESTARTS", std::to_string(plan_.max_restarts)},
        {launch_variable, plan_.launch_id},
        {comm::control::job_key_variable, options.job_key.for_environment()},
        {comm::control::port_variable, std::to_string(plan_.control_port)},
        {comm::control::listener_variable, ""},
        {failure_pipe_variable, channel_.variable_value()},
    };
    if (std::getenv("OMP_NUM_THREADS") == nullptr) {
      variables["OMP_NUM_THREADS"] =
          std::to_string(std::max(1, usable_cores() / std::max(options.ranks, options.threads)));
    }
    for (const auto& [name, value] : options.variables) variables[name] = value;
    return variables;
  }

  static void append(std::vector<Failure>& all, std::vector<Failure> more) {
    for (Failure& failure : more) all.push_back(std::move(failure));
  }

  std::vector<pollfd> watched() const {
    std::vector<pollfd> watched = output_.waited_for();
    if (nodes_ != nullptr) {
      const std::vector<pollfd> more = nodes_->watched();
      watched.insert(watched.end(), more.begin(), more.end());
    }
    return watched;
  }

  // Takes the ranks that have ended; false when none runs any more.
  bool collect(LaunchOutcome& outcome) {
    append(outcome.messages, channel_.take());
    std::optional<EndedRank> failed;
    // Twice: the rank that died first may come earlier in this order than one that ended just now
    // because of it.
    for (int pass = 0; pass < 2; ++pass) {
      for (RankProcess& rank : ranks_) {
        const std::optional<RankExit> exit = rank.poll();
        if (!exit) continue;
        const EndedRank ended{rank.rank(), rank.pid(), *exit};
        if (weight_of(*exit) > (failed ? weight_of(failed->exit) : Weight::none) &&
            is_cause(ended, outcome))
          failed = ended;
      }
    }
    if (failed) {
      append(outcome.messages, channel_.take());  // its last messages
      const bool corrected = std::exchange(outcome.first_failure, failed).has_value();
      // Each rank that got a signal to stop may take its time to save.
      const bool as_told =
          outcome.stop_signal != 0 && failed->exit.code == 128 + outcome.stop_signal;
      if (!as_told) {
        if (nodes_ != nullptr && (corrected || !ending_.begun()))
          nodes_->tell_failure(report(outcome));
        ending_.end();
      }
    }
    return std::any_of(ranks_.begin(), ranks_.end(),
                       [](const RankProcess& rank) { return rank.running(); });
  }

  // The first failure is the cause. But the end of a killed rank may be seen after the end of a
  // rank that lost it, as long as the launcher has killed no rank itself.
  bool is_cause(const EndedRank& ended, const LaunchOutcome& outcome) const {
    if (!outcome.first_failure) return true;
    const bool killed = ended.exit.signal != 0 && ended.exit.signal != SIGTERM;
    return killed && ending_.gives_time() && outcome.stop_signal == 0 &&
           weight_of(outcome.first_failure->exit) == Weight::consequence;
  }

  LaunchReport report(const LaunchOutcome& outcome) const {
    return report_of(outcome, static_cast<int>(ranks_.size()), plan_.world, plan_.place);
  }

  // A failure on another node ends the ranks here. If it may only be a consequence, the ranks here
  // get a moment to report what they know.
  void listen_to_nodes(LaunchOutcome& outcome, bool running) {
    nodes_->serve();
    while (const auto signal = nodes_->take_signal()) ending_.take_foreign_signal(*signal);
    outcome.stop_signal = ending_.stop_signal();
    if (const auto& failed = nodes_->failure_elsewhere()) {
      ending_.end_after(failed->weight == Weight::consequence ? last_words : Clock::duration(0));
    }
    if (!running && !std::exchange(end_told_, true)) {
      // A rank that the launcher itself ended is not a failure of its own.
      nodes_->tell_end(ended_elsewhere(outcome) ? LaunchReport{} : report(outcome));
    }
  }

  bool ended_elsewhere(const LaunchOutcome& outcome) const {
    return ending_.begun() && nodes_->failure_elsewhere() &&
           (!outcome.first_failure || outcome.first_failure->exit.signal == SIGTERM ||
            outcome.first_failure->exit.signal == SIGKILL ||
            outcome.first_failure->exit.code == 128 + SIGTERM);
  }

  void take_signal(int signal, LaunchOutcome& outcome) {
    if (signal == SIGUSR1) {  // the ranks save, and go on
      for (const RankProcess& rank : ranks_) rank.tell_group(signal);
    } else if (const int told = ending_.take_signal(signal); told != 0) {
      outcome.stop_signal = ending_.stop_signal();
      if (nodes_ != nullptr) nodes_->tell_signal(told);
    }
  }

  [[nodiscard]] std::chrono::milliseconds waiting_time() const {
    constexpr auto longest = std::chrono::milliseconds(500);
    constexpr auto with_nodes = std::chrono::milliseconds(100);
    return nodes_ != nullptr ? with_nodes : ending_.waiting_time(longest);
  }

  const LaunchPlan& plan_;
  SignalQueue& signals_;
  LaunchNodes* nodes_;
  FailureChannel channel_;
  RankOutput output_;
  std::vector<RankProcess> ranks_;
  RankEnding ending_{ranks_};
  bool end_told_ = false;
  bool given_up_printing_ = false;  // the launcher got a signal when no rank ran any more
};

std::string restarting(const LaunchPlan& plan, int restart) {
  return fmt::format("restarting {}{} (restart {} of {})", plan.world == 1 ? "the " : "all ",
                     counted(plan.world, "rank"), restart + 1, plan.max_restarts);
}

}  // namespace

int usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return ::sched_getaffinity(0, sizeof set, &set) == 0 ? std::max(1, CPU_COUNT(&set)) : 1;
}

namespace {

std::string new_run_id() {
  return fmt::format("tessera-{}-{}", ::getpid(), Clock::now().time_since_epoch().count());
}

int launch_here(const LaunchOptions& options, const LaunchPlan& plan, SignalQueue& signals,
                LauncherDeathGuard& guard) {
  for (int restart = 0;; ++restart) {
    const LaunchOutcome outcome = Attempt(options, plan, restart, signals, guard, nullptr).run();
    const LaunchReport report = report_of(outcome, plan.world, plan.world, "");
    if (!report.line.empty()) say(report.line);
    if (restart == plan.max_restarts || !report.worth_restarting) return report.code;
    say(restarting(plan, restart));
  }
}

int launch_with_others(const LaunchOptions& options, const LaunchPlan& plan, SignalQueue& signals,
                       LauncherDeathGuard& guard) {
  if (options.node_rank == 0) (void)free_port(options.master_port);  // before the others wait
  LaunchNodes nodes(options, plan);
  if (const auto signal = nodes.meet(signals)) {
    say(fmt::format("stopped by signal {} (SIG{}) before all nodes had come", *signal,
                    sigabbrev_np(*signal)));
    return 128 + *signal;
  }
  for (int restart = 0;; ++restart) {
    bool lacked_room = false;
    try {
      lacked_room =
          Attempt(options, nodes.plan(), restart, signals, guard, &nodes).run().lacked_room;
    } catch (const Error& error) {  // the program cannot be run here
      nodes.tell_failure({.code = static_cast<int>(error.code()),
                          .weight = Weight::failure,
                          .line = fmt::format("error: node {}{}: {}", options.node_rank,
                                              nodes.plan().place, error.what())});
      throw;
    }
    const LaunchNodes::Verdict verdict = *nodes.verdict();
    if (!verdict.report.line.empty()) say(verdict.report.line);
    if (!verdict.again) {
      const bool good = verdict.report.code == 0;
      return good && lacked_room ? static_cast<int>(ErrorCode::checkpoint) : verdict.report.code;
    }
    say(restarting(nodes.plan(), restart));
    nodes.begin_next_attempt();
  }
}

}  // namespace

int launch(const LaunchOptions& options) {
  TESSERA_REQUIRE(options.ranks > 0 && !options.command.empty(),
                  "launch() needs ranks and a program");
  LauncherDeathGuard guard(comm::standstill_timeout());  // first: its process has no listener
  // From before the launchers meet until the end, so that no other program takes rank 0's place.
  const comm::FileDescriptor listener = control_listener(options);
  const bool listens = listener.get() >= 0;
  const LaunchPlan plan{
      .world = options.ranks,
      .max_restarts = options.max_restarts,
      .run_id = options.run_id.empty() ? new_run_id() : options.run_id,
      .launch_id = checkpoint::new_run(),
      .place = "",
      .listener = listener.get(),
      .control_port = listens ? comm::control::port_of(listener.get()) : options.master_port + 1};
  SignalQueue signals;
  return options.nodes == 1 ? launch_here(options, plan, signals, guard)
                            : launch_with_others(options, plan, signals, guard);
}

}  // namespace tessera::launcher
