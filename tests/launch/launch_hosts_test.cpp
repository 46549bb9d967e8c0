// `tessera launch` on several hosts, which are all this machine: the ranks' environment, and how
// launchers end together. scripts/several-hosts does the same between network namespaces.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <set>
#include <thread>

#include "support/free_port.h"
#include "tests/cli/program_testing.h"

namespace tessera::launcher {
namespace {

using std::chrono::seconds;
using testing::eventually;
using testing::processes_with;
using testing::Program;
using testing::TemporaryFolder;
using Words = std::vector<std::string>;

constexpr const char* the_key = "the-key-of-this-test";

bool port_is_free(int port) {
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int yes = 1;  // connections that have ended do not count
  ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  const bool free = ::bind(socket, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  ::close(socket);
  return free;
}

// The launchers of a job. Each host has its own arguments before the program.
class Hosts {
 public:
  Hosts() {
    do {
      port_ = testing::free_port();
    } while (!port_is_free(port_ + 1));
  }

  void start(int node, Words words, const std::string& script, const std::string& key = the_key,
             int nodes = 2) {
    Words all = {"launch",      "--nnodes",           std::to_string(nodes),
                 "--node-rank", std::to_string(node), "--master-addr",
                 "127.0.0.1",   "--master-port",      std::to_string(port_)};
    start_with(std::move(all), std::move(words), script, key);
  }
  void start_with(Words all, Words words, const std::string& script,
                  const std::string& key = the_key) {
    all.insert(all.end(), words.begin(), words.end());
    all.insert(all.end(), {"--", "sh", "-c", script});
    launchers_.push_back(std::make_unique<Program>(
        all, std::map<std::string, std::string>{{"TESSERA_JOB_KEY", key}}));
  }
  Program& operator[](std::size_t index) { return *launchers_[index]; }
  [[nodiscard]] int port() const { return port_; }
  // True when all ranks of both hosts have printed these words.
  [[nodiscard]] bool have_begun(const std::string& words) {
    return eventually(
        [&] { return launchers_[0]->out() == words && launchers_[1]->out() == words; });
  }

  void expect_codes(const std::vector<int>& codes, std::chrono::milliseconds limit = seconds(60)) {
    for (std::size_t i = 0; i < codes.size(); ++i) {
      EXPECT_EQ(launchers_[i]->wait(limit), codes[i]) << i << ": " << launchers_[i]->err();
    }
  }
  void expect_said(const std::string& part) {
    for (const auto& launcher : launchers_) {
      EXPECT_NE(launcher->err().find(part), std::string::npos) << part << ": " << launcher->err();
    }
  }

 private:
  int port_ = 0;
  std::vector<std::unique_ptr<Program>> launchers_;
};

std::vector<std::string> host_lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  std::sort(lines.begin(), lines.end());
  return lines;
}

// A sleep time that no other process uses.
std::string host_sleep() {
  static int count = 0;
  return "sleep 8888." + std::to_string(::getpid()) + std::to_string(++count);
}

TEST(LaunchHosts, RanksGetTorchrunsEnvironment) {
  Hosts hosts;
  const std::string script =
      "echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $GROUP_RANK $GROUP_WORLD_SIZE "
      "$MASTER_ADDR $MASTER_PORT $TORCHELASTIC_RESTART_COUNT $TESSERA_JOB_KEY; "
      "echo $TORCHELASTIC_RUN_ID $TESSERA_LAUNCH_ID >&2";
  hosts.start(1, {"--nproc-per-node", "1"}, script);
  hosts.start(0, {"--nproc-per-node", "2"}, script);
  hosts.expect_codes({0, 0});
  const std::string rest = " 127.0.0.1 " + std::to_string(hosts.port()) + " 0 " + the_key;
  EXPECT_EQ(host_lines(hosts[0].out()), Words{"2 0 3 1 1 2" + rest});
  EXPECT_EQ(host_lines(hosts[1].out()), (Words{"0 0 3 2 0 2" + rest, "1 1 3 2 0 2" + rest}));
  // One run id for all ranks, which node 0 has generated.
  std::set<std::string> names;
  for (const std::size_t host : {0u, 1u}) {
    for (const std::string& line : host_lines(hosts[host].err())) names.insert(line);
  }
  EXPECT_EQ(names.size(), 1u);
}

// Node 0's launcher holds the control plane's port from before the launchers meet, over restarts,
// and passes it to rank 0 alone.
TEST(LaunchHosts, RankZeroGetsTheListenerOfTheControlPlane) {
  Hosts hosts;
  const TemporaryFolder folder;
  const std::string mark = (folder / "failed").string();
  const std::string script =
      "n=$TESSERA_CONTROL_LISTENER; test -n \"$n\" && s=$(readlink /proc/self/fd/$n); "
      "echo $RANK $TESSERA_CONTROL_PORT ${s%:*}; test -e " +
      mark + " && exit 0; test $RANK = 0 && { touch " + mark + "; exit 9; }; sleep 100";
  hosts.start(0, {"--nproc-per-node", "2", "--max-restarts", "1"}, script);
  const int port = hosts.port() + 1;
  ASSERT_TRUE(eventually([&] { return !port_is_free(port); }));
  hosts.start(1, {}, script);
  hosts.expect_codes({0, 0});
  const std::string out = hosts[0].out();
  const std::string passed = " " + std::to_string(port);
  const std::string to_rank_0 = "0" + passed + " socket\n";
  EXPECT_NE(out.find(to_rank_0), std::string::npos) << out;
  EXPECT_NE(out.find(to_rank_0), out.rfind(to_rank_0)) << out;  // both times
  EXPECT_NE(out.find("1" + passed + "\n"), std::string::npos) << out;
  EXPECT_NE(hosts[1].out().find("2" + passed + "\n"), std::string::npos) << hosts[1].out();
  EXPECT_TRUE(port_is_free(port));
}

// As the store of PyTorch's init_process_group() does, on all addresses and on IPv6 first.
TEST(LaunchHosts, AProgramMayListenAtMasterPortItself) {
  Hosts hosts;
  const TemporaryFolder folder;
  const std::string program = (folder / "store.py").string();
  std::ofstream(program) << R"(import os, socket, time
port = int(os.environ["MASTER_PORT"])
if os.environ["RANK"] == "0":
    listener = socket.create_server(("", port))
    for _ in range(2):
        listener.accept()[0].sendall(b"store")
    line = b"served\n"
else:
    for _ in range(800):
        try:
            line = socket.create_connection((os.environ["MASTER_ADDR"], port)).recv(5) + b"\n"
            break
        except ConnectionRefusedError:
            time.sleep(0.05)
os.write(1, line)  # a line at once: ranks of a host share its output
)";
  hosts.start(0, {"--nproc-per-node", "2"}, "exec python3 " + program);
  hosts.start(1, {}, "exec python3 " + program);
  hosts.expect_codes({0, 0});
  EXPECT_EQ(host_lines(hosts[0].out()), (Words{"served", "store"}));
  EXPECT_EQ(hosts[1].out(), "store\n");
}

TEST(LaunchHosts, APortThatAnotherProgramHasIsRefusedByName) {
  for (const int after : {0, 1}) {
    Hosts hosts;
    const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<std::uint16_t>(hosts.port() + after));
    ASSERT_EQ(::bind(socket, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    ASSERT_EQ(::listen(socket, 1), 0);
    hosts.start(0, {}, "true");
    hosts.expect_codes({3});
    hosts.expect_said("--master-port " + std::to_string(hosts.port()) + ": " +
                      (after == 0 ? "" : "the control plane uses the port after it, and ") +
                      "pid " + std::to_string(::getpid()) + " (");
    ::close(socket);
  }
}

TEST(LaunchHosts, AcceleratesOptionsCountTheRanksOfAllHosts) {
  Hosts hosts;
  const std::string port = std::to_string(hosts.port());
  const TemporaryFolder folder;
  const std::string file = (folder / "a.yaml").string();
  std::ofstream(file) << "distributed_type: FSDP\nnum_processes: 4\nnum_machines: 2\n"
                         "machine_rank: 0\nmain_process_ip: 127.0.0.1\nmain_process_port: "
                      << port << "\n";
  const std::string script = "echo $RANK of $WORLD_SIZE";
  hosts.start_with({"launch", "--config_file", file}, {}, script);
  hosts.start_with({"launch", "--num_machines=2", "--machine_rank", "1", "--num_processes", "4",
                    "--main_process_ip", "127.0.0.1", "--main_process_port", port},
                   {}, script);
  hosts.expect_codes({0, 0});
  EXPECT_EQ(host_lines(hosts[0].out()), (Words{"0 of 4", "1 of 4"}));
  EXPECT_EQ(host_lines(hosts[1].out()), (Words{"2 of 4", "3 of 4"}));
}

TEST(LaunchHosts, ARankThatFailsEndsAllHosts) {
  Hosts hosts;
  const std::string sleep = host_sleep();
  hosts.start(0, {"--nproc-per-node", "2"}, sleep);
  hosts.start(1, {"--nproc-per-node", "2"}, "if test $RANK = 3; then exit 41; fi; " + sleep);
  hosts.expect_codes({41, 41});
  hosts.expect_said("error: rank 3 (pid ");
  hosts.expect_said("exited with code 41; the other ranks were stopped");
  EXPECT_TRUE(eventually([&] { return processes_with(sleep) == 0; }));
}

TEST(LaunchHosts, ARankThatIsKilledEndsAllHosts) {
  Hosts hosts;
  const std::string sleep = host_sleep();
  hosts.start(0, {"--nproc-per-node", "2"},
              "if test $RANK = 0; then sleep 0.3; kill -9 $$; fi; " + sleep);
  hosts.start(1, {"--nproc-per-node", "2"}, sleep);
  hosts.expect_codes({7, 7});
  hosts.expect_said("error: rank 0 (pid ");
  hosts.expect_said("was killed by signal 9 (SIGKILL)");
  EXPECT_TRUE(eventually([&] { return processes_with(sleep) == 0; }));
}

// The kernel may take longer to end a killed process than the other ranks take to notice that it is
// gone.
TEST(LaunchHosts, AKilledRankThatIsNoticedLateIsStillTheCause) {
  Hosts hosts;
  const std::string sleep = host_sleep();
  hosts.start(0, {"--nproc-per-node", "2"}, sleep);
  hosts.start(1, {"--nproc-per-node", "2"},
              "if test $RANK = 3; then sleep 0.3; exit 7; fi; trap '' TERM; sleep 1; kill -9 $$");
  hosts.expect_codes({7, 7});
  hosts.expect_said("error: rank 2 (pid ");
  hosts.expect_said("was killed by signal 9 (SIGKILL)");
}

// The other host names the lost host with its ranks, whichever of the two was lost.
TEST(LaunchHosts, ALauncherThatIsKilledEndsTheOther) {
  for (const std::size_t killed : {0u, 1u}) {
    Hosts hosts;
    const std::string sleep = host_sleep();
    hosts.start(0, {"--nproc-per-node", "2"}, "echo here; " + sleep);
    hosts.start(1, {"--nproc-per-node", "2"}, "echo here; " + sleep);
    ASSERT_TRUE(hosts.have_begun("here\nhere\n"));
    hosts[killed].signal(SIGKILL);
    EXPECT_EQ(hosts[1 - killed].wait(seconds(10)), 7);
    const std::string expected = "error: the launcher of node " + std::to_string(killed) + " (pid ";
    EXPECT_NE(hosts[1 - killed].err().find(expected), std::string::npos) << hosts[1 - killed].err();
    EXPECT_NE(hosts[1 - killed].err().find(killed == 0 ? "has ranks 0 to 1" : "has ranks 2 to 3"),
              std::string::npos)
        << hosts[1 - killed].err();
    EXPECT_TRUE(eventually([&] { return processes_with(sleep) == 0; }));
  }
}

TEST(LaunchHosts, RestartsAreTogether) {
  Hosts hosts;
  const TemporaryFolder folder;
  const std::string mark = (folder / "failed").string();
  const std::string script = "echo $RANK:$TORCHELASTIC_RESTART_COUNT; if test $RANK = 3 -a ! -e " +
                             mark + "; then touch " + mark + "; exit 9; fi; test -e " + mark +
                             " || sleep 100";
  hosts.start(0, {"--nproc-per-node", "2", "--max-restarts", "2"}, script);
  hosts.start(1, {"--nproc-per-node", "2"}, script);  // node 0's number counts
  hosts.expect_codes({0, 0});
  hosts.expect_said("restarting all 4 ranks (restart 1 of 2)");
  EXPECT_EQ(host_lines(hosts[1].out()), (Words{"2:0", "2:1", "3:0", "3:1"}));
  EXPECT_NE(hosts[0].out().find("0:1"), std::string::npos);
}

TEST(LaunchHosts, ASignalToOneStopsAll) {
  for (const std::size_t told : {0u, 1u}) {
    Hosts hosts;
    const std::string sleep = host_sleep();
    hosts.start(0, {}, "echo here; " + sleep);
    hosts.start(1, {}, "echo here; " + sleep);
    ASSERT_TRUE(hosts.have_begun("here\n"));
    hosts[told].signal(SIGTERM);
    hosts.expect_codes({143, 143});
    hosts.expect_said("stopped by signal 15 (SIGTERM)");
    EXPECT_TRUE(eventually([&] { return processes_with(sleep) == 0; }));
  }
}

// Kubernetes and batch systems signal the nodes one after the other: it is one request, and the
// ranks have their time to save. A user who insists signals one launcher twice.
TEST(LaunchHosts, AFirstSignalToEachIsOneRequest) {
  for (const std::size_t told : {0u, 1u}) {
    Hosts hosts;
    const std::string script =
        "trap 'sleep 3; echo saved; exit 143' TERM; echo here; while :; do sleep 0.05; done";
    hosts.start(0, {}, script);
    hosts.start(1, {}, script);
    ASSERT_TRUE(hosts.have_begun("here\n"));
    hosts[told].signal(SIGTERM);
    std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    hosts[1 - told].signal(SIGTERM);
    hosts.expect_codes({143, 143});
    for (const std::size_t host : {0u, 1u}) {
      EXPECT_EQ(hosts[host].out(), "here\nsaved\n") << hosts[host].err();
      EXPECT_EQ(hosts[host].err().find("second signal"), std::string::npos) << hosts[host].err();
    }
  }
  Hosts hosts;
  const std::string sleep = host_sleep();
  hosts.start(0, {}, "trap '' TERM; echo here; " + sleep);
  hosts.start(1, {}, "trap '' TERM; echo here; " + sleep);
  ASSERT_TRUE(hosts.have_begun("here\n"));
  hosts[0].signal(SIGTERM);
  std::this_thread::sleep_for(seconds(1));
  hosts[1].signal(SIGTERM);
  std::this_thread::sleep_for(seconds(1));
  hosts[1].signal(SIGTERM);
  hosts.expect_codes({143, 143}, seconds(20));
  EXPECT_NE(hosts[1].err().find("second signal"), std::string::npos) << hosts[1].err();
}

// While the ranks of a failed attempt are still ending, which takes this one three seconds.
TEST(LaunchHosts, AStoppedJobDoesNotRestart) {
  for (const std::size_t told : {0u, 1u}) {
    Hosts hosts;
    const TemporaryFolder folder;
    const std::string go = (folder / "go").string();
    const std::string sleep = host_sleep();
    const std::string script = "echo here; trap '' TERM; if test $RANK = 0; then while ! test -e " +
                               go + "; do sleep 0.1; done; exit 9; fi; " + sleep;
    hosts.start(0, {"--max-restarts", "3"}, script);
    hosts.start(1, {}, script);
    ASSERT_TRUE(hosts.have_begun("here\n"));
    std::ofstream(go) << "";
    std::this_thread::sleep_for(seconds(1));
    hosts[told].signal(SIGTERM);
    const int code = hosts[0].wait();
    EXPECT_GT(code, 0) << hosts[0].err();
    EXPECT_EQ(hosts[1].wait(), code) << hosts[1].err();
    EXPECT_EQ(hosts[0].err().find("restarting"), std::string::npos) << hosts[0].err();
    EXPECT_TRUE(eventually([&] { return processes_with(sleep) == 0; }));
  }
}

// A signal that asks to save and continue, before there are ranks that could save.
TEST(LaunchHosts, AnEarlyWarningDoesNotEndTheRendezvous) {
  Hosts hosts;
  hosts.start(0, {}, "echo $RANK");
  std::this_thread::sleep_for(seconds(1));
  hosts[0].signal(SIGUSR1);
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  hosts.start(1, {}, "echo $RANK");
  hosts.expect_codes({0, 0});
}

// For longer than the time for which a launcher may be silent.
TEST(LaunchHosts, APagerThatPausesEndsNoHost) {
  Hosts hosts;
  const TemporaryFolder folder;
  const std::string shown = (folder / "shown").string();
  const std::string script = "head -c 1050000 /dev/zero | tr '\\0' x | fold -w 99";
  const auto command = [&](int node) {
    return "TESSERA_JOB_KEY=" + std::string(the_key) + " TESSERA_STANDSTILL_TIMEOUT=1 " +
           testing::program_path() + " launch --nnodes 2 --master-addr 127.0.0.1 --node-rank " +
           std::to_string(node) + " --master-port " + std::to_string(hosts.port()) +
           " --tee 3 -- sh -c \"" + script + (node == 0 ? "" : "; sleep 7") + "\"";
  };
  const std::string both = "( " + command(1) + " >/dev/null 2>&1; echo $? >" + shown + ".1 ) & { " +
                           command(0) + " 2>" + shown + ".err; echo $? >" + shown +
                           ".0; } | ( sleep 6; cat ) >" + shown + "; wait";
  ASSERT_EQ(std::system(both.c_str()), 0);
  const std::string error = testing::read_text(shown + ".err");
  EXPECT_EQ(testing::read_text(shown + ".0"), "0\n") << error;
  EXPECT_EQ(testing::read_text(shown + ".1"), "0\n") << error;
  const std::string text = testing::read_text(shown);
  EXPECT_EQ(std::count(text.begin(), text.end(), 'x'), 1050000);
}

TEST(LaunchHosts, AWrongKeyIsRejectedAndTheRightOneAdmitted) {
  Hosts hosts;
  hosts.start(0, {}, "echo $RANK");
  hosts.start(1, {}, "echo $RANK", "a-key-of-another-job");
  EXPECT_EQ(hosts[1].wait(), 3) << hosts[1].err();
  EXPECT_NE(hosts[1].err().find("does not know this job's key"), std::string::npos)
      << hosts[1].err();
  hosts.start(1, {}, "echo $RANK");
  EXPECT_EQ(hosts[2].wait(), 0) << hosts[2].err();
  EXPECT_EQ(hosts[0].wait(), 0) << hosts[0].err();
  EXPECT_NE(hosts[0].err().find("turned a connection from 127.0.0.1 away"), std::string::npos);
  EXPECT_EQ(hosts[2].out(), "1\n");
  for (const std::size_t host : {0u, 1u, 2u}) {
    EXPECT_EQ(hosts[host].err().find("a-key-of-another"), std::string::npos);
    EXPECT_EQ(hosts[host].err().find(the_key), std::string::npos);
  }
}

TEST(LaunchHosts, ADuplicateNodeNumberIsRefused) {
  Hosts hosts;
  const std::string sleep = host_sleep();
  hosts.start(0, {}, sleep, the_key, 3);
  hosts.start(1, {}, sleep, the_key, 3);
  hosts.start(1, {}, sleep, the_key, 3);
  ASSERT_TRUE(eventually([&] { return !hosts[1].err().empty() || !hosts[2].err().empty(); }));
  const std::size_t refused = hosts[1].err().empty() ? 2 : 1;
  EXPECT_EQ(hosts[refused].wait(), 3);
  EXPECT_NE(hosts[refused].err().find("--node-rank 1: node 1 (pid "), std::string::npos)
      << hosts[refused].err();
  // A signal ends the waiting too.
  hosts[0].signal(SIGTERM);
  EXPECT_EQ(hosts[0].wait(), 143) << hosts[0].err();
  EXPECT_EQ(hosts[3 - refused].wait(), 7) << hosts[3 - refused].err();
}

TEST(LaunchHosts, AMissingHostIsNamed) {
  Hosts hosts;
  hosts.start(0, {"--rdzv-conf", "join_timeout=1"}, "true", the_key, 3);
  hosts.start(2, {}, "true", the_key, 3);
  hosts.expect_codes({7, 7});
  hosts.expect_said("the launcher of node(s) 1 of 3 did not come to 127.0.0.1 port ");
  Hosts others;
  others.start(1, {"--rdzv-conf=join_timeout=1"}, "true");
  others.expect_codes({7});
  others.expect_said("node 1 did not find node 0's launcher at 127.0.0.1 port ");
}

TEST(LaunchHosts, AProgramThatCannotRunOnOneHostIsReportedByAll) {
  Hosts hosts;
  hosts.start(0, {}, host_sleep());
  Words all = {"launch",
               "--nnodes",
               "2",
               "--node-rank",
               "1",
               "--master-addr",
               "127.0.0.1",
               "--master-port",
               std::to_string(hosts.port()),
               "/nowhere/program"};
  Program other(all, {{"TESSERA_JOB_KEY", the_key}});
  EXPECT_EQ(other.wait(), 2) << other.err();
  hosts.expect_codes({2});
  hosts.expect_said("cannot run /nowhere/program");
}

// Silent connections and random bytes at the port of the launchers' rendezvous.
TEST(LaunchHosts, UnauthenticatedConnectionsDoNotAffectLaunchers) {
  Hosts hosts;
  hosts.start(0, {}, "echo $RANK");
  std::vector<int> strangers;
  for (int i = 0; i < 100; ++i) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<std::uint16_t>(hosts.port() + 1));
    int socket = -1;
    ASSERT_TRUE(eventually([&] {
      if (socket >= 0) ::close(socket);
      socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
      return ::connect(socket, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
    }));
    const std::string noise(static_cast<std::size_t>(i * 7), static_cast<char>(i));
    if (i % 2 == 0) (void)!::send(socket, noise.data(), noise.size(), MSG_NOSIGNAL);
    strangers.push_back(socket);
  }
  hosts.start(1, {}, "echo $RANK");
  hosts.expect_codes({0, 0}, seconds(30));
  for (const int socket : strangers) ::close(socket);
}

TEST(LaunchHosts, MissingOrWrongOptionsGiveOneLine) {
  const auto refused = [](Words words, int code, const std::string& part,
                          const std::string& key = the_key) {
    words.insert(words.begin(), "launch");
    words.insert(words.end(), {"--", "true"});
    Program program(words, {{"TESSERA_JOB_KEY", key}});
    EXPECT_EQ(program.wait(), code) << program.err();
    const std::string error = program.err();
    EXPECT_NE(error.find(part), std::string::npos) << part << ": " << error;
    EXPECT_EQ(std::count(error.begin(), error.end(), '\n'), 1) << error;
  };
  const Words two = {"--nnodes", "2", "--node-rank", "0", "--master-addr", "localhost"};
  const auto with = [&](const Words& more) {
    Words words = two;
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  refused({"--nnodes", "2", "--node-rank", "0"}, 2, "--nnodes 2: give --master-addr");
  refused({"--nnodes", "2", "--master-addr", "x"}, 2, "--nnodes 2: give each node its --node-rank");
  refused({"--nnodes", "1:2"}, 2, "nodes that join and leave are not supported");
  refused({"--nnodes", "none"}, 2, "--nnodes none: must be a number of nodes from 1 to 4096");
  refused({"--node-rank", "1"}, 2, "--node-rank 1: the numbers of 1 node are 0 to 0");
  refused({"--nnodes", "2", "--node-rank", "2", "--master-addr", "localhost"}, 2,
          "--node-rank 2: the numbers of 2 nodes are 0 to 1");
  refused(with({"--master-port", "65535"}), 2, "use one below 65535");
  refused(with({"--num-processes", "3"}), 2, "--num-processes 3: these are the ranks of all nodes");
  refused(with({"--num-processes", "cpu"}), 2, "write --nproc-per-node cpu");
  refused(with({"--num-processes", "2", "--nproc-per-node", "1"}), 2, "keep one");
  refused(with({"--rdzv-conf", "join_timeout=soon"}), 2, "a number of seconds");
  refused(two, 3, "need a secret key", "");
  refused(two, 3, "TESSERA_JOB_KEY holds no job key", "short");
  refused(with({"--no-job-key", "--job-key-file", "x"}), 2, "keep one");
  const TemporaryFolder folder;
  std::ofstream(folder / "key") << the_key;
  refused(with({"--job-key-file", (folder / "key").string()}), 3, "chmod 600");
}

// The key is passed between processes only in the environment.
TEST(LaunchHosts, AKeyIsGeneratedForOneHostAndIsInNoCommandLine) {
  const std::string sleep = host_sleep();
  Program program(
      {"launch", "--nproc-per-node", "2", "--", "sh", "-c", "echo $TESSERA_JOB_KEY; " + sleep},
      {{"TESSERA_JOB_KEY", ""}});
  ASSERT_TRUE(eventually([&] { return host_lines(program.out()).size() == 2; }));
  const Words keys = host_lines(program.out());
  EXPECT_EQ(keys[0].size(), 64u);
  EXPECT_EQ(keys[0], keys[1]);
  EXPECT_EQ(processes_with(keys[0]), 0);
  program.signal(SIGTERM);
  EXPECT_EQ(program.wait(), 143);
}

}  // namespace
}  // namespace tessera::launcher
