// Peers of `tessera bench`, with stand-ins for their scripts: which scripts are called, with which
// job, and how their answers are used.
#include "tests/bench/bench_testing.h"

namespace tessera::bench {
namespace {

using testing::Compared;
using testing::compared;
using testing::expect_not_measured;
using testing::processes_with;
using testing::row_of;
using testing::Settings;
using testing::TrainingFolder;

// A folder with pytorch.py, and a stand-in for Python: a shell that runs the script with $job and
// $answer.
struct StandIn {
  const TrainingFolder& folder;

  StandIn(const TrainingFolder& in, const std::string& script) : folder(in) {
    std::filesystem::create_directory(folder.path("peers"));
    folder.write("peers/pytorch.py", script);
    folder.write("python",
                 "#!/bin/sh\n"
                 "test \"$1\" = -c && exit 0\n"
                 "script=$2 job=$4 answer=$6\n"
                 ". \"$script\"\n");
    std::filesystem::permissions(folder.path("python"), std::filesystem::perms::owner_all);
  }
  [[nodiscard]] Compared compare(const Settings& settings = {}) const {
    return compared(
        folder,
        {"--strategies", "FULL_SHARD", "--world-sizes", "2", "--peer", "pytorch", "--peer-modes",
         "fsdp2", "--peer-scripts", folder.path("peers"), "--peer-python", folder.path("python")},
        settings);
  }
};

std::string answer_of(const std::string& losses) {
  return R"(cat > "$answer" <<END
{"rows": [{"status": "measured", "samples_per_s": {"median": 10, "low": 9, "high": 11},
 "tokens_per_s": {"median": 640}, "step_s": {"median": 0.4}, "memory": {"measured": 1000000000},
 "peer": {"name": "pytorch", "mode": "fsdp2", "backend": "gloo", "compile": false, "version": "2.9"},
 "losses": )" +
         losses + "}]}\nEND\n";
}

constexpr const char* peer_row = "pytorch fsdp2, 2 ranks, fp32";

TEST(BenchPeers, ARowIsMergedWhenTheLossesAgree) {
  const TrainingFolder folder;
  // The losses of Tessera's own pilot run, because a stand-in cannot compute them.
  const Compared own =
      compared(folder, {"--strategies", "FULL_SHARD", "--world-sizes", "2", "--warmup", "1"});
  ASSERT_EQ(own.ended.code, 0) << own.ended.err;
  const std::string losses = own.report["rows"][0]["losses"].dump();
  std::filesystem::remove(folder.path("bench.json"));
  const StandIn peer(folder, "cp \"$job\" " + folder.path("job.json") + "\n" + answer_of(losses));
  const Compared done = peer.compare();
  ASSERT_EQ(done.ended.code, 0) << done.ended.err;
  const nlohmann::json row = row_of(done.report, peer_row);
  EXPECT_EQ(row["status"], "measured") << row;
  EXPECT_EQ(row["samples_per_s"]["median"], 10);
  EXPECT_EQ(row["memory"]["resident"], 1000000000);
  EXPECT_EQ(row["peer"]["version"], "2.9");
  EXPECT_NEAR(
      row["tessera"]["tokens_per_s"].get<double>(),
      row_of(done.report, "FULL_SHARD, 2 ranks, fp32")["tokens_per_s"]["median"].get<double>() /
          640,
      1e-9);
  EXPECT_NE(done.ended.out.find("pytorch fsdp2, 2 ranks: Tessera has "), std::string::npos)
      << done.ended.out;
  const auto job = nlohmann::json::parse(testing::read_text(folder.path("job.json")));
  EXPECT_EQ(job["mode"], "fsdp2");
  EXPECT_EQ(job["backend"], "gloo");
  EXPECT_EQ(job["world_size"], 2);
  EXPECT_EQ(job["precision"], "fp32");
  EXPECT_EQ(job["steps"], 2);
  EXPECT_EQ(job["warmup"], 1);
  EXPECT_EQ(job["rounds"], 1);
  EXPECT_EQ(job["threads_per_rank"], 1);
  EXPECT_EQ(job["model"]["n_embd"], 64);
  EXPECT_EQ(job["train"]["lr_decay_steps"], 50);
}

TEST(BenchPeers, OtherLossesAreNotCompared) {
  const TrainingFolder folder;
  const StandIn peer(folder, answer_of("[1.0, 0.5]"));
  const Compared done = peer.compare();
  EXPECT_EQ(done.ended.code, 1) << done.ended.err;
  expect_not_measured(row_of(done.report, peer_row), "failed", "not the same training");
  EXPECT_EQ(row_of(done.report, "FULL_SHARD, 2 ranks, fp32")["status"], "measured");
}

TEST(BenchPeers, AScriptsErrorIsTheRowsReason) {
  const TrainingFolder folder;
  const auto reason_of = [&](const std::string& script, int code, const std::string& status,
                             const std::string& reason) {
    SCOPED_TRACE(script);
    const StandIn peer(folder, script);
    const Compared done = peer.compare();
    EXPECT_EQ(done.ended.code, code) << done.ended.err;
    expect_not_measured(row_of(done.report, peer_row), status, reason);
    std::filesystem::remove_all(folder.path("peers"));
  };
  reason_of("echo no room >&2\nexit 9\n", 9, "failed", "no room");
  reason_of("exit 0\n", 1, "failed", "no row");
  reason_of("echo '[' > \"$answer\"\n", 1, "failed", "no row");
  reason_of(
      "echo '{\"rows\": [{\"status\": \"refused\", \"reason\": \"too old\"}]}' > \"$answer\"\n"
      "exit 3\n",
      3, "refused", "too old");
  reason_of("echo '{\"rows\": [{\"status\": \"measured\"}]}' > \"$answer\"\n", 1, "failed",
            "no samples/s");
}

// The peer's ranks may be in sessions of their own.
TEST(BenchPeers, APeerThatHangsIsEndedWithItsProcesses) {
  const TrainingFolder folder;
  const std::string sleep = "sleep 7777." + std::to_string(::getpid());
  const StandIn peer(folder, "setsid " + sleep + " &\n" + sleep + "\n");
  const Compared done =
      compared(folder, {"--strategies", "FULL_SHARD", "--world-sizes", "2", "--peer", "pytorch",
                        "--peer-modes", "fsdp2", "--peer-scripts", folder.path("peers"),
                        "--peer-python", folder.path("python"), "--row-time-limit", "5"});
  EXPECT_EQ(done.ended.code, 7) << done.ended.err;
  expect_not_measured(row_of(done.report, peer_row), "timed_out", "did not end within 5 s");
  std::string text = sleep;
  std::replace(text.begin(), text.end(), ' ', '\0');
  EXPECT_EQ(processes_with(text), 0);
}

TEST(BenchPeers, PeersWithoutTheirPackageAreRefused) {
  const TrainingFolder folder;
  const StandIn peer(folder, "exit 0\n");
  folder.write("python",
               "#!/bin/sh\necho \"ModuleNotFoundError: No module named 'torch'\" >&2\nexit 1\n");
  const Compared done = peer.compare();
  EXPECT_EQ(done.ended.code, 3) << done.ended.err;
  expect_not_measured(row_of(done.report, peer_row), "refused", "cannot import torch");
  EXPECT_NE(done.ended.out.find("No module named 'torch'"), std::string::npos) << done.ended.out;
}

TEST(BenchPeers, APythonWithoutOutputIsRefusedWithItsExitCode) {
  const TrainingFolder folder;
  const StandIn peer(folder, "exit 0\n");
  folder.write("python", "#!/bin/sh\nexit 41\n");
  const Compared done = peer.compare();
  EXPECT_EQ(done.ended.code, 3) << done.ended.err;
  expect_not_measured(row_of(done.report, peer_row), "refused",
                      "cannot import torch (it ended with 41)");
}

// A peer would train another task.
TEST(BenchPeers, ARecipeThatPeersCannotTrainIsRefused) {
  const std::vector<std::pair<std::string, std::string>> others = {
      {"model.lora.target_modules", "all-linear"},
      {"sharding.ignored_modules", "[transformer.ln_f]"},
      {"train.parameter_groups", "[{pattern: '.*bias', weight_decay: 0}]"}};
  for (const auto& [key, value] : others) {
    const TrainingFolder folder;
    const StandIn peer(folder, "touch " + folder.path("called") + "\n" + answer_of("[1]"));
    const Compared done = peer.compare({{key, value}});
    EXPECT_EQ(done.ended.code, 3) << done.ended.err;
    expect_not_measured(row_of(done.report, peer_row), "refused", "peers train the whole model");
    EXPECT_EQ(row_of(done.report, "FULL_SHARD, 2 ranks, fp32")["status"], "measured") << key;
    EXPECT_FALSE(std::filesystem::exists(folder.path("called"))) << key;
  }
}

}  // namespace
}  // namespace tessera::bench
