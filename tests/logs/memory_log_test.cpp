// log.memory: when it is written, its contents, and when the user is warned.
#include "logs/memory_log.h"

#include "tests/cli/training_testing.h"

namespace tessera::logs {
namespace {

using testing::Ended;
using testing::read_text;
using testing::Settings;
using testing::TrainingFolder;

RankMemory memory_of(std::size_t parameters, std::size_t activations) {
  RankMemory memory;
  memory.use[MemoryKind::parameters] = parameters;
  memory.use[MemoryKind::activations] = activations;
  return memory;
}

TEST(MemoryLogFile, WarnsOfDifferencesFromThePlan) {
  EXPECT_EQ(memory_difference(memory_of(1000, 1000), memory_of(1000, 1000)), std::nullopt);
  EXPECT_EQ(memory_difference(memory_of(1000, 1000), memory_of(1000, 1039)), std::nullopt);
  EXPECT_EQ(memory_difference(memory_of(1000, 1000), memory_of(1000, 1050)),
            "warning: memory is not as planned: in total 1.95 KiB planned and 2.00 KiB measured");
  EXPECT_EQ(memory_difference(memory_of(1000, 1000), memory_of(999, 1000)),
            "warning: memory is not as planned: parameters 1000 B planned and 999 B measured");
}

TEST(MemoryLogFile, LetsTheTotalBeLessWherePlansAreOfAnotherRank) {
  const auto told = [](const RankMemory& measured) {
    return memory_difference(memory_of(1000, 1000), measured, false, true);
  };
  EXPECT_EQ(told(memory_of(1000, 500)), std::nullopt);
  EXPECT_NE(told(memory_of(1000, 1050)), std::nullopt);
  EXPECT_NE(told(memory_of(999, 500)), std::nullopt);  // parameters are exact
}

// Checks both halves of the file, and that they agree where they must.
void expect_as_planned(const std::string& file) {
  const nlohmann::json log = nlohmann::json::parse(read_text(file));
  ASSERT_EQ(log.size(), 4u);  // nothing lies in files or on a host
  EXPECT_TRUE(log["placed"].contains("planned") && log["placed"].contains("measured"));
  EXPECT_EQ(log["format"], "tessera-run-memory");
  for (const char* kind : {"parameters", "gradients", "optimizer", "communication"}) {
    EXPECT_EQ(log["planned"][kind], log["measured"][kind]) << kind;
    EXPECT_GT(log["measured"][kind].get<std::int64_t>(), 0) << kind;
  }
  const auto planned = log["planned"]["total"].get<double>();
  EXPECT_NEAR(planned, log["measured"]["total"].get<double>(), 0.02 * planned);
}

TEST(MemoryLogFile, HasPlanAndMeasurement) {
  const TrainingFolder folder;
  const std::string file = folder.path("logs/memory.json");  // the folder is created
  const Ended ended = testing::train(2, folder.small() + Settings{{"log.memory", file}});
  EXPECT_EQ(ended.err.find("warning"), std::string::npos) << ended.err;
  expect_as_planned(file);
}

// A run of one step, which has its moments at the end, and a resumed run, which has them from the
// start.
TEST(MemoryLogFile, IsRightForShortAndResumedRuns) {
  const TrainingFolder folder;
  const std::string file = folder.path("memory.json");
  const Settings settings = folder.small() + Settings{{"log.memory", file},
                                                      {"checkpoint.dir", folder.path("out")},
                                                      {"checkpoint.every", "1"}};
  const auto train = [&](const char* steps) {
    const Ended ended = testing::train(2, settings + Settings{{"train.steps", steps}});
    EXPECT_EQ(ended.err.find("warning"), std::string::npos) << ended.err;
  };
  train("1");
  const nlohmann::json one = nlohmann::json::parse(read_text(file));
  EXPECT_EQ(one["planned"]["parameters"], one["measured"]["parameters"]);
  train("2");
  expect_as_planned(file);
}

}  // namespace
}  // namespace tessera::logs
