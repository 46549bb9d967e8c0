// The options of torchrun and Accelerate for `tessera launch`; the ranks' output; ranks that are
// threads.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "engine/device/backend.h"
#include "tests/cli/training_testing.h"

namespace tessera::launcher {
namespace {

using testing::Ended;
using testing::Program;
using testing::read_text;
using testing::run_program;
using testing::Settings;
using testing::TemporaryFolder;
using testing::TrainingFolder;

std::vector<std::string> sorted_lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  std::sort(lines.begin(), lines.end());
  return lines;
}

using Words = std::vector<std::string>;

// `sh -c SCRIPT`, started by `tessera launch` with these options.
Ended started(Words words, const std::string& script) {
  words.insert(words.begin(), "launch");
  words.insert(words.end(), {"sh", "-c", script});
  return run_program(words);
}

TEST(LaunchSpelling, TheProgramNeedsNoDashesBeforeIt) {
  for (const Words& words :
       {Words{"--nproc_per_node", "2"}, Words{"--nproc-per-node=2"}, Words{"--num-processes", "2"},
        Words{"--num_processes=2", "--"}, Words{"--nproc_per_node=2", "--standalone"},
        Words{"--nnodes", "1", "--nproc_per_node", "2"}, Words{"--nnodes=1:1", "--num_processes=2"},
        Words{"--num_machines", "1", "--machine_rank", "0", "--num_processes", "2"},
        Words{"--role", "worker", "--rdzv_id", "7", "--nproc-per-node", "2"}}) {
    const Ended ended = started(words, "echo $RANK of $WORLD_SIZE --nproc_per_node");
    EXPECT_EQ(ended.code, 0) << ended.err;
    EXPECT_EQ(sorted_lines(ended.out),
              (Words{"0 of 2 --nproc_per_node", "1 of 2 --nproc_per_node"}));
    EXPECT_EQ(ended.err, "");
  }
}

TEST(LaunchSpelling, OptionsWithoutEffectAreReported) {
  const Ended ended = started({"--rdzv-backend", "c10d", "--rdzv_endpoint", "localhost:29400",
                               "--rdzv-id=job", "--nproc-per-node", "2"},
                              "echo $TORCHELASTIC_RUN_ID");
  EXPECT_EQ(ended.code, 0);
  EXPECT_EQ(ended.out, "job\njob\n");
  EXPECT_EQ(ended.err,
            "tessera: --rdzv-* has no effect: the ranks of one node find each other without it\n");
}

TEST(LaunchSpelling, UnsupportedOptionsAreRefusedByName) {
  const auto refused = [](const Words& words, const std::string& expected) {
    const Ended ended = started(words, "true");
    EXPECT_EQ(ended.code, 2) << ended.err;
    EXPECT_NE(ended.err.find(expected), std::string::npos) << ended.err;
    EXPECT_EQ(std::count(ended.err.begin(), ended.err.end(), '\n'), 1) << ended.err;
  };
  refused({"-m", "train"}, "-m train: a program is started, not a Python module; write python3 -m");
  refused({"--module=train"}, "write python3 -m train");
  refused({"--nnodes", "1:2"}, "--nnodes 1:2: nodes that join and leave");
  refused({"--node_rank", "1"}, "--node-rank 1: the numbers of 1 node are 0 to 0");
  refused({"--rdzv-endpoint", "node7:29400"}, "--rdzv-endpoint node7:29400");
  refused({"--nproc-per-nod", "2"},
          "unknown option --nproc-per-nod; did you mean --nproc-per-node?");
  refused({"--nproc-per-node", "two"}, "must be a number of ranks from 1 to 4096, or auto");
  refused({"--tee", "7"}, "--tee 7: must be 1 (stdout)");
  refused({"--threads", "2"}, "--threads 2: starts the ranks of tessera train");
  if (backend_of(DeviceType::cuda).device_count() == 0) {
    refused({"--nproc-per-node", "gpu"}, "found no GPU to start ranks for");
  }
  const TemporaryFolder folder;
  const std::string script = (folder / "train.py").string();
  std::ofstream(script) << "print()\n";
  const Ended python = run_program({"launch", "--nproc-per-node", "2", script, "--lr", "1"});
  EXPECT_EQ(python.code, 2);
  EXPECT_NE(python.err.find("write python3 " + script), std::string::npos) << python.err;
}

TEST(LaunchSpelling, AutoAndCpuAreNumbers) {
  for (const char* word : {"auto", "cpu"}) {
    const Ended ended = started({"--nproc-per-node", word}, "echo $WORLD_SIZE");
    EXPECT_EQ(ended.code, 0) << ended.err;
    EXPECT_FALSE(ended.out.empty());
  }
}

TEST(LaunchSpelling, APortThatAnotherProgramHasIsOneLine) {
  const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(::bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(::listen(listener, 1), 0);
  socklen_t length = sizeof address;
  ASSERT_EQ(::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length), 0);
  const std::string port = std::to_string(ntohs(address.sin_port));
  const Ended taken = started({"--master_port", port}, "echo started");
  EXPECT_EQ(taken.code, 3);
  EXPECT_EQ(taken.out, "");
  EXPECT_TRUE(taken.err.starts_with("tessera: error: --master-port " + port + ": pid " +
                                    std::to_string(::getpid()) + " ("))
      << taken.err;
  EXPECT_TRUE(taken.err.ends_with(" has this port; choose another, or 0 for a free one\n"))
      << taken.err;
  ::close(listener);
  const Ended free = started({"--master-port", port}, "echo $MASTER_PORT");
  EXPECT_EQ(free.code, 0) << free.err;
  EXPECT_EQ(free.out, port + "\n");
}

TEST(LaunchSpelling, AConfigurationFileGivesNumbersAndAddresses) {
  const TemporaryFolder folder;
  const std::string file = (folder / "a.yaml").string();
  std::ofstream(file) << "distributed_type: FSDP\nnum_processes: 3\ngpu_ids: 0,1\n"
                         "main_process_ip: localhost\nmain_process_port: 0\n";
  const std::string script = "echo $WORLD_SIZE $CUDA_VISIBLE_DEVICES $MASTER_ADDR";
  const Ended three = started({"--config-file", file}, script);
  EXPECT_EQ(three.code, 0) << three.err;
  EXPECT_EQ(three.out, "3 0,1 localhost\n3 0,1 localhost\n3 0,1 localhost\n");
  const Ended one = started({"--config_file", file, "--num_processes", "1"}, script);
  EXPECT_EQ(one.out, "1 0,1 localhost\n");
  // A given 0 overrides the file's port, which another program uses.
  std::ofstream(file) << "distributed_type: FSDP\nnum_processes: 1\nmain_process_port: 1\n";
  const Ended free =
      started({"--config-file", file, "--master-port", "0"}, "test $MASTER_PORT -gt 1 && echo yes");
  EXPECT_EQ(free.out, "yes\n") << free.err;
  std::ofstream(file) << "distributed_type: FSDP\n";
  const Ended unsaid = started({"--config-file", file}, script);
  EXPECT_EQ(unsaid.code, 2);
  EXPECT_NE(unsaid.err.find("has no num_processes; give --nproc-per-node"), std::string::npos);
}

TEST(LaunchOutput, LinesAreWholeAndNumbered) {
  const std::string script =
      "for i in 1 2 3 4 5 6 7 8; do printf %s half-; sleep 0.01; echo line$i; done; printf end; "
      "echo wrong >&2";
  for (const Words& words :
       {Words{"--tee"}, Words{"--tee", "3"}, Words{"-t", "3"}, Words{"--tee=3"}}) {
    Words all = {"--nproc-per-node", "3"};
    all.insert(all.end(), words.begin(), words.end());
    const Ended ended = started(all, script);
    ASSERT_EQ(ended.code, 0) << ended.err;
    Words expected;
    for (const char* rank : {"0", "1", "2"}) {
      for (int i = 1; i <= 8; ++i) {
        expected.push_back(std::string("[rank ") + rank + "]: half-line" + std::to_string(i));
      }
      expected.push_back(std::string("[rank ") + rank + "]: end");
    }
    std::sort(expected.begin(), expected.end());
    EXPECT_EQ(sorted_lines(ended.out), expected);
    EXPECT_EQ(sorted_lines(ended.err),
              (Words{"[rank 0]: wrong", "[rank 1]: wrong", "[rank 2]: wrong"}));
  }
}

TEST(LaunchOutput, StreamsAndRanksAreChosen) {
  const std::string script = "echo out$RANK; echo err$RANK >&2";
  const Ended out = started({"--nproc-per-node", "2", "--tee", "1"}, script);
  EXPECT_EQ(sorted_lines(out.out), (Words{"[rank 0]: out0", "[rank 1]: out1"}));
  EXPECT_EQ(sorted_lines(out.err), (Words{"err0", "err1"}));
  const Ended one = started({"--nproc-per-node", "2", "--tee", "1:3"}, script);
  EXPECT_EQ(sorted_lines(one.out), (Words{"[rank 1]: out1", "out0"}));
  EXPECT_EQ(sorted_lines(one.err), (Words{"[rank 1]: err1", "err0"}));
}

TEST(LaunchOutput, AFileForEachRank) {
  const TemporaryFolder folder;
  const std::string logs = (folder / "a/b").string();
  const std::string script = "echo out$RANK; echo err$RANK >&2";
  for (const bool printed : {false, true}) {
    Words words = {"--nproc-per-node", "2", "--log_dir", logs};
    if (printed) words.emplace_back("--tee");
    const Ended ended = started(words, script);
    ASSERT_EQ(ended.code, 0) << ended.err;
    EXPECT_EQ(sorted_lines(ended.out),
              printed ? (Words{"[rank 0]: out0", "[rank 1]: out1"}) : Words{});
    for (const std::string rank : {"0", "1"}) {
      EXPECT_EQ(sorted_lines(read_text(logs + "/rank-" + rank + ".log")),
                (Words{"err" + rank, "out" + rank}));
    }
  }
  // After a restart the output of the first attempt is in the files too; failures are still
  // printed.
  const Ended fails = started({"--max-restarts", "1", "--log-dir", logs},
                              "echo attempt $TORCHELASTIC_RESTART_COUNT; exit 9");
  EXPECT_EQ(fails.code, 9);
  EXPECT_NE(fails.err.find("exited with code 9"), std::string::npos);
  EXPECT_EQ(read_text(logs + "/rank-0.log"), "attempt 0\nattempt 1\n");
  const Ended nowhere = started({"--log-dir", "/proc/none"}, "true");
  EXPECT_EQ(nowhere.code, 3);
  EXPECT_NE(nowhere.err.find("--log-dir /proc/none cannot be created"), std::string::npos);
}

TEST(LaunchOutput, AFileHasWhatTheRankWroteToTheByte) {
  const TemporaryFolder folder;
  const std::string logs = (folder / "logs").string();
  ASSERT_EQ(started({"--log-dir", logs}, "head -c 300000 /dev/zero | tr '\\0' x; printf end").code,
            0);
  EXPECT_EQ(read_text(logs + "/rank-0.log"), std::string(300000, 'x') + "end");
}

TEST(LaunchOutput, ALinkOfAnotherUserIsNotFollowed) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can make a link of another user's";
  const TemporaryFolder folder;
  folder.write("precious", "old");
  std::filesystem::create_symlink("precious", folder / "rank-0.log");
  ASSERT_EQ(::lchown((folder / "rank-0.log").c_str(), 65534, 65534), 0);
  const Ended ended = started({"--log-dir", folder.path().string()}, "echo new");
  EXPECT_EQ(ended.code, 3);
  EXPECT_NE(ended.err.find("rank-0.log is a symbolic link of another user"), std::string::npos)
      << ended.err;
  EXPECT_EQ(read_text(folder / "precious"), "old");
}

TEST(LaunchOutput, AFullDiskIsReportedOnceAndEndsNoRank) {
  const TemporaryFolder folder;
  std::filesystem::create_symlink("/dev/full", folder / "rank-0.log");
  const Ended ended =
      started({"--log-dir", (folder / ".").string()},
              "for i in 1 2 3; do echo $i; sleep 0.1; done; touch " + (folder / "ended").string());
  EXPECT_EQ(ended.code, 5);
  EXPECT_TRUE(std::filesystem::exists(folder / "ended"));
  EXPECT_NE(ended.err.find("rank-0.log: the output of rank 0 is not kept from here on: "),
            std::string::npos)
      << ended.err;
  EXPECT_NE(ended.err.find("No space left on device"), std::string::npos) << ended.err;
  EXPECT_EQ(std::count(ended.err.begin(), ended.err.end(), '\n'), 1) << ended.err;
}

// In a shell: the launcher's output is a pipe whose reader ends, or a device that is full.
Ended in_shell(const std::string& launch_words, const std::string& behind) {
  const TemporaryFolder folder;
  const std::string err = (folder / "err").string(), code = (folder / "code").string();
  const std::string command = "bash -c \"(timeout 60 " + testing::program_path() + " launch " +
                              launch_words + " 2> " + err + "; echo \\$? > " + code + ") " +
                              behind + "\"";
  EXPECT_EQ(std::system(command.c_str()), 0) << command;  // NOLINT(cert-env33-c)
  return {std::stoi(read_text(code)), "", read_text(err)};
}

TEST(LaunchOutput, APagerThatEndsEndsTheRanksPipe) {
  const Ended endless = in_shell("--tee 3 -- yes", "| head -1 > /dev/null");
  EXPECT_EQ(endless.code, 7) << endless.err;
  EXPECT_NE(endless.err.find("tessera: standard output is closed; the output of the ranks is not "
                             "shown there from here on\n"),
            std::string::npos)
      << endless.err;
  EXPECT_NE(endless.err.find("was killed by signal 13 (SIGPIPE)"), std::string::npos);
  // A rank that writes to a file is read on.
  const TemporaryFolder folder;
  const Ended kept = in_shell("--tee 1 --log-dir " + (folder / "").string() + " -- seq 1 200000",
                              "| head -1 > /dev/null");
  EXPECT_EQ(kept.code, 0) << kept.err;
  EXPECT_TRUE(read_text(folder / "rank-0.log").ends_with("\n200000\n"));
}

TEST(LaunchOutput, TrainingGoesOnWithoutItsPager) {
  const TrainingFolder folder;
  std::string command = "(timeout 60 " + testing::program_path() +
                        " launch --nproc-per-node 2 --tee 3 -- " + testing::program_path();
  for (const std::string& word :
       testing::train_arguments(folder.small() + Settings{{"train.steps", "200"},
                                                          {"log.every", "1"},
                                                          {"log.jsonl", folder.path("m.jsonl")}})) {
    command += " " + word;
  }
  command += " 2>&1) | head -1 > " + folder.path("shown");
  EXPECT_EQ(std::system(command.c_str()), 0) << command;  // NOLINT(cert-env33-c)
  EXPECT_EQ(testing::lines_of(folder.path("shown")), 1);
  EXPECT_EQ(testing::lines_of(folder.path("m.jsonl")), 200);
}

TEST(LaunchOutput, AFullStandardOutputIsCodeFive) {
  const Ended ended = in_shell("--tee 3 -- echo hi", "> /dev/full");
  EXPECT_EQ(ended.code, 5) << ended.err;
  EXPECT_NE(ended.err.find("standard output cannot be written: write failed: No space left"),
            std::string::npos)
      << ended.err;
  EXPECT_EQ(in_shell("--tee 3 -- yes", "> /dev/full").code, 5);
}

TEST(LaunchOutput, LargeOutputArrivesCompletely) {
  const Ended ended = started({"--nproc-per-node", "2", "--tee", "3"},
                              "seq 1 20000; head -c 200000 /dev/zero | tr '\\0' x");
  ASSERT_EQ(ended.code, 0);
  std::size_t letters = 0;
  std::size_t numbers = 0;
  for (const std::string& line : sorted_lines(ended.out)) {
    EXPECT_TRUE(line.starts_with("[rank ")) << line.substr(0, 80);
    letters += static_cast<std::size_t>(std::count(line.begin(), line.end(), 'x'));
    numbers += line.find('x') == std::string::npos ? 1 : 0;
  }
  EXPECT_EQ(letters, 400'000u);
  EXPECT_EQ(numbers, 40'000u);
}

TEST(LaunchThreads, HaveTheBitsOfProcesses) {
  const TrainingFolder folder;
  const auto run = [&](const std::string& name, const std::string& how) {
    const Settings settings = folder.small() + Settings{{"log.jsonl", folder.path(name + ".jsonl")},
                                                        {"checkpoint.dir", folder.path(name)},
                                                        {"train.device", "cpu"}};
    Words words = {"launch", how, "2", "--", testing::program_path()};
    for (const std::string& word : testing::train_arguments(settings)) words.push_back(word);
    const Ended ended = run_program(words);
    ASSERT_EQ(ended.code, 0) << ended.err;
  };
  run("threads", "--threads");
  run("processes", "--nproc-per-node");
  const auto expected = testing::losses_in(folder.path("processes.jsonl"));
  ASSERT_EQ(expected.size(), 3u);
  EXPECT_EQ(testing::losses_in(folder.path("threads.jsonl")), expected);
  const std::string weights = read_text(folder.path("processes/step-3/model.safetensors"));
  ASSERT_FALSE(weights.empty());
  EXPECT_EQ(read_text(folder.path("threads/step-3/model.safetensors")), weights);
}

// The build need not be on PATH.
TEST(LaunchSpelling, TesseraThatIsNotOnPathIsThisProgram) {
  const std::map<std::string, std::string> bare = {{"PATH", "/usr/bin:/bin"}};
  Program itself({"launch", "--nproc-per-node", "2", "--", "tessera", "version"}, bare);
  EXPECT_EQ(itself.wait(), 0) << itself.err();
  const std::string versions = itself.out();
  EXPECT_EQ(versions.substr(0, 8), "tessera ");
  EXPECT_EQ(std::count(versions.begin(), versions.end(), '\n'), 2) << versions;
  // A program on PATH takes precedence.
  const TemporaryFolder folder;
  std::ofstream(folder / "tessera") << "#!/bin/sh\necho another\n";
  std::filesystem::permissions(folder / "tessera", std::filesystem::perms::owner_all);
  Program another({"launch", "--", "tessera", "version"},
                  {{"PATH", (folder / "").string() + ":/usr/bin:/bin"}});
  EXPECT_EQ(another.wait(), 0) << another.err();
  EXPECT_EQ(another.out(), "another\n");
  Program word({"launch", "--", "train", "recipe.yaml"}, bare);
  EXPECT_EQ(word.wait(), 2);
  EXPECT_EQ(
      word.err(),
      "tessera: error: cannot run train: no program has this name; did you mean tessera train?\n");
}

}  // namespace
}  // namespace tessera::launcher
