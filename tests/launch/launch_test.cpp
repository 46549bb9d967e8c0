// `tessera launch`: the ranks' environment, how they end together, and that no process is left
// behind.
#include <gtest/gtest.h>
#include <stdlib.h>
#include <termios.h>

#include <algorithm>
#include <cstdlib>
#include <set>

#include "launch/launch.h"
#include "tests/cli/program_testing.h"

namespace tessera::launcher {
namespace {

using std::chrono::seconds;
using testing::eventually;
using testing::processes_with;
using testing::Program;
using testing::read_text;
using testing::TemporaryFolder;

std::vector<std::string> launch_arguments(int ranks, const std::string& script,
                                          const std::vector<std::string>& options = {}) {
  std::vector<std::string> arguments = {"launch", "--nproc-per-node", std::to_string(ranks)};
  arguments.insert(arguments.end(), options.begin(), options.end());
  arguments.insert(arguments.end(), {"--", "sh", "-c", script});
  return arguments;
}

// A sleep time that no other process uses.
std::string own_sleep() {
  static int count = 0;
  return "sleep 9999." + std::to_string(::getpid()) + std::to_string(++count);
}

int lines_in(const std::string& text) {
  return static_cast<int>(std::count(text.begin(), text.end(), '\n'));
}

TEST(Launch, RanksGetTorchrunsEnvironment) {
  Program program(launch_arguments(
                      3,
                      "echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $GROUP_RANK $ROLE_RANK "
                      "$MASTER_ADDR $TORCHELASTIC_RESTART_COUNT $TORCHELASTIC_RUN_ID $MASTER_PORT",
                      {"--run-id", "job"}),
                  {{"OMP_NUM_THREADS", ""}});
  ASSERT_EQ(program.wait(), 0) << program.err();
  std::istringstream stream(program.out());
  std::set<std::string> ranks;
  std::set<int> ports;
  for (std::string line; std::getline(stream, line);) {
    const std::string rank = line.substr(0, 1);
    ranks.insert(rank);
    const std::string expected = rank + " " + rank + " 3 3 0 " + rank + " 127.0.0.1 0 job ";
    ASSERT_EQ(line.substr(0, expected.size()), expected);
    ports.insert(std::stoi(line.substr(expected.size())));
  }
  EXPECT_EQ(ranks, (std::set<std::string>{"0", "1", "2"}));
  ASSERT_EQ(ports.size(), 1u);
  EXPECT_GT(*ports.begin(), 1023);
}

TEST(Launch, CoresAreDividedByDefault) {
  ::unsetenv("OMP_NUM_THREADS");
  const std::string script = "echo $OMP_NUM_THREADS";
  Program shared(launch_arguments(1, script));
  ASSERT_EQ(shared.wait(), 0);
  EXPECT_EQ(shared.out(), std::to_string(usable_cores()) + "\n");
  Program many(launch_arguments(64, script));
  ASSERT_EQ(many.wait(), 0);
  EXPECT_EQ(lines_in(many.out()), 64);
  Program chosen(launch_arguments(2, script), {{"OMP_NUM_THREADS", "7"}});
  ASSERT_EQ(chosen.wait(), 0);
  EXPECT_EQ(chosen.out(), "7\n7\n");
}

TEST(Launch, TheFirstRankThatFailsIsNamedAndGivesTheCode) {
  const std::string sleep = own_sleep();
  Program program(launch_arguments(3, "[ $RANK = 1 ] && exit 5; " + sleep));
  EXPECT_EQ(program.wait(seconds(20)), 5);
  EXPECT_NE(program.err().find("tessera: error: rank 1 (pid "), std::string::npos) << program.err();
  EXPECT_NE(program.err().find(") exited with code 5; the other ranks were stopped"),
            std::string::npos)
      << program.err();
  EXPECT_EQ(lines_in(program.err()), 1) << program.err();
  EXPECT_EQ(processes_with(sleep.substr(6)), 0);
}

TEST(Launch, AKilledRankIsCode7AndStubbornRanksAreKilled) {
  const TemporaryFolder folder;
  const std::string sleep = own_sleep();
  const std::string pid_file = (folder / "pid").string();
  // Rank 0 and its child processes ignore SIGTERM.
  Program program(launch_arguments(2, "trap '' TERM; [ $RANK = 1 ] && echo $$ > " + pid_file +
                                          ".new && mv " + pid_file + ".new " + pid_file + "; " +
                                          sleep + " & " + sleep + "; wait"));
  ASSERT_TRUE(eventually(
      [&] { return !read_text(pid_file).empty() && processes_with(sleep.substr(6)) >= 8; }));
  ASSERT_EQ(::kill(std::stoi(read_text(pid_file)), SIGKILL), 0);
  EXPECT_EQ(program.wait(seconds(20)), 7);
  EXPECT_NE(program.err().find("rank 1 (pid " + std::to_string(std::stoi(read_text(pid_file))) +
                               ") was killed by signal 9 (SIGKILL)"),
            std::string::npos)
      << program.err();
  EXPECT_TRUE(eventually([&] { return processes_with(sleep.substr(6)) == 0; }));
}

TEST(Launch, NothingOutlivesALauncherThatIsKilledAtAnyMoment) {
  // The launcher and its guardian count too, since the script is in their command line.
  for (int processes = 1; processes <= 8; ++processes) {
    const std::string sleep = own_sleep();
    Program program(
        launch_arguments(2, "trap '' TERM HUP INT; " + sleep + " & " + sleep + "; wait"));
    ASSERT_TRUE(eventually([&] { return processes_with(sleep.substr(6)) >= processes; }));
    program.signal(SIGKILL);
    EXPECT_EQ(program.wait(), 128 + SIGKILL);
    EXPECT_TRUE(eventually([&] { return processes_with(sleep.substr(6)) == 0; }))
        << processes << " processes";
  }
}

// The process of this name that `parent` started; -1 when there is none.
pid_t child_named(pid_t parent, const std::string& name) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string stat = read_text(entry.path() / "stat");
    if (stat.find("(" + name + ") ") == std::string::npos) continue;
    std::istringstream behind_name(stat.substr(stat.rfind(')') + 1));
    std::string state;
    pid_t its_parent = 0;
    if (behind_name >> state >> its_parent && its_parent == parent) return std::stoi(stat);
  }
  return -1;
}

TEST(Launch, AStoppedGuardianIsNotWaitedForLong) {
  for (const int code : {0, 3}) {
    Program program(launch_arguments(2, "sleep 0.5; exit " + std::to_string(code)),
                    {{"TESSERA_STANDSTILL_TIMEOUT", "1"}});
    pid_t guardian = -1;
    ASSERT_TRUE(
        eventually([&] { return (guardian = child_named(program.pid(), "tessera-guard")) > 0; }));
    ASSERT_EQ(::kill(guardian, SIGSTOP), 0);
    EXPECT_EQ(program.wait(seconds(5)), code) << program.err();
    EXPECT_TRUE(eventually([&] { return ::kill(guardian, 0) != 0; }));
    ::kill(guardian, SIGKILL);
  }
}

// It may outlive a killed launcher, whose port must be free then.
TEST(Launch, TheGuardianHasNoSocket) {
  Program program(launch_arguments(1, "exec sleep 20"));
  pid_t guardian = -1;
  ASSERT_TRUE(
      eventually([&] { return (guardian = child_named(program.pid(), "tessera-guard")) > 0; }));
  const std::filesystem::path descriptors = "/proc/" + std::to_string(guardian) + "/fd";
  for (const auto& entry : std::filesystem::directory_iterator(descriptors)) {
    const std::string link = std::filesystem::read_symlink(entry.path()).string();
    EXPECT_FALSE(link.starts_with("socket:")) << link;
  }
}

// From before rank 0 starts, so that no other program listens there before rank 0 does.
TEST(Launch, ThePortOfTheControlPlaneIsHeldForRankZero) {
  Program program(launch_arguments(
      2,
      "n=$TESSERA_CONTROL_LISTENER; test -n \"$n\" && s=$(readlink /proc/self/fd/$n); python3 -c "
      "'import os, socket; socket.create_server((str(), "
      "int(os.environ[\"TESSERA_CONTROL_PORT\"])))' "
      "2>/dev/null && echo taken; echo $RANK ${s%:*}; "
      "[ $TESSERA_CONTROL_PORT != $MASTER_PORT ]"));
  EXPECT_EQ(program.wait(), 0) << program.err();
  EXPECT_EQ(lines_in(program.out()), 2) << program.out();
  EXPECT_NE(program.out().find("0 socket\n"), std::string::npos) << program.out();
  EXPECT_NE(program.out().find("1\n"), std::string::npos) << program.out();
}

TEST(Launch, AWrongStandstillTimeoutIsOneLine) {
  Program program(launch_arguments(2, "exit 0"), {{"TESSERA_STANDSTILL_TIMEOUT", "soon"}});
  EXPECT_EQ(program.wait(), 3);
  EXPECT_EQ(lines_in(program.err()), 1) << program.err();
  EXPECT_NE(program.err().find("TESSERA_STANDSTILL_TIMEOUT='soon'"), std::string::npos);
}

TEST(Launch, ProcessesThatARankLeavesBehindEndWithIt) {
  const std::string sleep = own_sleep();
  Program program(launch_arguments(2, sleep + " & exit 0"));
  EXPECT_EQ(program.wait(seconds(20)), 0);
  EXPECT_TRUE(eventually([&] { return processes_with(sleep.substr(6)) == 0; }));
}

TEST(Launch, SignalsArePassedOnAndRanksMayEndInTheirOwnWay) {
  const TemporaryFolder folder;
  const std::string ready = (folder / "ready").string();
  Program program(launch_arguments(2, "trap 'echo saved; exit 143' TERM; touch " + ready +
                                          "$RANK; while :; do sleep 0.05; done"));
  ASSERT_TRUE(eventually([&] {
    return std::filesystem::exists(ready + "0") && std::filesystem::exists(ready + "1");
  }));
  program.signal(SIGTERM);
  EXPECT_EQ(program.wait(seconds(20)), 143);
  EXPECT_EQ(program.out(), "saved\nsaved\n");
}

TEST(Launch, ASecondSignalKills) {
  const TemporaryFolder folder;
  const std::string ready = (folder / "ready").string();
  Program program(launch_arguments(2, "trap 'touch " + ready + "$RANK.int' INT; touch " + ready +
                                          "$RANK; while :; do sleep 0.05; done"));
  const auto both = [&](const std::string& suffix) {
    return std::filesystem::exists(ready + "0" + suffix) &&
           std::filesystem::exists(ready + "1" + suffix);
  };
  ASSERT_TRUE(eventually([&] { return both(""); }));
  program.signal(SIGINT);
  ASSERT_TRUE(eventually([&] { return both(".int"); }));
  program.signal(SIGINT);  // too soon after the first to count as a second signal
  EXPECT_EQ(program.wait(std::chrono::milliseconds(600)), -1);
  program.signal(SIGINT);
  EXPECT_EQ(program.wait(seconds(20)), 130);
}

// A batch system's warning signal. Only one of the ranks handles it, behind a shell that does not.
TEST(Launch, AWarningEndsNoRank) {
  const TemporaryFolder folder;
  const std::string ready = (folder / "ready").string();
  const std::string warned = (folder / "warned").string();
  const std::string script = (folder / "listens.sh").string();
  const std::string until_warned = "until [ -e " + warned + " ]; do sleep 0.05; done";
  std::ofstream(script) << "trap 'echo warned; touch " << warned << "' USR1\ntouch " << ready
                        << "\n"
                        << until_warned << "\n";
  // Both processes have started, however late the signal comes.
  Program program(
      launch_arguments(2, "if [ $RANK = 0 ]; then sh " + script + "; exit 0; fi; " + until_warned));
  ASSERT_TRUE(eventually([&] { return std::filesystem::exists(ready); }));
  program.signal(SIGUSR1);
  EXPECT_EQ(program.wait(seconds(20)), 0) << program.err();
  EXPECT_EQ(program.out(), "warned\n");
}

TEST(Launch, OutputOfAllRanksIsPrintedOnce) {
  const TemporaryFolder folder;
  std::ofstream(folder / "bad.yaml") << "data: {train: x}\ntrain: {stps: 1}\n";
  const std::string bad = (folder / "bad.yaml").string();
  Program program({"launch", "--nproc-per-node", "3", "--max-restarts", "2", "--",
                   testing::program_path(), "recipe", bad});
  EXPECT_EQ(program.wait(), 3);
  EXPECT_EQ(program.err(),
            "tessera: error: " + bad + ":2: unknown key train.stps; did you mean steps?\n");
}

TEST(Launch, AMessageOfOneRankIsPrintedWithItsNumber) {
  Program program(launch_arguments(2, "[ $RANK = 0 ] && exec sleep 30; exec " +
                                          testing::program_path() +
                                          " recipe /nonexistent.yaml; exit 4"));
  EXPECT_EQ(program.wait(), 3);
  EXPECT_EQ(lines_in(program.err()), 1) << program.err();
  EXPECT_NE(program.err().find("recipe /nonexistent.yaml does not exist"), std::string::npos)
      << program.err();
}

TEST(Launch, AProgramThatCannotRunIsAUsageError) {
  Program missing({"launch", "--", "no-such-program"});
  EXPECT_EQ(missing.wait(), 2);
  EXPECT_EQ(missing.err(),
            "tessera: error: cannot run no-such-program: exec failed: No such file or directory "
            "(ENOENT)\n");
  Program folder({"launch", "--nproc-per-node", "2", "--", "/usr"});
  EXPECT_EQ(folder.wait(), 2);
  EXPECT_NE(folder.err().find("cannot run /usr: exec failed: Permission denied"),
            std::string::npos);
  Program nothing({"launch", "--nproc-per-node", "2"});
  EXPECT_EQ(nothing.wait(), 2);
  EXPECT_NE(nothing.err().find("name the program after the options"), std::string::npos);
}

TEST(Launch, RestartsUntilSuccessOrTheLimit) {
  Program works(
      launch_arguments(2, "[ $TORCHELASTIC_RESTART_COUNT = 2 ] || exit 9", {"--max_restarts=5"}));
  EXPECT_EQ(works.wait(), 0);
  EXPECT_NE(works.err().find("restarting all 2 ranks (restart 2 of 5)"), std::string::npos)
      << works.err();
  Program fails(
      launch_arguments(2, "echo $TORCHELASTIC_RESTART_COUNT; exit 9", {"--max-restarts", "1"}));
  EXPECT_EQ(fails.wait(), 9);
  EXPECT_NE(fails.out().find('1'), std::string::npos);
}

TEST(Launch, ATerminalStaysATerminal) {
  const int terminal = ::posix_openpt(O_RDWR | O_NOCTTY);
  ASSERT_GE(terminal, 0);
  ASSERT_EQ(::grantpt(terminal), 0);
  ASSERT_EQ(::unlockpt(terminal), 0);
  const std::string name = ::ptsname(terminal);
  Program program(launch_arguments(2, "[ $RANK = 0 ] && exec > " + name +
                                          " && [ -t 1 ] && echo terminal > " + name +
                                          "; cat; exit 0"));
  EXPECT_EQ(program.wait(), 0) << program.err();
  char text[64] = {};
  EXPECT_GT(::read(terminal, text, sizeof text - 1), 0);
  EXPECT_NE(std::string(text).find("terminal"), std::string::npos);
  ::close(terminal);
}

// When the rank ends, some of its lines are still in its pipe: the launcher's buffer is full.
TEST(Launch, OutputThatAPagerHasNotReadYetIsNotLost) {
  const TemporaryFolder folder;
  const std::string shown = (folder / "shown").string();
  const std::string command =
      testing::program_path() +
      " launch --nproc-per-node 1 --tee 3 -- sh -c \"head -c 1050000 /dev/zero | tr '\\0' x | "
      "fold -w 99\" | ( sleep 3; cat ) >" +
      shown;
  ASSERT_EQ(std::system(command.c_str()), 0);
  const std::string text = testing::read_text(shown);
  EXPECT_EQ(std::count(text.begin(), text.end(), 'x'), 1050000);
}

}  // namespace
}  // namespace tessera::launcher
