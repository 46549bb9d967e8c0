// One child with its own process group, and a loop over its exit, signals and a deadline.
#include "bench/harness/process.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/write_failure.h"
#include "comm/timeout.h"
#include "launch/rank_process.h"

namespace tessera::bench {
namespace {

using BenchClock = std::chrono::steady_clock;

class OutputFile {
 public:
  explicit OutputFile(const std::filesystem::path& path)
      : number_(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600)) {
    TESSERA_CHECK(number_ >= 0, full_disk_or_runtime(errno), "{} cannot be written: {}",
                  path.string(), describe_errno("open", errno));
  }
  ~OutputFile() { ::close(number_); }
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  [[nodiscard]] int get() const { return number_; }

 private:
  int number_;
};

// The error with which the program ended, else its last line.
std::string last_words(const std::filesystem::path& file) {
  constexpr std::string_view mark = "error: ";
  std::ifstream stream(file, std::ios::binary);
  std::string error, last;
  for (std::string line; std::getline(stream, line);) {
    while (!line.empty() && (line.back() == ' ' || line.back() == '\r')) line.pop_back();
    if (line.empty()) continue;
    last = line;
    const std::size_t at = line.find(mark);
    if (line.starts_with("tessera: ") && at != std::string::npos)
      error = line.substr(at + mark.size());
  }
  return error.empty() ? last : error;
}

pid_t parent_of(pid_t process) {
  std::ifstream stream(fmt::format("/proc/{}/stat", process));
  std::string text;
  std::getline(stream, text);
  const std::size_t name_end = text.rfind(") ");  // the name may contain any character
  int parent = 0;
  if (name_end != std::string::npos && text.size() > name_end + 4) {
    std::from_chars(text.data() + name_end + 4, text.data() + text.size(), parent);
  }
  return parent;
}

std::set<pid_t> children() {
  std::set<pid_t> processes;
  std::error_code error;  // a process that ends meanwhile is not an error
  for (std::filesystem::directory_iterator entry("/proc", error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    pid_t process = 0;
    const auto [rest, wrong] = std::from_chars(name.data(), name.data() + name.size(), process);
    if (wrong != std::errc{} || rest != name.data() + name.size()) continue;
    if (parent_of(process) == ::getpid()) processes.insert(process);
  }
  return processes;
}

}  // namespace

BenchProcesses::BenchProcesses(std::filesystem::path folder) : folder_(std::move(folder)) {
  guard_.emplace(comm::standstill_timeout());
  others_ = children();
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);  // processes that a program leaves behind become our children
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGCHLD, SIGINT, SIGTERM, SIGQUIT}) sigaddset(&set, signal);
  struct sigaction hangup {};  // if nohup ignores SIGHUP, it stays ignored
  if (::sigaction(SIGHUP, nullptr, &hangup) != 0 || hangup.sa_handler != SIG_IGN) {
    sigaddset(&set, SIGHUP);
  }
  ::sigprocmask(SIG_BLOCK, &set, &before_);
  signals_ = ::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  const int error = errno;
  if (signals_ < 0) ::sigprocmask(SIG_SETMASK, &before_, nullptr);
  TESSERA_CHECK(signals_ >= 0, ErrorCode::runtime, "{}", describe_errno("signalfd", error));
}

BenchProcesses::~BenchProcesses() {
  ::close(signals_);
  ::prctl(PR_SET_CHILD_SUBREAPER, 0);
  ::sigprocmask(SIG_SETMASK, &before_, nullptr);
}

// Waits until something happens, at most for `time`.
void BenchProcesses::wait(std::chrono::milliseconds time) {
  pollfd entry{signals_, POLLIN, 0};
  if (::poll(&entry, 1, static_cast<int>(time.count())) <= 0) return;
  signalfd_siginfo info{};
  while (::read(signals_, &info, sizeof info) == sizeof info) {
    if (info.ssi_signo != SIGCHLD && signal_ == 0) signal_ = static_cast<int>(info.ssi_signo);
  }
}

void BenchProcesses::check_stop() {
  wait(std::chrono::milliseconds(0));
  if (signal_ != 0) throw Stopped{signal_};
}

// The launcher passes the first SIGTERM on to its ranks and kills them at a second one half a
// second later. If the launcher was stopped, its guardian kills them when it dies.
void BenchProcesses::end(launcher::RankProcess& process, int gentle) {
  using std::chrono::milliseconds;
  const std::pair<int, milliseconds> steps[] = {
      {gentle, milliseconds(1000)}, {SIGTERM, milliseconds(3000)}, {SIGKILL, milliseconds(5000)}};
  for (const auto& [signal, patience] : steps) {
    process.signal_group(signal);
    process.signal_group(SIGCONT);
    const auto until = BenchClock::now() + patience;
    while (BenchClock::now() < until) {
      if (process.poll()) return;
      wait(milliseconds(20));
    }
  }
}

// A launcher's guardian needs time to do its work; a peer's ranks may have their own sessions.
void BenchProcesses::end_orphans() {
  constexpr auto patience = std::chrono::milliseconds(200);
  const auto until = BenchClock::now() + patience;
  for (;;) {
    bool any = false;
    for (const pid_t orphan : children()) {
      if (others_.contains(orphan)) continue;
      any = true;
      if (BenchClock::now() >= until) ::kill(orphan, SIGKILL);
      ::waitpid(orphan, nullptr, WNOHANG);
    }
    if (!any) return;
    wait(std::chrono::milliseconds(5));
  }
}

ProgramEnd BenchProcesses::run(const std::vector<std::string>& command,
                               const std::map<std::string, std::string>& environment,
                               double seconds, int gentle,
                               const std::vector<std::vector<std::string>>& beside) {
  check_stop();
  const OutputFile out(folder_ / "out"), err(folder_ / "err"), unread("/dev/null");
  const OutputFile beside_err(folder_ / "beside-err");
  launcher::RankProcess::Start start;
  start.environment = environment;
  start.signal_mask = before_;
  start.output = {unread.get(), beside_err.get()};
  std::vector<launcher::RankProcess> others;
  for (const std::vector<std::string>& other : beside) {
    start.command = other;
    others.emplace_back(0, start, *guard_);
  }
  start.command = command;
  start.output = {out.get(), err.get()};
  const auto begin = BenchClock::now();
  const auto passed = [&] {
    return std::chrono::duration<double>(BenchClock::now() - begin).count();
  };
  launcher::RankProcess process(0, start, *guard_);
  ProgramEnd ended;
  std::optional<launcher::RankExit> early;  // of a program in `beside`
  const auto code_of = [](const launcher::RankExit& exit) {
    return exit.signal != 0 ? 128 + exit.signal : exit.code;
  };
  for (;;) {
    for (launcher::RankProcess& other : others) {
      if (!early) early = other.poll();
    }
    if (const auto exit = process.poll()) {
      ended.code = code_of(*exit);
      break;
    }
    if (early) {
      end(process, gentle);
      break;
    }
    if (signal_ != 0 || passed() >= seconds) {
      ended.timed_out = signal_ == 0;
      end(process, gentle);
      break;
    }
    const double left = std::clamp(seconds - passed(), 0.0, 0.5);
    wait(std::chrono::milliseconds(static_cast<int>(left * 1000) + 1));
  }
  ended.seconds = passed();
  others.clear();  // kills them; the guardians of their launchers kill the ranks
  end_orphans();
  if (signal_ != 0) throw Stopped{signal_};
  ended.error = last_words(folder_ / "err");
  if (early && !ended.timed_out && ended.code == 0) {
    ended.code = std::max(1, code_of(*early));
    const std::string words = last_words(folder_ / "beside-err");
    ended.error = fmt::format("a copy beside it {} before it ended{}{}", launcher::describe(*early),
                              words.empty() ? "" : ": ", words);
  }
  return ended;
}

}  // namespace tessera::bench
