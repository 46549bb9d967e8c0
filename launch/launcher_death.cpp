// The guardian reads group numbers from a pipe. Only the launcher has the other end, so end of file
// means that the launcher died.
#include "launch/launcher_death.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <thread>

#include "base/error.h"

namespace tessera::launcher {
namespace {

// Runs in a forked child of a single-threaded launcher; uses no heap.
[[noreturn]] void guard(int pipe) {
  ::setpgid(0, 0);  // Ctrl-C at the terminal is the launcher's business
  ::prctl(PR_SET_NAME, "tessera-guard");
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1}) ::signal(signal, SIG_IGN);
  const int null = ::open("/dev/null", O_RDWR);
  // A program that reads the launcher's output must see its end when the ranks have ended.
  for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    ::dup2(null, descriptor);
  std::array<pid_t, 4096> groups{};
  std::size_t count = 0;
  pid_t message = 0;
  for (;;) {
    const ssize_t got = ::read(pipe, &message, sizeof message);
    if (got < 0 && errno == EINTR) continue;
    if (got != sizeof message) break;
    if (message > 0 && count < groups.size()) {
      groups[count++] = message;
    } else if (message < 0) {
      count = static_cast<std::size_t>(
          std::remove(groups.begin(), groups.begin() + count, -message) - groups.begin());
    }
  }
  for (std::size_t i = 0; i < count; ++i) ::kill(-groups[i], SIGKILL);
  ::_exit(0);
}

}  // namespace

LauncherDeathGuard::LauncherDeathGuard(std::chrono::milliseconds patience) : patience_(patience) {
  int ends[2];
  TESSERA_SYSTEM(::pipe2(ends, O_CLOEXEC));
  pid_ = ::fork();
  if (pid_ == 0) {
    ::close(ends[1]);
    guard(ends[0]);
  }
  const int error = errno;
  ::close(ends[0]);
  pipe_ = ends[1];
  ::fcntl(pipe_, F_SETFL, O_NONBLOCK);
  if (pid_ < 0) ::close(pipe_);
  TESSERA_CHECK(pid_ > 0, ErrorCode::runtime, "{}", describe_errno("fork", error));
}

// A stopped guardian does not see the end of the pipe. The launcher's own destructors have ended
// the ranks by now, so nothing is lost.
LauncherDeathGuard::~LauncherDeathGuard() {
  ::close(pipe_);
  constexpr std::chrono::milliseconds pause{5};
  for (auto waited = pause; ::waitpid(pid_, nullptr, WNOHANG) == 0; waited += pause) {
    if (waited >= patience_) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
      return;
    }
    std::this_thread::sleep_for(pause);
  }
}

// The launcher's end of the pipe does not block: a guardian that does not read must not hold it up.
void LauncherDeathGuard::tell(pid_t message) noexcept {
  // If the guardian itself was killed, the kernel's parent-death signal still covers the ranks.
  [[maybe_unused]] const ssize_t written = ::write(pipe_, &message, sizeof message);
}

}  // namespace tessera::launcher
