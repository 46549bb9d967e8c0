// log.summary, log.trace, log.csv and log.tensorboard of real runs: their contents, that they agree
// with log.jsonl, how a resumed run continues them, and that they change no bit.
#include <sys/stat.h>

#include <cmath>
#include <csignal>
#include <set>
#include <string_view>

#include "logs/event_file.h"
#include "logs/run_summary.h"
#include "logs/tensorboard_log.h"
#include "tests/cli/training_testing.h"

namespace tessera::logs {
namespace {

namespace fs = std::filesystem;
using testing::Ended;
using testing::metrics_in;
using testing::read_text;
using testing::Settings;
using testing::train;
using testing::TrainingFolder;

Settings all_logs(const TrainingFolder& folder) {
  return {{"log.jsonl", folder.path("m.jsonl")},
          {"log.csv", folder.path("m.csv")},
          {"log.tensorboard", folder.path("tb")},
          {"log.summary", folder.path("summary.json")},
          {"log.trace", folder.path("trace.json")}};
}

Settings saving(const TrainingFolder& folder) {
  return {{"checkpoint.dir", folder.path("out")}, {"checkpoint.every", "2"}};
}

std::vector<nlohmann::json> events_of(const nlohmann::json& trace, const std::string& category) {
  std::vector<nlohmann::json> events;
  for (const nlohmann::json& event : trace.at("traceEvents")) {
    if (event.value("cat", "") == category) events.push_back(event);
  }
  return events;
}

// The events of one rank and step, in a lane.
std::vector<nlohmann::json> events_of(const nlohmann::json& trace, int rank, int lane,
                                      std::int64_t step) {
  std::vector<nlohmann::json> events;
  for (const nlohmann::json& event : trace.at("traceEvents")) {
    if (event["ph"] == "X" && event["pid"] == rank && event["tid"] == lane &&
        event["args"]["step"] == step) {
      events.push_back(event);
    }
  }
  return events;
}

TEST(RunSummaryFile, NumbersAreOfTheLastSteps) {
  LastValues<int> last(3);
  for (int step = 4; step <= 11; ++step) {
    last.add(step);
    std::set<int> expected;
    for (int kept = std::max(4, step - 2); kept <= step; ++kept) expected.insert(kept);
    EXPECT_EQ(std::set<int>(last.values().begin(), last.values().end()), expected);
  }
}

// The run was stopped before the end of its warm-up: a step takes long enough for that.
TEST(RunSummaryFile, IsWrittenForARunThatWasStoppedInItsFirstSteps) {
  const TrainingFolder folder;
  testing::Program program(
      testing::train_arguments(folder.small() + Settings{{"train.steps", "1000000"},
                                                         {"data.batch_size", "512"},
                                                         {"log.summary", folder.path("s.json")},
                                                         {"log.jsonl", folder.path("m.jsonl")}}),
      {{"OMP_NUM_THREADS", "1"}});
  ASSERT_TRUE(testing::eventually([&] { return testing::lines_of(folder.path("m.jsonl")) > 0; }))
      << program.err();
  program.signal(SIGTERM);
  ASSERT_EQ(program.wait(), 128 + SIGTERM) << program.err();
  const nlohmann::json summary = nlohmann::json::parse(read_text(folder.path("s.json")));
  EXPECT_LE(summary["steps"], 3);
  EXPECT_GT(summary["step_s"].get<double>(), 0);
  EXPECT_FALSE(summary["timeline"]["ranks"][0]["lanes"].empty());
}

TEST(RunSummaryFile, HasTheTimesOfAStepByPurpose) {
  const TrainingFolder folder;
  const Ended ended = train(2, folder.small() + all_logs(folder) + Settings{{"train.steps", "8"}});
  const nlohmann::json summary = nlohmann::json::parse(read_text(folder.path("summary.json")));
  const std::vector<nlohmann::json> steps = metrics_in(folder.path("m.jsonl"));
  EXPECT_EQ(summary["format"], "tessera-run-summary");
  EXPECT_EQ(summary["version"], 1);
  EXPECT_EQ(summary["world_size"], 2);
  EXPECT_EQ(summary["steps"], 8);
  EXPECT_EQ(summary["units"], 3);
  EXPECT_EQ(summary["lost"], 0);
  EXPECT_GT(summary["parameters"].get<std::int64_t>(), 10'000);
  EXPECT_EQ(summary["peak_bytes"].size(), 2u);
  EXPECT_EQ(summary["placed_steps"], (nlohmann::json{5, 5}));  // three are recorded
  EXPECT_TRUE(summary["slowest_rank"] == 0 || summary["slowest_rank"] == 1);
  const double step_s = summary["step_s"];
  EXPECT_GT(step_s, 0);
  double exposed = 0;
  for (const char* phase : {"gather_forward", "gather_backward", "reduce", "all_reduce", "other"})
    exposed += summary["exposed_s"][phase].get<double>();
  EXPECT_EQ(summary["exposed_s"].size(), 5u);
  EXPECT_LT(exposed, step_s);
  EXPECT_GT(summary["engine_s_per_unit"].get<double>(), 0);
  EXPECT_LT(summary["engine_s_per_unit"].get<double>(), step_s);
  std::int64_t bytes = 0;
  std::set<std::string> collectives;
  for (const nlohmann::json& collective : summary["collectives"]) {
    bytes += collective["bytes"].get<std::int64_t>();
    collectives.insert(collective["phase"].get<std::string>() + " " +
                       collective["collective"].get<std::string>());
    EXPECT_GT(collective["calls"], 0);
  }
  EXPECT_EQ(bytes, steps.back()["comm_bytes"]);
  EXPECT_EQ(collectives, (std::set<std::string>{"forward all_gather", "backward all_gather",
                                                "reduce reduce_scatter"}));
  for (const char* words :
       {"8 steps, ", "exposed communication of a step: ", "computes longest", "forward all_gather",
        "host time of the engine: ", "memory in fixed places: 5 of 8 steps"}) {
    EXPECT_NE(ended.err.find(words), std::string::npos) << words << "\n" << ended.err;
  }
}

// A plan does not count the memory of a recorder.
TEST(RunSummaryFile, MemoryIsAsPlanned) {
  const TrainingFolder folder;
  for (const int ranks : {1, 2}) {
    const Ended ended = train(ranks, folder.small() + all_logs(folder) +
                                         Settings{{"log.memory", folder.path("memory.json")}});
    EXPECT_EQ(ended.err.find("warning"), std::string::npos) << ended.err;
  }
}

TEST(RunSummaryFile, TheLanesOfItsTimelineAddUpToTheStep) {
  const TrainingFolder folder;
  train(2, folder.small() + all_logs(folder) + Settings{{"train.steps", "8"}});
  const nlohmann::json summary = nlohmann::json::parse(read_text(folder.path("summary.json")));
  const nlohmann::json& timeline = summary["timeline"];
  const std::int64_t step = timeline["step"];
  EXPECT_EQ(step, 6);  // in the middle of the steps after the first three
  ASSERT_EQ(timeline["ranks"].size(), 2u);
  for (const nlohmann::json& rank : timeline["ranks"]) {
    std::set<std::string> lanes;
    for (const nlohmann::json& lane : rank["lanes"]) {
      lanes.insert(lane["name"]);
      double sum = 0, at = 0;
      const double first = lane["spans"].front()["start_s"], last = lane["spans"].back()["start_s"];
      for (const nlohmann::json& span : lane["spans"]) {
        EXPECT_GE(span["start_s"].get<double>(), at - 1e-9) << lane["name"];
        at = span["end_s"];
        sum += at - span["start_s"].get<double>();
        EXPECT_FALSE(span["name"].get<std::string>().empty());
        EXPECT_FALSE(span["phase"].get<std::string>().empty());
      }
      if (lane["name"] != "compute" || rank["rank"] != 0) continue;
      EXPECT_NEAR(sum, at - first, 1e-9 * static_cast<double>(lane["spans"].size()));
      // The step of log.jsonl begins before the recorded one and ends in its last span.
      EXPECT_LE(last - first, metrics_in(folder.path("m.jsonl"))[5]["step_s"].get<double>() + 1e-6);
    }
    for (const char* lane : {"compute", "gather", "reduce", "copy"})
      EXPECT_TRUE(lanes.contains(lane));
  }
}

// Short runs, one rank, and a run that has nothing left to do.
TEST(RunSummaryFile, IsRightForShortRuns) {
  const TrainingFolder folder;
  const Settings settings =
      folder.small() + saving(folder) + Settings{{"log.summary", folder.path("summary.json")}};
  const Ended ended = train(1, settings + Settings{{"train.steps", "2"}});
  const nlohmann::json summary = nlohmann::json::parse(read_text(folder.path("summary.json")));
  EXPECT_EQ(summary["steps"], 2);
  EXPECT_EQ(summary["world_size"], 1);
  EXPECT_TRUE(summary["collectives"].empty());
  EXPECT_EQ(ended.err.find("exposed communication"), std::string::npos);
  const std::string before = read_text(folder.path("summary.json"));
  train(1, settings + Settings{{"train.steps", "2"}});
  EXPECT_EQ(read_text(folder.path("summary.json")), before);
}

TEST(TraceFile, FollowsTheTraceEventFormat) {
  const TrainingFolder folder;
  train(3, folder.small() + all_logs(folder) + saving(folder) +
               Settings{{"train.steps", "8"}, {"log.trace_steps", "[4, 6]"}});
  const nlohmann::json trace = nlohmann::json::parse(read_text(folder.path("trace.json")));
  EXPECT_EQ(trace["displayTimeUnit"], "ms");
  std::set<std::pair<int, std::string>> processes;
  std::map<std::pair<int, int>, std::string> threads;
  for (const nlohmann::json& event : trace["traceEvents"]) {
    ASSERT_TRUE(event.at("name").is_string());
    ASSERT_TRUE(event.at("pid").is_number_integer());
    ASSERT_TRUE(event.at("tid").is_number_integer());
    ASSERT_TRUE(event.at("args").is_object());
    if (event.at("ph") == "M") {
      if (event["name"] == "process_name") processes.emplace(event["pid"], event["args"]["name"]);
      if (event["name"] == "thread_name")
        threads[{event["pid"], event["tid"]}] = event["args"]["name"];
      continue;
    }
    ASSERT_EQ(event["ph"], "X") << event;
    ASSERT_TRUE(event.at("ts").is_number());
    ASSERT_GE(event.at("dur").get<double>(), 0) << event;
    ASSERT_TRUE(threads.contains({event["pid"], event["tid"]})) << event;
    const std::int64_t step = event["args"]["step"];
    EXPECT_TRUE(step >= 4 && step <= 6) << event;
  }
  EXPECT_EQ(processes,
            (std::set<std::pair<int, std::string>>{{0, "rank 0"}, {1, "rank 1"}, {2, "rank 2"}}));
  EXPECT_EQ((threads[{2, 1}]), "compute");
  EXPECT_EQ((threads[{2, 2}]), "gather");
  EXPECT_EQ((threads[{2, 3}]), "reduce");
  EXPECT_EQ(events_of(trace, "step").size(), 9u);
  EXPECT_EQ(events_of(trace, "save").size(), 6u);  // after steps 4 and 6
  for (const nlohmann::json& event : events_of(trace, "all_gather")) {
    EXPECT_GT(event["args"]["bytes"], 0);
    EXPECT_TRUE(event["args"]["waited_us"].is_number());
    EXPECT_TRUE(event["name"] == "(root)" ||
                event["name"].get<std::string>().find("h.") != std::string::npos)
        << event;
  }
}

// For each rank, computation and waits make up the step, waits are the time that log.jsonl calls
// exposed, and gathers and reductions move the bytes that it reports.
TEST(TraceFile, LanesAddUpToTheMetrics) {
  const TrainingFolder folder;
  train(2, folder.small() + all_logs(folder) +
               Settings{{"train.steps", "7"}, {"log.trace_steps", "[4, 7]"}});
  const nlohmann::json trace = nlohmann::json::parse(read_text(folder.path("trace.json")));
  const std::vector<nlohmann::json> metrics = metrics_in(folder.path("m.jsonl"));
  std::map<std::int64_t, double> begins, ends;  // of rank 0
  for (const nlohmann::json& step : events_of(trace, "step")) {
    const std::int64_t number = step["args"]["step"];
    const double begin = step["ts"], end = begin + step["dur"].get<double>();
    double busy = 0, waits = 0, waited = 0, last = begin;
    for (const nlohmann::json& event : events_of(trace, step["pid"], 1, number)) {
      if (event["ts"].get<double>() >= end - 1e-2) continue;  // after the step
      (event["cat"] == "wait" ? waits : busy) += event["dur"].get<double>();
      last = std::max(last, event["ts"].get<double>());
    }
    EXPECT_NEAR(busy + waits, end - begin, 1e-3 * (end - begin) + 1);  // both from the same clock
    std::int64_t bytes = 0;
    for (const int lane : {2, 3}) {
      for (const nlohmann::json& event : events_of(trace, step["pid"], lane, number)) {
        bytes += event["args"]["bytes"].get<std::int64_t>();
        waited += event["args"]["waited_us"].get<double>();
      }
    }
    const nlohmann::json& said = metrics.at(static_cast<std::size_t>(number - 1));
    EXPECT_EQ(bytes, said["comm_bytes"]);
    EXPECT_NEAR(waited, waits, 0.02 * waits + 1);
    if (step["pid"] != 0) continue;
    // This holds whatever uses the processor between two reads of the clock: the recorded part of a
    // step before its last span is within the step of log.jsonl, which is between the recorded
    // steps before and after it; a recorded wait contains the counted one.
    const double step_s = said["step_s"];
    EXPECT_LE((last - begin) * 1e-6, step_s + 1e-6);
    EXPECT_GE(waits * 1e-6, said["exposed_comm_s"].get<double>() - 1e-6);
    begins[number] = begin;
    ends[number] = end;
  }
  for (const std::int64_t number : {5, 6}) {
    const double step_s = metrics.at(static_cast<std::size_t>(number - 1))["step_s"];
    EXPECT_LE(step_s, (begins.at(number + 1) - ends.at(number - 1)) * 1e-6 + 1e-6);
  }
}

// When the disk is full in the middle of a step, the earlier steps stay in the file.
TEST(TraceFile, IsCompleteWhenTheDiskIsFull) {
  const TrainingFolder folder;
  std::string command = "ulimit -f 32; trap '' XFSZ; exec " + testing::program_path();
  for (const std::string& argument :
       testing::train_arguments(folder.small() + Settings{{"train.steps", "200"},
                                                          {"log.trace", folder.path("trace.json")},
                                                          {"log.trace_steps", "[1, 200]"}})) {
    command += " '" + argument + "'";
  }
  const Ended ended = testing::run_program({"launch", "--", "sh", "-c", command});
  EXPECT_NE(ended.code, 0);
  EXPECT_NE(ended.err.find("log.trace: "), std::string::npos) << ended.err;
  const nlohmann::json trace = nlohmann::json::parse(read_text(folder.path("trace.json")));
  EXPECT_GT(events_of(trace, "step").size(), 0u);
  EXPECT_LT(events_of(trace, "step").size(), 200u);
}

TEST(TraceFile, HasTheFirstTypicalSteps) {
  const TrainingFolder folder;
  const auto traced = [&](const std::string& steps) {
    train(1, folder.small() +
                 Settings{{"train.steps", steps}, {"log.trace", folder.path("trace.json")}});
    std::vector<int> numbers;
    for (const nlohmann::json& step :
         events_of(nlohmann::json::parse(read_text(folder.path("trace.json"))), "step")) {
      numbers.push_back(step["args"]["step"]);
    }
    return numbers;
  };
  EXPECT_EQ(traced("9"), (std::vector<int>{4, 5, 6}));
  EXPECT_EQ(traced("4"), (std::vector<int>{2, 3, 4}));
  EXPECT_EQ(traced("1"), (std::vector<int>{1}));
}

std::vector<std::int64_t> steps_of_events(const std::string& file) {
  const std::string content = read_text(file);
  std::string_view rest = content;
  std::vector<std::int64_t> steps;
  while (const auto event = take_tf_record(rest)) steps.push_back(step_of_event(*event).value());
  EXPECT_TRUE(rest.empty());
  return steps;
}

std::vector<std::int64_t> steps_of_rows(const std::string& file) {
  std::istringstream stream(read_text(file));
  std::string line;
  std::getline(stream, line);
  EXPECT_TRUE(line.starts_with("step,loss,grad_norm,lr,"));
  const auto commas = std::count(line.begin(), line.end(), ',');
  std::vector<std::int64_t> steps;
  while (std::getline(stream, line)) {
    EXPECT_EQ(std::count(line.begin(), line.end(), ','), commas) << line;
    steps.push_back(std::stoll(line));
  }
  return steps;
}

// All files get the steps that a run repeats again, and keep the earlier ones.
TEST(RunLogFiles, AResumedRunContinuesThem) {
  const TrainingFolder folder;
  const Settings settings = folder.small() + all_logs(folder) + saving(folder) +
                            Settings{{"train.steps", "5"},
                                     {"log.trace_steps", "[2, 5]"},
                                     {"data.valid", folder.path("text.txt")},
                                     {"train.eval_every", "2"},
                                     {"train.eval_batches", "1"}};
  train(2, settings);
  fs::remove_all(folder.path("out/step-5"));
  fs::remove_all(folder.path("out/step-4"));
  fs::remove(folder.path("out/latest"));
  const std::string rows = read_text(folder.path("m.csv"));
  std::ofstream(folder.path("m.csv"), std::ios::app) << "6,2.";  // a crash in the middle of a row
  std::ofstream(folder.path("tb/events.out.tfevents.tessera"), std::ios::app) << "\x14";
  const Ended ended = train(2, settings);
  EXPECT_NE(ended.err.find("resumed from"), std::string::npos) << ended.err;
  EXPECT_EQ(steps_of_rows(folder.path("m.csv")),
            (std::vector<std::int64_t>{1, 2, 2, 3, 4, 4, 5, 5}));
  EXPECT_EQ(read_text(folder.path("m.csv")).substr(0, rows.find("\n3,")),
            rows.substr(0, rows.find("\n3,")));
  EXPECT_EQ(steps_of_events(folder.path("tb/events.out.tfevents.tessera")),
            (std::vector<std::int64_t>{0, 1, 2, 2, 3, 4, 4, 5, 5}));
  const nlohmann::json trace = nlohmann::json::parse(read_text(folder.path("trace.json")));
  std::multiset<std::pair<int, int>> steps;
  double before = 0;
  for (const nlohmann::json& step : events_of(trace, "step")) {
    steps.emplace(step["pid"], step["args"]["step"]);
    if (step["pid"] != 0) continue;
    EXPECT_GT(step["ts"].get<double>(), before);
    before = step["ts"];
  }
  EXPECT_EQ(steps, (std::multiset<std::pair<int, int>>{
                       {0, 2}, {0, 3}, {0, 4}, {0, 5}, {1, 2}, {1, 3}, {1, 4}, {1, 5}}));
  // A run from the beginning starts the files over.
  fs::remove_all(folder.path("out"));
  train(1, settings + Settings{{"train.steps", "2"}, {"log.trace_steps", "[2, 2]"}});
  EXPECT_EQ(steps_of_rows(folder.path("m.csv")), (std::vector<std::int64_t>{1, 2, 2}));
  EXPECT_EQ(steps_of_events(folder.path("tb/events.out.tfevents.tessera")),
            (std::vector<std::int64_t>{0, 1, 2, 2}));
  EXPECT_EQ(events_of(nlohmann::json::parse(read_text(folder.path("trace.json"))), "step").size(),
            1u);
}

// A single line without a newline is not a log that a crash cut off, unless it begins like one.
TEST(RunLogFiles, AFileOfOneLineThatIsNotALogIsLeftAlone) {
  const TrainingFolder folder;
  const std::string file = folder.path("mine.json");
  const auto run = [&](const std::string& key, const std::string& content) {
    std::ofstream(file) << content;
    return testing::run_program(
        testing::train_arguments(folder.small() + Settings{{"train.steps", "1"}, {key, file}}));
  };
  for (const char* key : {"log.trace", "log.csv", "log.jsonl"}) {
    for (const char* precious : {R"({"precious": 1})", R"({"step": "one"})", "step,count"}) {
      const Ended ended = run(key, precious);
      EXPECT_NE(ended.code, 0) << key;
      EXPECT_NE(ended.err.find(key), std::string::npos) << ended.err;
      EXPECT_EQ(read_text(file), precious) << key;
    }
  }
  EXPECT_EQ(run("log.trace", R"({"displayTimeUnit":"ms","oth)").code, 0);
  EXPECT_EQ(run("log.csv", "step,lo").code, 0);
  EXPECT_EQ(run("log.jsonl", R"({"step": 1, "lo)").code, 0);
}

TEST(RunLogFiles, ChangeNoBitOfARun) {
  const TrainingFolder folder;
  for (const char* strategy : {"FULL_SHARD", "NO_SHARD", "SHARD_GRAD_OP"}) {
    const Settings settings = folder.small() + Settings{{"sharding.sharding_strategy", strategy},
                                                        {"train.steps", "5"},
                                                        {"log.jsonl", folder.path("plain.jsonl")}};
    train(2, settings);
    train(2, settings + all_logs(folder) + Settings{{"log.trace_steps", "[1, 5]"}});
    EXPECT_EQ(testing::losses_in(folder.path("plain.jsonl")),
              testing::losses_in(folder.path("m.jsonl")));
  }
}

// The table and the events have the numbers of log.jsonl.
TEST(RunLogFiles, HaveTheNumbersOfTheMetrics) {
  const TrainingFolder folder;
  train(1, folder.small() + all_logs(folder));
  const std::vector<nlohmann::json> steps = metrics_in(folder.path("m.jsonl"));
  std::istringstream stream(read_text(folder.path("m.csv")));
  std::string names, row;
  std::getline(stream, names);
  for (const nlohmann::json& step : steps) {
    ASSERT_TRUE(std::getline(stream, row));
    std::istringstream name_stream(names), row_stream(row);
    std::string name, value;
    std::size_t columns = 0;
    while (std::getline(name_stream, name, ',') && std::getline(row_stream, value, ',')) {
      if (!step.contains(name)) continue;
      EXPECT_EQ(std::stod(value), step[name].get<double>()) << name;
      ++columns;
    }
    EXPECT_EQ(columns, step.size());
  }
}

// Values from the paper that defines it, and from RFC 3720's examples.
TEST(EventFile, CyclicRedundancyChecks) {
  EXPECT_EQ(crc32c("123456789"), 0xe3069283U);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aaU);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43U);
  EXPECT_EQ(crc32c(""), 0U);
}

TEST(EventFile, DamagedRecordsAreIgnored) {
  const std::string good = tf_record(scalar_event(1.5, 300, {{"train/loss", 2.5}}));
  std::string_view rest = good;
  const auto event = take_tf_record(rest);
  ASSERT_TRUE(event.has_value());
  EXPECT_TRUE(rest.empty());
  EXPECT_EQ(step_of_event(*event), 300);
  for (std::size_t byte = 0; byte < good.size(); ++byte) {
    std::string bad = good;
    bad[byte] = static_cast<char>(bad[byte] ^ 0x10);
    rest = bad;
    EXPECT_EQ(take_tf_record(rest), std::nullopt) << byte;
    rest = std::string_view(good).substr(0, byte);
    EXPECT_EQ(take_tf_record(rest), std::nullopt) << byte;
    (void)step_of_event(std::string_view(bad).substr(12));
  }
  EXPECT_EQ(step_of_event("\x10\x80"), std::nullopt);
  EXPECT_EQ(step_of_event("\x0a\x7f"), std::nullopt);
}

}  // namespace
}  // namespace tessera::logs
