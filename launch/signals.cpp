// A signalfd.
#include "launch/signals.h"

#include <sys/signalfd.h>
#include <unistd.h>

#include "base/error.h"

namespace tessera::launcher {
namespace {

sigset_t block(sigset_t& before) {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGCHLD, SIGINT, SIGTERM, SIGQUIT, SIGUSR1}) sigaddset(&set, signal);
  // If nohup made the launcher ignore SIGHUP, it must not get it as a message either.
  struct sigaction hangup {};
  if (::sigaction(SIGHUP, nullptr, &hangup) != 0 || hangup.sa_handler != SIG_IGN) {
    sigaddset(&set, SIGHUP);
  }
  ::sigprocmask(SIG_BLOCK, &set, &before);
  return set;
}

}  // namespace

SignalQueue::SignalQueue() {
  const sigset_t blocked = block(before_);
  file_ =
      comm::FileDescriptor(TESSERA_SYSTEM(::signalfd(-1, &blocked, SFD_CLOEXEC | SFD_NONBLOCK)));
}

SignalQueue::~SignalQueue() {
  ::sigprocmask(SIG_SETMASK, &before_, nullptr);
}

std::optional<int> SignalQueue::wait(std::chrono::milliseconds time, std::vector<pollfd> others) {
  others.insert(others.begin(), {file_.get(), POLLIN, 0});
  if (::poll(others.data(), others.size(), static_cast<int>(time.count())) <= 0 ||
      others.front().revents == 0) {
    return std::nullopt;
  }
  signalfd_siginfo info{};
  if (::read(file_.get(), &info, sizeof info) != sizeof info) return std::nullopt;
  if (info.ssi_signo == SIGCHLD) return std::nullopt;
  return static_cast<int>(info.ssi_signo);
}

}  // namespace tessera::launcher
