// `tessera bench` when something goes wrong: bad input, rows that fail, hang or do not fit,
// signals, full disks. The tests expect one line with the cause, the right exit code, no number
// that was not measured, and no process left behind.
#include "tests/bench/bench_testing.h"

namespace tessera::bench {
namespace {

using testing::Compared;
using testing::compared;
using testing::Ended;
using testing::eventually;
using testing::expect_not_measured;
using testing::processes_with;
using testing::Program;
using testing::read_text;
using testing::row_of;
using testing::run_bench;
using testing::run_program;
using testing::Settings;
using testing::TrainingFolder;

void expect_bench_refused(const Ended& ended, int code, const std::string& text) {
  EXPECT_EQ(ended.code, code) << ended.err;
  EXPECT_NE(ended.err.find(text), std::string::npos) << ended.err;
  EXPECT_EQ(std::count(ended.err.begin(), ended.err.end(), '\n'), 1) << ended.err;
  EXPECT_EQ(ended.out, "");
}

// Like eventually(), with a longer limit for a busy machine.
template <class Condition>
bool within_a_minute(Condition condition) {
  for (int tries = 0; tries < 5; ++tries) {
    if (eventually(condition)) return true;
  }
  return false;
}

TEST(BenchInput, UnknownArgumentsAreRefused) {
  const TrainingFolder folder;
  const auto refused = [&](const std::vector<std::string>& options, int code,
                           const std::string& text) {
    SCOPED_TRACE(options.back());
    expect_bench_refused(run_bench(folder, options), code, text);
  };
  refused({"--strategies", "none,FULSHARD"}, 2, "did you mean FULL_SHARD?");
  refused({"--axis", "sharding.backward_prefech=1"}, 2, "did you mean sharding.backward_prefetch?");
  refused({"--axis", "data.batch_size"}, 2, "must be KEY=VALUE,VALUE");
  refused({"--set", "train.accumulation_ramp={2: 2}"}, 3, "all steps of a benchmark are alike");
  refused({"--precisions", "fp32,fp7"}, 3, "must be one of no | bf16");
  refused({"--prefetch", "EARLY"}, 3, "must be one of BACKWARD_PRE");
  refused({"--batch-sizes", "0"}, 3, "data.batch_size");
  refused({"--world-sizes", "0"}, 2, "from 1 to");
  refused({"--world-sizes", "two"}, 2, "--world-sizes");
  refused({"--steps", "0"}, 2, "must be a number from 1");
  refused({"--time-limit", "nan"}, 2, "must be a number");
  refused({"--strategies", "dp", "--world-sizes", "1"}, 2, "nothing to measure");
  refused({"--device-memory", "lots"}, 2, "must be a number of bytes");
  refused({"--peer", "jax"}, 2, "there are pytorch, sentence-transformers, deepspeed");
  refused({"--peer", "pytorch", "--peer-modes", "fsdp3"}, 2, "did you mean fsdp");
  refused({"--peer", "pytorch", "--peer-scripts", folder.path("none")}, 3, "does not exist");
  refused({"--peer", "pytorch", "--fill-cores"}, 2, "leave out --peer");
  refused({"--json", folder.path("no/such/place.json")}, 3, "cannot be written");
  refused({"--html", folder.path("no/such/place.html")}, 3, "cannot be written");
  refused({"--compare", folder.path("old.json")}, 3, "does not exist");
  refused({"--set", "model.n_embd=nothing"}, 3, "model.n_embd");
  expect_bench_refused(run_program({"bench"}), 2, "name a recipe");
  expect_bench_refused(run_program({"bench", folder.path("none.yaml")}), 3, "does not exist");
}

TEST(BenchInput, OtherFilesAreRefused) {
  const TrainingFolder folder;
  folder.write("notes.json", "{\"mine\": 1}");
  folder.write(
      "later.json",
      R"({"format": "tessera-bench", "version": 2, "recipe": "", "machine": {}, "rows": []})");
  folder.write(
      "rows.json",
      R"({"format": "tessera-bench", "version": 1, "recipe": "", "machine": {}, "rows": [1]})");
  for (const char* option : {"--json", "--compare"}) {
    expect_bench_refused(run_bench(folder, {option, folder.path("notes.json")}), 3,
                         "is not a report of tessera bench");
    expect_bench_refused(run_bench(folder, {option, folder.path("later.json")}), 3,
                         "has version 2");
    expect_bench_refused(run_bench(folder, {option, folder.path("rows.json")}), 3,
                         "a row has no id");
  }
  EXPECT_EQ(read_text(folder.path("notes.json")), "{\"mine\": 1}");
  folder.write(
      "other.json",
      R"({"format": "tessera-bench", "version": 1, "recipe": "x.yaml", "machine": {}, "rows": []})");
  expect_bench_refused(run_bench(folder, {"--json", folder.path("other.json")}), 3,
                       "is a report of \"x.yaml\"");
  folder.write("away.json", R"({"format": "tessera-bench", "version": 1, "recipe": ")" +
                                testing::example_recipe() +
                                R"(", "machine": {"processor": "6502"}, "rows": []})");
  expect_bench_refused(run_bench(folder, {"--json", folder.path("away.json")}), 3,
                       "was measured with processor \"6502\"");
}

// Each member that is read has a type.
TEST(BenchInput, DamagedFilesAreReported) {
  const TrainingFolder folder;
  const std::string file = folder.path("old.json");
  const Compared done = compared(folder, {"--strategies", "none", "--world-sizes", "1"});
  ASSERT_EQ(done.ended.code, 0) << done.ended.err;
  const auto damaged = [&](const char* place, const nlohmann::json& value) {
    SCOPED_TRACE(place);
    nlohmann::json report = done.report;
    report[nlohmann::json::json_pointer(place)] = value;
    folder.write("old.json", report.dump());
    for (const char* option : {"--json", "--compare"}) {
      expect_bench_refused(run_bench(folder, {option, file}), 3, "is damaged: ");
    }
  };
  damaged("/recipe", 1);
  damaged("/machine", "here");
  damaged("/settings/steps", "many");
  damaged("/rows/0/samples_per_s", nullptr);
  damaged("/rows/0/samples_per_s/median", "fast");
  damaged("/rows/0/samples_per_s/rounds", nlohmann::json::array({"fast"}));
  damaged("/rows/0/step_s", 3);
  damaged("/rows/0/world_size", -1);
  damaged("/rows/0/axes", nlohmann::json::array({1}));
  damaged("/rows/0/memory/planned", 1e300);
  damaged("/rows/0/bytes_moved", nlohmann::json::array({1}));
  damaged("/rows/0/products", {{"step_s", 1}});
  damaged("/rows/0/peer", {{"name", 1}});
  damaged("/rows/0/exit_code", "none");
  // A missing member means unknown.
  nlohmann::json report = done.report;
  for (const char* name : {"products", "memory", "peer", "variant", "launcher"})
    report["rows"][0].erase(name);
  report["rows"][0]["id"] = "another";
  folder.write("bench.json", report.dump());
  EXPECT_EQ(compared(folder, {"--strategies", "none", "--world-sizes", "1"}).ended.code, 0);
}

// A world that the group does not divide fails its row among other rows; as the only row it is an
// error.
TEST(BenchRows, AWorldThatTheGroupDoesNotDivideIsRefused) {
  const TrainingFolder folder;
  const Settings groups = {{"sharding.group_size", "3"}};
  expect_bench_refused(
      run_bench(folder, {"--strategies", "HYBRID_SHARD", "--world-sizes", "2"}, groups), 3,
      "does not divide the 2 ranks");
  const Compared done =
      compared(folder, {"--strategies", "HYBRID_SHARD,NO_SHARD", "--world-sizes", "2"}, groups);
  EXPECT_EQ(done.ended.code, 3) << done.ended.err;
  expect_not_measured(row_of(done.report, "HYBRID_SHARD, 2 ranks, fp32"), "refused",
                      "does not divide the 2 ranks");
  EXPECT_EQ(row_of(done.report, "NO_SHARD, 2 ranks, fp32")["status"], "measured");
  EXPECT_NE(done.ended.out.find("HYBRID_SHARD, 2 ranks: refused: "), std::string::npos)
      << done.ended.out;
}

TEST(BenchRows, RowsThatDoNotFitAreNotStarted) {
  const TrainingFolder folder;
  const Compared done =
      compared(folder, {"--strategies", "none", "--world-sizes", "1", "--device-memory", "100kB"});
  EXPECT_EQ(done.ended.code, 6) << done.ended.err;
  const nlohmann::json row = done.report["rows"][0];
  expect_not_measured(row, "does_not_fit", "a rank needs");
  EXPECT_GT(row["memory"]["planned"].get<double>(), 100e3);
  EXPECT_TRUE(row["memory"]["measured"].is_null());
}

// The row has the run's own error and exit code, whatever else is measured.
TEST(BenchRows, AFailedRowHasItsReason) {
  const TrainingFolder folder;
  const Compared done = compared(folder, {"--strategies", "none,NO_SHARD", "--world-sizes", "2"},
                                 {{"data.train", folder.path("missing.txt")}});
  EXPECT_EQ(done.ended.code, 4) << done.ended.err;
  for (const nlohmann::json& row : done.report["rows"]) {
    expect_not_measured(row, "failed", "missing.txt");
    EXPECT_EQ(row["exit_code"], 4);
  }
}

// File names may contain any bytes.
TEST(BenchRows, BytesThatAreNotTextAreReplaced) {
  const TrainingFolder folder;
  const Compared done = compared(
      folder, {"--strategies", "none", "--world-sizes", "1", "--html", folder.path("page.html")},
      {{"data.train", folder.path("missing\xff.txt")}});
  EXPECT_EQ(done.ended.code, 4) << done.ended.err;
  expect_not_measured(done.report["rows"][0], "failed", "missing");
  EXPECT_TRUE(std::filesystem::exists(folder.path("page.html")));
}

// The processes whose command line has this text.
std::vector<pid_t> pids_with(const std::string& text) {
  std::vector<pid_t> pids;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    if (read_text(entry.path() / "cmdline").find(text) != std::string::npos)
      pids.push_back(std::stoi(name));
  }
  return pids;
}

TEST(BenchRows, ACopyThatEndsEarlyFailsItsRow) {
  const TrainingFolder folder;
  std::vector<std::string> options = {
      "--strategies", "none",    "--world-sizes", "2", "--fill-cores",
      "--steps",      "1000000", "--rounds",      "1"};
  options.insert(options.end(), {"--set", "train.seed=" + std::to_string(::getpid())});
  Program program(testing::bench_arguments(folder, options), {{"OMP_NUM_THREADS", "1"}});
  ASSERT_TRUE(within_a_minute([&] {
    return program.err().find("pilot: none") != std::string::npos;
  })) << program.err();
  const std::string mark = folder.path("text.txt");
  ASSERT_TRUE(within_a_minute([&] {
    for (const pid_t pid : pids_with("train.steps=1000000000")) {
      if (read_text("/proc/" + std::to_string(pid) + "/cmdline").find(mark) == std::string::npos)
        continue;
      return ::kill(pid, SIGKILL) == 0;
    }
    return false;
  }));
  EXPECT_EQ(program.wait(), 128 + SIGKILL) << program.err();
  EXPECT_NE(program.err().find("a copy beside it was killed by signal 9"), std::string::npos)
      << program.err();
  EXPECT_TRUE(eventually([&] { return processes_with(mark) == 0; }));
}

TEST(BenchRows, ARowThatTakesTooLongIsKilled) {
  const TrainingFolder folder;
  const std::string mark = folder.path("text.txt");
  const Compared done = compared(folder, {"--strategies", "NO_SHARD", "--world-sizes", "2",
                                          "--row-time-limit", "2", "--steps", "1000000"});
  EXPECT_EQ(done.ended.code, 7) << done.ended.err;
  expect_not_measured(done.report["rows"][0], "timed_out", "did not end within 2 s");
  EXPECT_TRUE(eventually([&] { return processes_with(mark) == 0; }));
}

TEST(BenchRows, TheTotalLimitKeepsFinishedRows) {
  const TrainingFolder folder;
  // Without a limit a million steps would take longer than this test may.
  const Compared done = compared(folder, {"--strategies", "none,NO_SHARD", "--world-sizes", "2",
                                          "--time-limit", "4", "--steps", "1000000"});
  EXPECT_EQ(done.ended.code, 7) << done.ended.err;
  expect_not_measured(done.report["rows"][0], "not_run", "the time limit of 4 s had passed");
  EXPECT_EQ(processes_with(folder.path("text.txt")), 0);
}

TEST(BenchSignals, NothingIsLeftBehindAndTheFileCanBeContinued) {
  for (const int signal : {SIGINT, SIGTERM}) {
    const TrainingFolder folder;
    const std::string file = folder.path("bench.json");
    const std::vector<std::string> rows = {
        "--strategies", "none,NO_SHARD", "--world-sizes", "2", "--warmup", "1", "--json", file};
    std::vector<std::string> options = rows;
    options.insert(options.end(), {"--steps", "1000000"});
    Program program(testing::bench_arguments(folder, options), {{"OMP_NUM_THREADS", "1"}});
    // The pilots have ended, and the first row of a million steps runs.
    ASSERT_TRUE(within_a_minute([&] {
      return program.err().find("pilot: NO_SHARD") != std::string::npos;
    })) << program.err();
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    program.signal(signal);
    EXPECT_EQ(program.wait(), 128 + signal) << program.err();
    EXPECT_NE(program.err().find("stopped by signal"), std::string::npos);
    EXPECT_TRUE(eventually([&] { return processes_with(folder.path("text.txt")) == 0; }));
    options = rows;
    options.insert(options.end(), {"--steps", "1", "--rounds", "1"});
    const Ended ended = run_bench(folder, options);
    EXPECT_EQ(ended.code, 0) << ended.err;
  }
}

// Steps and rounds that are not given are taken from the file.
TEST(BenchSignals, TheSameCommandContinues) {
  const TrainingFolder folder;
  const std::vector<std::string> options = {
      "--strategies", "none,NO_SHARD",          "--world-sizes", "2", "--warmup", "1",
      "--json",       folder.path("bench.json")};
  Program program(testing::bench_arguments(folder, options), {{"OMP_NUM_THREADS", "1"}});
  ASSERT_TRUE(within_a_minute([&] {
    return program.err().find("round 2 of 3: none") != std::string::npos;
  })) << program.err();
  program.signal(SIGINT);
  EXPECT_EQ(program.wait(), 128 + SIGINT) << program.err();
  const auto steps_of = [&] {
    const auto report = nlohmann::json::parse(read_text(folder.path("bench.json")));
    for (const nlohmann::json& row : report["rows"]) {
      EXPECT_LE(row["samples_per_s"]["rounds"].size(), 3u);
    }
    return report["settings"]["steps"].get<int>();
  };
  const int steps = steps_of();
  const Ended ended = run_bench(folder, options);
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_EQ(steps_of(), steps);
  const auto report = nlohmann::json::parse(read_text(folder.path("bench.json")));
  EXPECT_EQ(report["settings"]["rounds"], 3);
  for (const nlohmann::json& row : report["rows"]) {
    EXPECT_EQ(row["samples_per_s"]["rounds"].size(), 3u) << row;
  }
}

// When a comparison is killed, its programs end too.
TEST(BenchSignals, AKilledComparisonLeavesNothingBehind) {
  const TrainingFolder folder;
  Program program(testing::bench_arguments(folder, {"--strategies", "NO_SHARD", "--world-sizes",
                                                    "2", "--steps", "1000000"}),
                  {{"OMP_NUM_THREADS", "1"}, {"TMPDIR", folder.path("")}});
  ASSERT_TRUE(within_a_minute([&] { return processes_with(folder.path("text.txt")) >= 4; }));
  program.signal(SIGKILL);
  EXPECT_EQ(program.wait(), 128 + SIGKILL);
  EXPECT_TRUE(eventually([&] { return processes_with(folder.path("text.txt")) == 0; }));
}

// If the file cannot be written during the run, the comparison continues and reports it at the end,
// after the table.
TEST(BenchOutput, AFileThatIsLostDuringTheRunDoesNotEndIt) {
  const TrainingFolder folder;
  std::filesystem::create_directory(folder.path("gone"));
  Program program(testing::bench_arguments(
                      folder, {"--strategies", "none,NO_SHARD", "--world-sizes", "2", "--steps",
                               "2", "--rounds", "2", "--json", folder.path("gone/bench.json"),
                               "--html", folder.path("page.html")}),
                  {{"OMP_NUM_THREADS", "1"}});
  ASSERT_TRUE(within_a_minute([&] {
    return program.err().find("pilot: none") != std::string::npos;
  })) << program.err();
  std::filesystem::remove_all(folder.path("gone"));
  EXPECT_EQ(program.wait(std::chrono::minutes(1)), 3) << program.err();
  EXPECT_NE(program.err().find("measuring goes on"), std::string::npos) << program.err();
  EXPECT_NE(program.err().find("round 2 of 2: NO_SHARD"), std::string::npos) << program.err();
  EXPECT_NE(program.out().find("NO_SHARD, 2 ranks "), std::string::npos) << program.out();
  EXPECT_TRUE(std::filesystem::exists(folder.path("page.html")));
}

TEST(BenchOutput, AFullDiskIsReported) {
  const TrainingFolder folder;
  const Ended ended = run_bench(folder, {"--strategies", "none", "--world-sizes", "1", "--steps",
                                         "1", "--rounds", "1", "--json", "/dev/full"});
  EXPECT_EQ(ended.code, 5) << ended.err;
  EXPECT_NE(ended.err.find("--json /dev/full: "), std::string::npos) << ended.err;
  EXPECT_NE(ended.err.find("ENOSPC"), std::string::npos) << ended.err;
  EXPECT_NE(ended.out.find("No parallelism"), std::string::npos);  // the measured rows are not lost
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/full"));
}

}  // namespace
}  // namespace tessera::bench
