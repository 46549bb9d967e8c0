// Runs build/tessera on a terminal.
#pragma once

#include <pty.h>

#include "tests/cli/program_testing.h"

namespace tessera::testing {

struct Session {
  int code = -1;
  std::string screen;
};

// The program on a terminal of its own, with these lines typed.
inline Session on_terminal(const std::vector<std::string>& arguments,
                           const std::string& typed = "") {
  int terminal = -1;
  const pid_t pid = ::forkpty(&terminal, nullptr, nullptr, nullptr);
  if (pid == 0) {
    const std::string program = program_path();
    std::vector<char*> words = {const_cast<char*>(program.c_str())};
    for (const std::string& argument : arguments)
      words.push_back(const_cast<char*>(argument.c_str()));
    words.push_back(nullptr);
    ::execv(words[0], words.data());
    ::_exit(127);
  }
  Session session;
  EXPECT_EQ(::write(terminal, typed.data(), typed.size()), static_cast<ssize_t>(typed.size()));
  char block[4096];
  for (ssize_t got = 0; (got = ::read(terminal, block, sizeof block)) > 0;) {
    session.screen.append(block, static_cast<std::size_t>(got));
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  ::close(terminal);
  session.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128;
  return session;
}

}  // namespace tessera::testing
