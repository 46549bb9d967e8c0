// Runs build/tessera as a user would, and examines its output and its exit code.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/temporary_folder.h"

namespace tessera::testing {

inline std::string read_text(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  std::stringstream content;
  content << stream.rdbuf();
  return content.str();
}

inline std::string program_path() {
  const char* folder = std::getenv("TESSERA_BUILD_DIR");
  return std::string(folder != nullptr ? folder : "build") + "/tessera";
}

// A running `tessera`. Its output goes to files, so that the test need not read while it runs.
class Program {
 public:
  explicit Program(std::vector<std::string> arguments,
                   const std::map<std::string, std::string>& environment = {}) {
    arguments.insert(arguments.begin(), program_path());
    pid_ = ::fork();
    if (pid_ == 0) {
      for (const auto& [name, value] : environment) ::setenv(name.c_str(), value.c_str(), 1);
      redirect(folder_ / "out", STDOUT_FILENO);
      redirect(folder_ / "err", STDERR_FILENO);
      std::vector<char*> pointers;
      for (std::string& argument : arguments) pointers.push_back(argument.data());
      pointers.push_back(nullptr);
      ::execv(pointers[0], pointers.data());
      ::_exit(127);
    }
  }
  ~Program() {
    if (!code_) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  [[nodiscard]] pid_t pid() const { return pid_; }
  void signal(int number) const { ::kill(pid_, number); }
  [[nodiscard]] std::string out() const { return read_text(folder_ / "out"); }
  [[nodiscard]] std::string err() const { return read_text(folder_ / "err"); }

  // The exit code, or 128 + signal; -1 when the limit is over.
  int wait(std::chrono::milliseconds limit = std::chrono::seconds(30)) {
    const auto deadline = std::chrono::steady_clock::now() + limit;
    while (!code_ && std::chrono::steady_clock::now() < deadline) {
      int status = 0;
      if (::waitpid(pid_, &status, WNOHANG) == pid_) {
        code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
      } else {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
    }
    return code_.value_or(-1);
  }

 private:
  static void redirect(const std::filesystem::path& path, int descriptor) {
    const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    ::dup2(file, descriptor);
    ::close(file);
  }

  TemporaryFolder folder_;
  pid_t pid_ = -1;
  std::optional<int> code_;
};

// Waits until `condition` holds; false after a minute.
template <class Condition>
bool eventually(Condition condition) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (std::chrono::steady_clock::now() < deadline) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return condition();
}

// Running processes whose command line contains `text`.
inline int processes_with(const std::string& text) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    count += read_text(entry.path() / "cmdline").find(text) != std::string::npos ? 1 : 0;
  }
  return count;
}

}  // namespace tessera::testing
