// The launcher: one loop over signals, the ranks' exits and a deadline.
#include "cli/launch.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <optional>

#include "checkpoint/line.h"
#include "cli/failure.h"
#include "cli/guardian.h"
#include "cli/insisting_signal.h"
#include "cli/rank_process.h"
#include "cli/restart.h"
#include "kernels/base/error.h"
#include "sharding/comm/timeout.h"

namespace tessera::cli {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto grace = std::chrono::seconds(3);  // from SIGTERM to SIGKILL
constexpr int rank_failed = static_cast<int>(ErrorCode::rank_failed);

class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  ~Descriptor() { ::close(number_); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  [[nodiscard]] int get() const { return number_; }

 private:
  int number_;
};

// Signals come through a descriptor while it lives, so that they can be waited for together with
// time.
class SignalQueue {
 public:
  SignalQueue()
      : blocked_(block(before_)),
        file_(TESSERA_SYSTEM(::signalfd(-1, &blocked_, SFD_CLOEXEC | SFD_NONBLOCK))) {}
  ~SignalQueue() { ::sigprocmask(SIG_SETMASK, &before_, nullptr); }
  SignalQueue(const SignalQueue&) = delete;
  SignalQueue& operator=(const SignalQueue&) = delete;

  [[nodiscard]] const sigset_t& mask_before() const { return before_; }

  // Waits for a signal; none when the time is over, a rank has ended or has printed.
  std::optional<int> wait(std::chrono::milliseconds time, std::vector<pollfd> output) {
    output.insert(output.begin(), {file_.get(), POLLIN, 0});
    if (::poll(output.data(), output.size(), static_cast<int>(time.count())) <= 0 ||
        output.front().revents == 0) {
      return std::nullopt;
    }
    signalfd_siginfo info{};
    if (::read(file_.get(), &info, sizeof info) != sizeof info) return std::nullopt;
    if (info.ssi_signo == SIGCHLD) return std::nullopt;
    return static_cast<int>(info.ssi_signo);
  }

 private:
  static sigset_t block(sigset_t& before) {
    sigset_t set;
    sigemptyset(&set);
    for (const int signal : {SIGCHLD, SIGINT, SIGTERM, SIGQUIT, SIGUSR1}) sigaddset(&set, signal);
    // What nohup has made the launcher ignore is not to reach it as a message either.
    struct sigaction hangup {};
    if (::sigaction(SIGHUP, nullptr, &hangup) != 0 || hangup.sa_handler != SIG_IGN) {
      sigaddset(&set, SIGHUP);
    }
    ::sigprocmask(SIG_BLOCK, &set, &before);
    return set;
  }

  sigset_t before_{};
  sigset_t blocked_;
  Descriptor file_;
};

// A port of this machine that nobody has: the wanted one, or any for 0.
int free_port(int wanted) {
  const Descriptor socket(TESSERA_SYSTEM(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)));
  const int yes = 1;  // one that was just given back is free
  TESSERA_SYSTEM(::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(wanted));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  const int bound = ::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address);
  TESSERA_CHECK(
      bound == 0 || wanted == 0, ErrorCode::configuration,
      "--master-port {}: {}; choose another, or 0 for a free one", wanted,
      errno == EADDRINUSE ? "another program has this port" : describe_errno("bind", errno));
  TESSERA_CHECK(bound == 0, ErrorCode::runtime, "{}", describe_errno("bind", errno));
  TESSERA_SYSTEM(::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &length));
  return ntohs(address.sin_port);
}

struct Ended {
  int rank = 0;
  pid_t pid = 0;
  RankExit exit;
};

// A rank that was killed is a cause; a rank that ends because it lost another (7) is a consequence.
// Ranks that are seen to have ended at the same moment are told apart by this.
int weight(const RankExit& exit) {
  if (exit.signal != 0) return 3;
  return exit.code == 0 ? 0 : exit.code == rank_failed ? 1 : 2;
}

struct Outcome {
  std::optional<Ended> first_failure;
  std::vector<Failure> messages;
  int stop_signal = 0;  // that the launcher got
};

// The ranks of one attempt, from start to end.
class Attempt {
 public:
  Attempt(const LaunchOptions& options, int restart, SignalQueue& signals, Guardian& guardian)
      : signals_(signals), output_(options.output, options.ranks, restart > 0) {
    const bool first = restart == 0 || options.master_port == 0;
    const int port = first ? free_port(options.master_port) : options.master_port;
    for (int rank = 0; rank < options.ranks; ++rank) {
      RankProcess::Start start;
      start.command = options.command;
      start.environment = environment(options, rank, restart, port);
      // A rank that reads a terminal from a background process group would be stopped.
      start.keeps_stdin = rank == 0 && ::isatty(STDIN_FILENO) == 0;
      start.signal_mask = signals.mask_before();
      start.keep_descriptor = channel_.write_end();
      start.output = output_.ends_of(rank);
      ranks_.emplace_back(rank, start, guardian);
    }
    output_.close_ends();
  }

  Outcome run() {
    Outcome outcome;
    while (collect(outcome)) {
      if (deadline_ && Clock::now() >= *deadline_) {
        signal_all(SIGKILL);
        deadline_.reset();
      }
      if (const auto signal = signals_.wait(waiting_time(), output_.waited_for()))
        forward(*signal, outcome);
      output_.pass_on();
    }
    output_.finish();
    append(outcome.messages, channel_.take());
    return outcome;
  }

 private:
  std::map<std::string, std::string> environment(const LaunchOptions& options, int rank,
                                                 int restart, int port) const {
    const std::string size = std::to_string(options.ranks);
    const std::string number = std::to_string(rank);
    std::map<std::string, std::string> variables = {
        {"RANK", number},
        {"LOCAL_RANK", number},
        {"ROLE_RANK", number},
        {"GROUP_RANK", "0"},
        {"WORLD_SIZE", size},
        {"LOCAL_WORLD_SIZE", size},
        {"ROLE_WORLD_SIZE", size},
        {"GROUP_WORLD_SIZE", "1"},
        {"ROLE_NAME", "default"},
        {"MASTER_ADDR", options.master_address},
        {"MASTER_PORT", std::to_string(port)},
        {"TORCHELASTIC_RUN_ID", options.run_id},
        {"TORCHELASTIC_RESTART_COUNT", std::to_string(restart)},
        {"TORCHELASTIC_MAX_RESTARTS", std::to_string(options.max_restarts)},
        {launch_variable, options.launch_id},
        {FailureChannel::variable, channel_.variable_value()},
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

  void signal_all(int signal) {
    for (const RankProcess& rank : ranks_) rank.signal_group(signal);
  }

  // Takes what has ended; false when nothing runs any more.
  bool collect(Outcome& outcome) {
    append(outcome.messages, channel_.take());
    std::optional<Ended> failed;
    // Twice: the rank that died first may come before one, in this order, that ended because of it
    // just now.
    for (int pass = 0; pass < 2; ++pass) {
      for (RankProcess& rank : ranks_) {
        const std::optional<RankExit> exit = rank.poll();
        if (!exit) continue;
        if (weight(*exit) > (failed ? weight(failed->exit) : 0))
          failed = Ended{rank.rank(), rank.pid(), *exit};
      }
    }
    if (failed && !outcome.first_failure) {
      outcome.first_failure = failed;
      // Ranks that were told to stop may each take their time to save.
      const bool as_told =
          outcome.stop_signal != 0 && failed->exit.code == 128 + outcome.stop_signal;
      if (!as_told) {
        signal_all(SIGTERM);
        signal_all(SIGCONT);  // one that was stopped can end as well
        deadline_ = Clock::now() + grace;
      }
    }
    return std::any_of(ranks_.begin(), ranks_.end(),
                       [](const RankProcess& rank) { return rank.running(); });
  }

  void forward(int signal, Outcome& outcome) {
    if (signal == SIGUSR1) {  // the ranks save, and go on
      for (const RankProcess& rank : ranks_) rank.tell_group(signal);
      return;
    }
    if (outcome.stop_signal == 0) {
      signal_all(signal);
      outcome.stop_signal = signal;
      stopped_at_ = Clock::now();
    } else if (insists(signal, Clock::now() - stopped_at_)) {
      signal_all(SIGKILL);
    }
  }

  [[nodiscard]] std::chrono::milliseconds waiting_time() const {
    constexpr auto longest = std::chrono::milliseconds(500);
    if (!deadline_) return longest;
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(*deadline_ - Clock::now());
    return std::clamp(left + std::chrono::milliseconds(1), std::chrono::milliseconds(1), longest);
  }

  SignalQueue& signals_;
  FailureChannel channel_;
  RankOutput output_;
  std::vector<RankProcess> ranks_;
  std::optional<Clock::time_point> deadline_;
  Clock::time_point stopped_at_{};  // by the signal that the launcher got
};

void say(const std::string& line) {
  const std::string text = "tessera: " + line + "\n";
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
}

int exit_code(const Outcome& outcome) {
  if (outcome.stop_signal != 0) {
    const bool chosen = outcome.first_failure && outcome.first_failure->exit.signal == 0;
    return chosen                  ? outcome.first_failure->exit.code
           : outcome.first_failure ? 128 + outcome.stop_signal
                                   : 0;
  }
  if (!outcome.first_failure) return 0;
  return outcome.first_failure->exit.signal != 0 ? rank_failed : outcome.first_failure->exit.code;
}

// Of these kinds every rank finds the same, or the message itself names the rank.
bool concerns_all(int code) {
  constexpr ErrorCode kinds[] = {ErrorCode::usage, ErrorCode::configuration, ErrorCode::checkpoint,
                                 ErrorCode::numeric};
  return std::any_of(std::begin(kinds), std::end(kinds),
                     [code](ErrorCode kind) { return static_cast<int>(kind) == code; });
}

// What the first rank that failed said, once; or, when it said nothing, what became of it.
void explain(const Outcome& outcome, int ranks) {
  if (!outcome.first_failure) return;
  const Ended& first = *outcome.first_failure;
  const auto of_first =
      std::find_if(outcome.messages.begin(), outcome.messages.end(),
                   [&](const Failure& failure) { return failure.rank == first.rank; });
  if (first.exit.signal == 0 && of_first != outcome.messages.end()) {
    const bool all_alike =
        ranks > 1 && std::count_if(outcome.messages.begin(), outcome.messages.end(),
                                   [&](const Failure& failure) {
                                     return failure.message == of_first->message;
                                   }) == ranks;
    say(ranks == 1 || all_alike || concerns_all(of_first->code)
            ? fmt::format("error: {}", of_first->message)
            : fmt::format("error: rank {} (pid {}): {}", first.rank, first.pid, of_first->message));
    return;
  }
  if (outcome.stop_signal != 0) {
    say(fmt::format("stopped by signal {} (SIG{})", outcome.stop_signal,
                    sigabbrev_np(outcome.stop_signal)));
    return;
  }
  const bool perhaps_memory = first.exit.signal == SIGKILL;
  say(fmt::format("error: rank {} (pid {}) {}{}{}", first.rank, first.pid, describe(first.exit),
                  perhaps_memory ? ", by hand or by the kernel for want of memory" : "",
                  ranks > 1 ? "; the other ranks were stopped" : ""));
}

// What would fail in the same way again is not started again: a resumed run repeats its bits, so a
// loss that is no number comes back as well.
bool worth_restarting(const Outcome& outcome) {
  if (!outcome.first_failure || outcome.stop_signal != 0) return false;
  const int code = outcome.first_failure->exit.code;
  constexpr ErrorCode lasting[] = {ErrorCode::usage, ErrorCode::configuration, ErrorCode::data,
                                   ErrorCode::checkpoint, ErrorCode::numeric};
  return std::none_of(std::begin(lasting), std::end(lasting),
                      [code](ErrorCode kind) { return static_cast<int>(kind) == code; });
}

}  // namespace

int usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return ::sched_getaffinity(0, sizeof set, &set) == 0 ? std::max(1, CPU_COUNT(&set)) : 1;
}

int launch(const LaunchOptions& options) {
  TESSERA_REQUIRE(options.ranks > 0 && !options.command.empty(),
                  "launch() needs ranks and a program");
  LaunchOptions named = options;
  named.launch_id = checkpoint::new_run();
  if (named.run_id.empty()) {
    named.run_id =
        fmt::format("tessera-{}-{}", ::getpid(), Clock::now().time_since_epoch().count());
  }
  Guardian guardian(comm::standstill_timeout());
  SignalQueue signals;
  for (int restart = 0;; ++restart) {
    const Outcome outcome = Attempt(named, restart, signals, guardian).run();
    explain(outcome, named.ranks);
    if (restart == named.max_restarts || !worth_restarting(outcome)) return exit_code(outcome);
    say(fmt::format("restarting all {} ranks (restart {} of {})", named.ranks, restart + 1,
                    named.max_restarts));
  }
}

}  // namespace tessera::cli
