// Forks, waits for and kills processes, for tests.
#include "tests/support/processes.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <thread>

#include "base/error.h"

namespace tessera::testing {
namespace {

using Clock = std::chrono::steady_clock;

// Runs the body in the child, and ends it without the parent's destructors and exit handlers.
[[noreturn]] void run_child(const Processes::Body& body, int index, std::atomic<int>& progress,
                            int message_pipe) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  int code = 0;
  std::string message;
  try {
    body(index, progress);
    if (::testing::Test::HasFailure()) code = Outcome::failed_expectation;
  } catch (const Error& error) {
    code = static_cast<int>(error.code());
    message = error.what();
  } catch (const std::exception& error) {
    code = Outcome::other_exception;
    message = error.what();
  }
  std::fflush(nullptr);
  if (write(message_pipe, message.data(), message.size()) < 0) code = Outcome::other_exception;
  _exit(code);
}

std::string read_all(int descriptor) {
  std::string text(65536, '\0');
  const ssize_t bytes = read(descriptor, text.data(), text.size());
  text.resize(bytes > 0 ? static_cast<std::size_t>(bytes) : 0);
  return text;
}

}  // namespace

Processes::Processes(int count, const Body& body) {
  const auto bytes = sizeof(std::atomic<int>) * static_cast<std::size_t>(count);
  void* shared = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  TESSERA_CHECK(shared != MAP_FAILED, ErrorCode::runtime, "{}", describe_errno("mmap", errno));
  progress_ = static_cast<std::atomic<int>*>(shared);
  std::fflush(nullptr);  // otherwise each child would print the buffered output again
  for (int index = 0; index < count; ++index) {
    auto* progress = new (&progress_[index]) std::atomic<int>(0);
    int ends[2];
    TESSERA_SYSTEM(pipe(ends));
    const pid_t pid = TESSERA_SYSTEM(fork());
    if (pid == 0) {
      close(ends[0]);
      for (const Child& sibling : children_) close(sibling.message_pipe);
      run_child(body, index, *progress, ends[1]);
    }
    close(ends[1]);
    children_.push_back({.pid = pid, .message_pipe = ends[0]});
  }
}

Processes::~Processes() {
  wait(std::chrono::milliseconds(0));
  for (const Child& child : children_) close(child.message_pipe);
  munmap(progress_, sizeof(std::atomic<int>) * children_.size());
}

void Processes::signal(int index, int number) const {
  TESSERA_SYSTEM(kill(pid(index), number));
}

bool Processes::wait_for_progress(int index, int value) const {
  const auto deadline = Clock::now() + std::chrono::minutes(1);
  while (progress_[index].load() < value) {
    if (Clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

void Processes::look_at(Child& child, bool kill_it) {
  if (!child.running) return;
  if (kill_it) kill(child.pid, SIGKILL);
  int status = 0;
  if (waitpid(child.pid, &status, kill_it ? 0 : WNOHANG) != child.pid) return;
  child.running = false;
  child.outcome.ended = Clock::now();
  child.outcome.timed_out = kill_it;
  if (WIFEXITED(status)) child.outcome.exit_code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) child.outcome.signal = WTERMSIG(status);
  child.outcome.message = read_all(child.message_pipe);
}

bool Processes::wait_for_end(int index) {
  Child& child = children_[static_cast<std::size_t>(index)];
  const auto deadline = Clock::now() + std::chrono::minutes(1);
  for (;;) {
    look_at(child, false);
    if (!child.running || Clock::now() > deadline) return !child.running;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

std::vector<Outcome> Processes::wait(std::chrono::milliseconds limit) {
  const auto deadline = Clock::now() + limit;
  const auto all_ended = [&] {
    return std::none_of(children_.begin(), children_.end(),
                        [](const Child& child) { return child.running; });
  };
  while (!all_ended()) {
    const bool late = Clock::now() > deadline;
    for (Child& child : children_) look_at(child, late);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  std::vector<Outcome> outcomes;
  outcomes.reserve(children_.size());
  for (const Child& child : children_) outcomes.push_back(child.outcome);
  return outcomes;
}

std::vector<std::string> files_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    std::error_code gone;
    const bool is_listing =
        std::filesystem::read_symlink(entry.path(), gone).string().find("/fd") != std::string::npos;
    if (!is_listing) names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace tessera::testing
