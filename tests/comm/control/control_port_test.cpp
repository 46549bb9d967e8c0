// Rank 0's port and address: taken ports, the launcher's listener, and the file of an address.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "comm/control/bootstrap.h"
#include "comm/control/door_testing.h"
#include "comm/watch/port_holder.h"
#include "support/expect_parts.h"
#include "support/free_port.h"

namespace tessera::comm::control {
namespace {

using tessera::testing::expect_parts;
using namespace doors;

World port_world(int rank, int port) {
  return world_of_two(rank, port, "127.0.0.1", "ports");
}

// Both ranks' failures, "" for none.
std::vector<std::string> failures_at(int port) {
  return failures_of_two([port](int rank) {
    const ControlPlane plane =
        connect_control_plane(port_world(rank, port), {20s, 30s, 5s}, the_key());
    HubGroup group(plane.control, {0, 1}, 1, "world");
    EXPECT_EQ(group.exchange(Call(Op::exchange, {}), "x").size(), 2u);
  });
}

// A child of this process that listens until the end of the test.
class ListeningChild {
 public:
  ListeningChild() {
    FileDescriptor listener = *listen_on(0, true);
    port_ = port_of(listener.get());
    pid_ = ::fork();
    if (pid_ == 0) {
      ::alarm(60);
      for (;;) ::pause();
    }
  }
  ~ListeningChild() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  ListeningChild(const ListeningChild&) = delete;
  ListeningChild& operator=(const ListeningChild&) = delete;
  [[nodiscard]] int port() const { return port_; }
  [[nodiscard]] pid_t pid() const { return pid_; }

 private:
  int port_ = 0;
  pid_t pid_ = -1;
};

TEST(ControlPort, AnotherProgramsPortIsAnErrorThatNamesIt) {
  const ListeningChild other;
  const std::string pid = "pid " + std::to_string(other.pid()) + " (";
  EXPECT_FALSE(holder_of_port(other.port()).is_ours);
  expect_parts(holder_of_port(other.port()).name, {pid});
  try {
    (void)connect_control_plane(port_world(0, other.port()), {1s, 30s, 5s}, the_key());
    FAIL() << "the port is taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::configuration);
    expect_parts(error.what(),
                 {"cannot listen at MASTER_PORT=" + std::to_string(other.port()) + ": " + pid,
                  "set MASTER_PORT to another on all hosts"});
  }
}

TEST(ControlPort, AnAncestorsPortIsSeenAsOurs) {
  const FileDescriptor listener = *listen_on(0, true);
  const int port = port_of(listener.get());
  EXPECT_TRUE(holder_of_port(port).is_ours);
  // In a child, which does not have the socket itself.
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(listener.get());
    const PortHolder holder = holder_of_port(port);
    const std::string parent = "pid " + std::to_string(::getppid()) + " (";
    ::_exit(holder.is_ours && holder.name.starts_with(parent) ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

// Linux gives a call any free port as its source, and after some thousand calls the one that is
// called. The even ports are those that it gives to calls first.
TEST(ControlPort, ACallDoesNotReachItself) {
  int port = 0;
  do {
    port = port_of(listen_on(0, true)->get()) & ~1;
  } while (!listen_on(port, true));
  constexpr int calls = 40'000;
  for (int call = 0; call < calls; ++call) {
    ASSERT_FALSE(connect_to("127.0.0.1", port)) << "call " << call << " to port " << port;
  }
}

// As torchrun's agent does, with a stranger at the port after it.
TEST(ControlPort, RanksMoveOnFromTheirLaunchersPort) {
  const int port = testing::free_port();
  const auto launcher = listen_on(port, true), stranger = listen_on(port + 1, true);
  ASSERT_TRUE(launcher && stranger);
  for (const std::string& failure : failures_at(port)) EXPECT_EQ(failure, "");
}

// The ranks' environment, as from a launcher.
class LauncherSays {
 public:
  LauncherSays(const std::string& port, const std::string& listener) {
    setenv(port_variable, port.c_str(), 1);
    setenv(listener_variable, listener.c_str(), 1);
  }
  ~LauncherSays() {
    unsetenv(port_variable);
    unsetenv(listener_variable);
  }
  LauncherSays(const LauncherSays&) = delete;
  LauncherSays& operator=(const LauncherSays&) = delete;
};

// Twice, as after a restart; callers of the first start may still wait in its queue. MASTER_PORT is
// another program's.
TEST(ControlPort, TheLaunchersListenerIsTaken) {
  const ListeningChild program;
  const FileDescriptor listener = *listen_on(0);
  const int port = port_of(listener.get());
  const LauncherSays says(std::to_string(port), std::to_string(listener.get()));
  for (int start = 0; start < 2; ++start) {
    (void)connection_to(port);  // and is gone
    ::testing::internal::CaptureStderr();
    for (const std::string& failure : failures_at(program.port())) EXPECT_EQ(failure, "");
    EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
    EXPECT_EQ(port_of(listener.get()), port);  // still open
  }
  EXPECT_NE(::fcntl(listener.get(), F_GETFD) & FD_CLOEXEC, 0);
}

// Rank 0 does not follow a launcher to a port of another process.
TEST(ControlPort, ALaunchersPortThatAnotherProgramHasIsAnError) {
  const ListeningChild other;
  const LauncherSays says(std::to_string(other.port()), "");
  try {
    (void)connect_control_plane(port_world(0, 29500), {1s, 30s, 5s}, the_key());
    FAIL() << "the port is taken";
  } catch (const Error& error) {
    expect_parts(error.what(), {"cannot listen at TESSERA_CONTROL_PORT=", "pid "});
  }
}

TEST(ControlPort, ALaunchersPortThatIsNoneIsAnError) {
  for (const std::string value : {"none", "0", "65536", "29500x"}) {
    const LauncherSays says(value, "");
    try {
      (void)connect_control_plane(port_world(0, 29500), {1s, 30s, 5s}, the_key());
      FAIL() << value;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::configuration);
      expect_parts(error.what(), {"TESSERA_CONTROL_PORT='" + value + "' is not a port"});
    }
  }
}

TEST(ControlPort, ADescriptorThatIsNotTheListenerIsNotTaken) {
  const int port = testing::free_port();
  const FileDescriptor file(::open("/dev/null", O_RDONLY));
  const FileDescriptor another_port = *listen_on(0);
  for (const std::string& value :
       {std::string("none"), std::string("4711"), std::to_string(file.get()),
        std::to_string(another_port.get())}) {
    const LauncherSays says(std::to_string(port), value);
    for (const std::string& failure : failures_at(port)) EXPECT_EQ(failure, "") << value;
  }
}

// The file of TESSERA_BOOTSTRAP in a folder of its own.
class AddressFile {
 public:
  AddressFile()
      : folder_(std::filesystem::temp_directory_path() /
                ("tessera-address-" + std::to_string(getpid()))) {
    std::filesystem::create_directory(folder_);
    setenv("TESSERA_BOOTSTRAP", ("file:" + path().string()).c_str(), 1);
  }
  ~AddressFile() {
    unsetenv("TESSERA_BOOTSTRAP");
    std::filesystem::remove_all(folder_);
  }
  AddressFile(const AddressFile&) = delete;
  AddressFile& operator=(const AddressFile&) = delete;
  [[nodiscard]] std::filesystem::path path() const { return folder_ / "address"; }
  [[nodiscard]] const std::filesystem::path& folder() const { return folder_; }

 private:
  std::filesystem::path folder_;
};

TEST(ControlPort, AnAddressIsWrittenThroughNoLink) {
  const AddressFile file;
  const std::filesystem::path precious = file.folder() / "precious";
  std::ofstream(precious) << "precious\n";
  // Where earlier versions wrote, and the path itself.
  std::filesystem::create_symlink(precious, file.path().string() + ".partial");
  std::filesystem::create_symlink(precious, file.path());
  try {
    (void)connect_control_plane(port_world(0, 29500), {300ms, 30s, 5s}, the_key());
    FAIL() << "rank 1 does not come";
  } catch (const Error& error) {
    expect_parts(error.what(), {"rank(s) 1 of 2 did not come"});
  }
  std::ifstream stream(precious);
  std::string line;
  std::getline(stream, line);
  EXPECT_EQ(line, "precious");
  EXPECT_FALSE(std::filesystem::is_symlink(file.path()));
}

std::string failure_of_rank_1() {
  try {
    (void)connect_control_plane(port_world(1, 29500), {300ms, 30s, 5s}, the_key());
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(ControlPort, AnAddressIsReadFromAFileOfThisUserOnly) {
  const AddressFile file;
  const std::string refused = "is not a regular file of this user or of root";
  std::ofstream(file.folder() / "elsewhere") << "127.0.0.1 1\n";
  std::filesystem::create_symlink(file.folder() / "elsewhere", file.path());
  expect_parts(failure_of_rank_1(), {file.path().string(), refused});
  std::filesystem::remove(file.path());
  ASSERT_EQ(::mkfifo(file.path().c_str(), 0600), 0);
  expect_parts(failure_of_rank_1(), {refused});
  std::filesystem::remove(file.path());
  std::ofstream(file.path()) << "127.0.0.1 1\n";
  expect_parts(failure_of_rank_1(), {"rank 1 did not find rank 0 by the file"});
  if (::geteuid() != 0) return;
  constexpr uid_t stranger = 65534;
  ASSERT_EQ(::chown(file.path().c_str(), stranger, stranger), 0);
  expect_parts(failure_of_rank_1(), {refused});
}

}  // namespace
}  // namespace tessera::comm::control
