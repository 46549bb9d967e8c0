// fork, exec and the means to leave no process behind.
#include "launch/rank_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "launch/listening_processes.h"

extern char** environ;  // no POSIX header declares it

namespace tessera::launcher {
namespace {

std::vector<std::string> merged_environment(const std::map<std::string, std::string>& changes) {
  std::vector<std::string> entries;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text(*entry);
    if (!changes.contains(text.substr(0, text.find('=')))) entries.push_back(text);
  }
  for (const auto& [name, value] : changes) entries.push_back(fmt::format("{}={}", name, value));
  return entries;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (std::string& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

// After fork: only async-signal-safe calls. Never returns.
[[noreturn]] void become_program(const RankProcess::Start& start, char** arguments,
                                 char** environment, pid_t parent, int error_pipe,
                                 LauncherDeathGuard& guard) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);  // the launcher died before prctl
  guard.watch(
      ::getpid());  // before it can start a process that the launcher's death would leave behind
  if (!start.keeps_stdin) {
    const int null = ::open("/dev/null", O_RDONLY);
    if (null >= 0) ::dup2(null, STDIN_FILENO);
  }
  if (start.output[0] >= 0) ::dup2(start.output[0], STDOUT_FILENO);
  if (start.output[1] >= 0) ::dup2(start.output[1], STDERR_FILENO);
  for (const int kept : start.keep_descriptors) ::fcntl(kept, F_SETFD, 0);
  std::signal(SIGPIPE, SIG_DFL);
  std::signal(SIGXFSZ, SIG_DFL);
  ::sigprocmask(SIG_SETMASK, &start.signal_mask, nullptr);
  ::execvpe(arguments[0], arguments, environment);
  const int error = errno;
  [[maybe_unused]] const ssize_t written = ::write(error_pipe, &error, sizeof error);
  ::_exit(127);
}

}  // namespace

std::string describe(const RankExit& exit) {
  if (exit.signal == 0) return fmt::format("exited with code {}", exit.code);
  const char* name = sigabbrev_np(exit.signal);
  return fmt::format("was killed by signal {} (SIG{})", exit.signal, name != nullptr ? name : "?");
}

RankProcess::RankProcess(int rank, const Start& start, LauncherDeathGuard& guard)
    : rank_(rank), guard_(&guard) {
  std::vector<std::string> command = start.command;
  std::vector<std::string> entries = merged_environment(start.environment);
  const std::vector<char*> arguments = pointers(command);
  const std::vector<char*> environment = pointers(entries);
  int ends[2];
  TESSERA_SYSTEM(::pipe2(ends, O_CLOEXEC));
  const pid_t parent = ::getpid();
  pid_ = ::fork();
  if (pid_ == 0) {
    become_program(start, const_cast<char**>(arguments.data()),
                   const_cast<char**>(environment.data()), parent, ends[1], guard);
  }
  const int fork_error = errno;
  ::close(ends[1]);
  if (pid_ > 0) ::setpgid(pid_, pid_);  // here as well: either process may run first
  int exec_error = 0;
  ssize_t got = 0;
  if (pid_ > 0) {
    do {
      got = ::read(ends[0], &exec_error, sizeof exec_error);  // nothing if exec succeeds
    } while (got < 0 && errno == EINTR);
  }
  ::close(ends[0]);
  TESSERA_CHECK(pid_ > 0, ErrorCode::runtime, "rank {} cannot be started: {}", rank,
                describe_errno("fork", fork_error));
  if (got == sizeof exec_error) {
    reap();
    pid_ = -1;
    fail(ErrorCode::usage, "cannot run {}: {}", start.command.front(),
         describe_errno("exec", exec_error));
  }
}

RankProcess::RankProcess(RankProcess&& other) noexcept
    : rank_(other.rank_),
      guard_(other.guard_),
      pid_(std::exchange(other.pid_, -1)),
      exit_(other.exit_) {}

RankProcess::~RankProcess() {
  if (!running()) return;
  signal_group(SIGKILL);
  reap();
}

// The guardian forgets the group first: once it is reaped, another process may get its number.
void RankProcess::reap() noexcept {
  guard_->forget(pid_);
  ::waitpid(pid_, nullptr, 0);
}

void RankProcess::signal_group(int signal) const noexcept {
  if (running()) ::kill(-pid_, signal);
}

void RankProcess::tell_group(int signal) const {
  if (!running()) return;
  for (const pid_t process : processes_that_bear(signal, pid_)) ::kill(process, signal);
}

std::optional<RankExit> RankProcess::poll() {
  if (!running()) return std::nullopt;
  siginfo_t info{};
  if (::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
      info.si_pid == 0) {
    return std::nullopt;
  }
  // While the ended rank is not reaped, no other group can get its number.
  ::kill(-pid_, SIGKILL);
  reap();
  exit_ = info.si_code == CLD_EXITED ? RankExit{0, info.si_status} : RankExit{info.si_status, 0};
  return exit_;
}

}  // namespace tessera::launcher
