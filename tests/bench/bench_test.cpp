// `tessera bench`: its rows, the relations between their numbers, and the file that it keeps.
#include "tests/bench/bench_testing.h"

namespace tessera::bench {
namespace {

using testing::Compared;
using testing::compared;
using testing::Ended;
using testing::read_text;
using testing::row_of;
using testing::run_bench;
using testing::TrainingFolder;

double median(const nlohmann::json& row, const char* name) {
  return row.at(name).at("median").get<double>();
}

// The medians over two steps are means; their product is the batch if both steps took the same
// time. The time of each step follows from the quartiles.
void expect_rate_and_time(const nlohmann::json& row, double batch) {
  const double rate = median(row, "samples_per_s");
  const double spread =
      row["samples_per_s"]["high"].get<double>() - row["samples_per_s"]["low"].get<double>();
  const double expected = batch * rate * rate / ((rate - spread) * (rate + spread));
  EXPECT_NEAR(rate * median(row, "step_s"), expected, 0.01 * expected);
}

TEST(Bench, RowsHaveLauncherRatesMemoryAndRatios) {
  const TrainingFolder folder;
  const Compared done =
      compared(folder, {"--strategies", "none,dp,FULL_SHARD", "--world-sizes", "1,2"});
  ASSERT_EQ(done.ended.code, 0) << done.ended.err;
  const nlohmann::json& report = done.report;
  EXPECT_EQ(report["format"], "tessera-bench");
  const std::string command = report["command"];
  for (const char* option : {" --strategies none,dp,FULL_SHARD", " --threads-per-rank 1",
                             " --steps 2", " --rounds 1", " --warmup 1"}) {
    EXPECT_NE(command.find(option), std::string::npos) << command;
  }
  EXPECT_EQ(report["model"]["architecture"], "gpt2");
  ASSERT_EQ(report["rows"].size(), 3u);  // `none` exists only for one rank
  const std::map<std::string, std::string> launchers = {
      {"none, 1 rank, fp32", "tessera train"},
      {"dp, 2 ranks, fp32", "tessera launch --threads 2"},
      {"FULL_SHARD, 2 ranks, fp32", "tessera launch --nproc-per-node 2"}};
  const nlohmann::json one = row_of(report, "none, 1 rank, fp32");
  for (const auto& [name, launcher] : launchers) {
    const nlohmann::json row = row_of(report, name);
    EXPECT_EQ(row["status"], "measured") << row;
    EXPECT_EQ(row["launcher"], launcher);
    const double rate = median(row, "samples_per_s");
    expect_rate_and_time(row, 2 * row["world_size"].get<double>());
    EXPECT_NEAR(median(row, "tokens_per_s"), 64 * rate, 0.01 * 64 * rate);
    EXPECT_NEAR(row["speedup"].get<double>(), rate / median(one, "samples_per_s"), 1e-9);
    EXPECT_NEAR(row["efficiency"].get<double>(),
                row["speedup"].get<double>() / row["world_size"].get<double>(), 1e-9);
    EXPECT_NEAR(row["memory"]["measured"].get<double>() / row["memory"]["planned"].get<double>(),
                1.0, 0.02);
    EXPECT_GT(row["memory"]["resident"].get<double>(), row["memory"]["measured"].get<double>());
    EXPECT_GT(row["products_share"].get<double>(), 0);
    EXPECT_GT(row["mfu"].get<double>(), 0);
    EXPECT_LT(row["mfu"].get<double>(), 1);
    EXPECT_EQ(row["losses"].size(), 3u);
  }
  EXPECT_EQ(one["comm_bytes"], 0);
  EXPECT_GT(row_of(report, "FULL_SHARD, 2 ranks, fp32")["comm_bytes"], 0);
  EXPECT_NE(done.ended.out.find("No parallelism "), std::string::npos) << done.ended.out;
  EXPECT_NE(done.ended.out.find("DP, 2 ranks "), std::string::npos);
  EXPECT_NE(done.ended.out.find(" samples/s"), std::string::npos);
  EXPECT_NE(done.ended.out.find("tessera launch --nproc-per-node 2\n"), std::string::npos);
}

// 6 x elements of the matrices x tokens, and attention's 6 x layers x width x tokens^2.
TEST(Bench, FlopsAreTheFormulas) {
  const TrainingFolder folder;
  const Compared done = compared(folder, {"--strategies", "none", "--world-sizes", "1"});
  ASSERT_EQ(done.ended.code, 0) << done.ended.err;
  const double width = 64, tokens = 64, layers = 2, vocabulary = 256;
  const double matrices = layers * 12 * width * width + vocabulary * width;
  EXPECT_DOUBLE_EQ(done.report["model"]["flops_per_sample"].get<double>(),
                   6 * matrices * tokens + 6 * layers * width * tokens * tokens);
  const nlohmann::json row = done.report["rows"][0];
  const double peak = row["products"]["best_flops_per_s"];
  EXPECT_NEAR(
      row["mfu"].get<double>(),
      done.report["model"]["flops_per_sample"].get<double>() * median(row, "samples_per_s") / peak,
      1e-9);
  EXPECT_NE(row["mfu_formula"].get<std::string>().find("6 x elements of the weight matrices"),
            std::string::npos);
}

TEST(Bench, AxesMakeRows) {
  const TrainingFolder folder;
  const Compared done =
      compared(folder, {"--strategies", "no-shard", "--world-sizes", "2", "--precisions",
                        "fp32,bf16", "--axis", "sharding.forward_prefetch=true,false"});
  ASSERT_EQ(done.ended.code, 0) << done.ended.err;
  ASSERT_EQ(done.report["rows"].size(), 4u);
  const nlohmann::json row = row_of(done.report, "NO_SHARD, 2 ranks, bf16, forward_prefetch false");
  EXPECT_EQ(row["precision"], "bf16");
  EXPECT_EQ(row["axes"], (nlohmann::json{{"sharding.mixed_precision", "bf16"},
                                         {"sharding.forward_prefetch", "false"}}));
  EXPECT_TRUE(row["speedup"].is_null());  // no row of one rank was measured
}

TEST(Bench, EveryListedAxisReachesItsKey) {
  const TrainingFolder folder;
  const Compared done =
      compared(folder, {"--strategies", "FULL_SHARD", "--world-sizes", "2", "--batch-sizes", "4",
                        "--prefetch", "NO_PREFETCH", "--offload", "device",
                        "--activation-checkpointing", "selective"});
  ASSERT_EQ(done.ended.code, 0) << done.ended.err;
  ASSERT_EQ(done.report["rows"].size(), 1u);
  const nlohmann::json row = done.report["rows"][0];
  EXPECT_EQ(row["batch_size"], 4);
  expect_rate_and_time(row, 8);
  EXPECT_EQ(row["axes"]["sharding.backward_prefetch"], "NO_PREFETCH");
  EXPECT_EQ(row["axes"]["sharding.activation_checkpointing"], "selective");
}

// Files and checkpoints of the recipe's own runs are not touched.
TEST(Bench, TheRecipesOwnFilesAreNotWritten) {
  const TrainingFolder folder;
  const Compared done = compared(folder, {"--strategies", "none", "--world-sizes", "1"},
                                 {{"checkpoint.dir", folder.path("out")},
                                  {"checkpoint.every", "1"},
                                  {"checkpoint.keep_best", "1"},
                                  {"checkpoint.export", folder.path("weights")},
                                  {"data.valid", folder.path("text.txt")},
                                  {"train.eval_every", "1"},
                                  {"log.jsonl", folder.path("own.jsonl")},
                                  {"log.memory", folder.path("own.json")}});
  ASSERT_EQ(done.ended.code, 0) << done.ended.err;
  for (const char* name : {"out", "weights", "own.jsonl", "own.json"}) {
    EXPECT_FALSE(std::filesystem::exists(folder.path(name))) << name;
  }
}

TEST(Bench, MeasurementsAreKept) {
  const TrainingFolder folder;
  const std::vector<std::string> both = {"--strategies", "none,NO_SHARD", "--world-sizes", "2"};
  const Compared first = compared(folder, {"--strategies", "none", "--world-sizes", "2"});
  ASSERT_EQ(first.ended.code, 0) << first.ended.err;
  const Compared second = compared(folder, both);
  ASSERT_EQ(second.ended.code, 0) << second.ended.err;
  const std::string name = "none, 1 rank, fp32";
  EXPECT_EQ(row_of(second.report, name)["samples_per_s"],
            row_of(first.report, name)["samples_per_s"]);
  EXPECT_EQ(second.ended.err.find("none, 1 rank"), std::string::npos) << second.ended.err;
  EXPECT_NE(second.ended.err.find("NO_SHARD, 2 ranks"), std::string::npos) << second.ended.err;
  EXPECT_GT(row_of(second.report, "NO_SHARD, 2 ranks, fp32")["speedup"].get<double>(), 0);
  // More rounds are added to the existing ones.
  std::vector<std::string> more = both;
  more.insert(more.end(), {"--rounds", "2"});
  const Compared third = compared(folder, more);
  ASSERT_EQ(third.ended.code, 0) << third.ended.err;
  const nlohmann::json rounds = row_of(third.report, name)["samples_per_s"]["rounds"];
  ASSERT_EQ(rounds.size(), 2u);
  EXPECT_EQ(rounds[0], row_of(first.report, name)["samples_per_s"]["rounds"][0]);
  std::vector<std::string> again = both;
  again.emplace_back("--again");
  const Compared fourth = compared(folder, again);
  ASSERT_EQ(fourth.ended.code, 0) << fourth.ended.err;
  EXPECT_EQ(row_of(fourth.report, name)["samples_per_s"]["rounds"].size(), 1u);
  EXPECT_NE(row_of(fourth.report, name)["samples_per_s"]["rounds"][0], rounds[0]);
}

// A later failure keeps the measurements and is reported; rows that are not requested stay.
TEST(Bench, FailuresKeepMeasurements) {
  const TrainingFolder folder;
  const std::vector<std::string> both = {"--strategies", "none,NO_SHARD", "--world-sizes", "2"};
  const Compared first = compared(folder, both);
  ASSERT_EQ(first.ended.code, 0) << first.ended.err;
  const Compared failed = compared(folder, {"--strategies", "none", "--world-sizes", "2", "--again",
                                            "--device-memory", "100kB"});
  EXPECT_EQ(failed.ended.code, 6) << failed.ended.err;
  ASSERT_EQ(failed.report["rows"].size(), 2u);
  for (const char* name : {"none, 1 rank, fp32", "NO_SHARD, 2 ranks, fp32"}) {
    EXPECT_EQ(row_of(failed.report, name)["samples_per_s"],
              row_of(first.report, name)["samples_per_s"]);
  }
  const nlohmann::json row = row_of(failed.report, "none, 1 rank, fp32");
  EXPECT_NE(row["reason"].get<std::string>().find("a rank needs"), std::string::npos);
  EXPECT_NE(failed.ended.out.find("failed later"), std::string::npos) << failed.ended.out;
  const Compared kept = compared(folder, both);
  EXPECT_EQ(kept.ended.code, 0) << kept.ended.err;
  EXPECT_EQ(kept.ended.err, "");
  // A kept row that is not requested is not judged, and with another number of steps rows are
  // measured again.
  const Compared other = compared(
      folder, {"--strategies", "none", "--world-sizes", "2", "--steps", "3", "--warmup", "2"});
  EXPECT_NE(other.ended.err.find("round 1 of 1: none"), std::string::npos) << other.ended.err;
  EXPECT_EQ(row_of(other.report, "none, 1 rank, fp32")["samples_per_s"]["rounds"].size(), 1u);
}

// Rows with other settings stay in the file, and are not used as baselines.
TEST(Bench, RowsWithOtherSettingsAreNotABaseline) {
  const TrainingFolder folder;
  const Compared first =
      compared(folder, {"--strategies", "none", "--world-sizes", "1"}, {{"data.batch_size", "4"}});
  ASSERT_EQ(first.ended.code, 0) << first.ended.err;
  const Compared second = compared(folder, {"--strategies", "NO_SHARD", "--world-sizes", "2"},
                                   {{"data.batch_size", "8"}});
  ASSERT_EQ(second.ended.code, 0) << second.ended.err;
  ASSERT_EQ(second.report["rows"].size(), 2u);
  EXPECT_TRUE(row_of(second.report, "NO_SHARD, 2 ranks, fp32")["speedup"].is_null());
  EXPECT_EQ(second.report["rows"][1], first.report["rows"][0]);
}

// One model is refused; each of the others has its own amount of work.
TEST(Bench, EachModelHasItsOwnWork) {
  const TrainingFolder folder;
  const Compared done = compared(
      folder, {"--strategies", "none", "--world-sizes", "1", "--axis", "model.n_embd=63,64,128"});
  EXPECT_EQ(done.ended.code, 3) << done.ended.err;
  ASSERT_EQ(done.report["rows"].size(), 3u);
  EXPECT_EQ(done.report["rows"][0]["status"], "refused");
  const nlohmann::json &narrow = done.report["rows"][1], &wide = done.report["rows"][2];
  EXPECT_GT(wide["model"]["flops_per_sample"].get<double>(),
            2 * narrow["model"]["flops_per_sample"].get<double>());
  EXPECT_GT(wide["products"]["flops"].get<double>(), 2 * narrow["products"]["flops"].get<double>());
}

// With copies the measurements differ from those without.
TEST(Bench, CopiesKeepTheOtherCoresBusy) {
  const TrainingFolder folder;
  const std::vector<std::string> rows = {"--strategies", "none", "--world-sizes", "2"};
  const Compared alone = compared(folder, rows);
  std::vector<std::string> options = rows;
  options.emplace_back("--fill-cores");
  const Compared beside = compared(folder, options);
  ASSERT_EQ(beside.ended.code, 0) << beside.ended.err;
  EXPECT_EQ(beside.report["settings"]["fill_cores"], true);
  EXPECT_EQ(testing::processes_with(folder.path("text.txt")), 0);
  ASSERT_EQ(beside.report["rows"].size(), 2u);  // the row without copies is kept
  EXPECT_NE(beside.report["rows"][0]["id"], alone.report["rows"][0]["id"]);
}

TEST(Bench, StepsAndRoundsFitTheBudget) {
  const TrainingFolder folder;
  const auto begin = std::chrono::steady_clock::now();
  const Ended ended = run_bench(folder, {"--strategies", "none", "--world-sizes", "1", "--budget",
                                         "3", "--json", folder.path("bench.json")});
  ASSERT_EQ(ended.code, 0) << ended.err;
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
  const auto report = nlohmann::json::parse(read_text(folder.path("bench.json")));
  EXPECT_GE(report["settings"]["steps"], 1);
  EXPECT_LE(report["settings"]["steps"], 20);
  EXPECT_EQ(report["rows"][0]["samples_per_s"]["rounds"].size(), report["settings"]["rounds"]);
}

}  // namespace
}  // namespace tessera::bench
