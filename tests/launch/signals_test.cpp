// Signals while a rank computes: no handler may run on a thread that is in a kernel.
#include "tests/cli/training_testing.h"

namespace tessera::launcher {
namespace {

using testing::Program;
using testing::Settings;
using testing::TrainingFolder;

std::vector<double> first_losses(const std::string& path, std::size_t count) {
  std::vector<double> losses;
  for (const auto& line : testing::metrics_in(path)) {
    if (losses.size() < count) losses.push_back(line.at("loss").get<double>());
  }
  return losses;
}

TEST(SignalStorm, ChangesNoBitOfARun) {
  constexpr std::size_t steps = 40;
  const TrainingFolder folder;
  const auto run = [&](const std::string& log, bool storm) {
    const Settings settings =
        folder.small() + Settings{{"train.steps", "1000000"}, {"log.jsonl", folder.path(log)}};
    Program program(testing::train_arguments(settings));
    const auto lines = [&] {
      return static_cast<std::size_t>(testing::lines_of(folder.path(log)));
    };
    EXPECT_TRUE(testing::eventually([&] { return lines() >= 2; })) << program.err();
    EXPECT_TRUE(testing::eventually([&] {
      for (int i = 0; i < 50 && storm; ++i) {
        program.signal(SIGUSR1);
        std::this_thread::sleep_for(std::chrono::microseconds(100));
      }
      return lines() >= steps;
    })) << program.err();
    program.signal(SIGTERM);
    EXPECT_EQ(program.wait(), 128 + SIGTERM) << program.err();
    return first_losses(folder.path(log), steps);
  };
  const std::vector<double> undisturbed = run("undisturbed.jsonl", false);
  ASSERT_EQ(undisturbed.size(), steps);
  EXPECT_EQ(run("storm.jsonl", true), undisturbed);
}

}  // namespace
}  // namespace tessera::launcher
