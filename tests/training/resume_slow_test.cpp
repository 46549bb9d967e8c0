// A run that saves at every step is killed again and again, at random moments; it always resumes to
// the same bits.
#include <random>

#include "tests/cli/training_testing.h"

namespace tessera::training {
namespace {

using testing::launched;
using testing::losses_in;
using testing::Program;
using testing::Settings;
using testing::train;
using testing::train_arguments;
using testing::TrainingFolder;

class KilledAtAnyMoment : public ::testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(Resume, KilledAtAnyMoment,
                         ::testing::Values("FULL_STATE_DICT", "SHARDED_STATE_DICT"));

TEST_P(KilledAtAnyMoment, AndResumedGivesTheSameBits) {
  const TrainingFolder folder;
  constexpr int steps = 60;
  const Settings common = folder.small() + Settings{{"train.steps", std::to_string(steps)},
                                                    {"model.dropout", "0.1"},
                                                    {"sharding.mixed_precision", "bf16"}};
  train(2, common + Settings{{"log.jsonl", folder.path("whole.jsonl")}});
  const Settings saving = common + Settings{{"log.jsonl", folder.path("killed.jsonl")},
                                            {"checkpoint.dir", folder.path("saves")},
                                            {"checkpoint.every", "1"},
                                            {"checkpoint.keep", "2"},
                                            {"checkpoint.state_dict_type", GetParam()}};
  std::mt19937 random(7);
  int kills = 0;
  for (int round = 0; round < 12; ++round) {
    Program program(launched(2, train_arguments(saving)));
    const int before = testing::lines_of(folder.path("killed.jsonl"));
    ASSERT_TRUE(testing::eventually([&] {
      return testing::lines_of(folder.path("killed.jsonl")) > before ||
             program.wait(std::chrono::milliseconds(0)) >= 0;
    })) << program.err();
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 40'000));
    const pid_t victim =
        round % 3 == 2 ? program.pid() : testing::pid_of_rank(program.pid(), round % 3);
    if (victim > 0 && program.wait(std::chrono::milliseconds(0)) < 0) {
      ::kill(victim, SIGKILL);
      ++kills;
    }
    const int code = program.wait();
    EXPECT_TRUE(code == 0 || code == 7 || code == 128 + SIGKILL) << program.err();
    // A rank may outlive the launcher for a moment, and then holds the folder's lock.
    ASSERT_TRUE(testing::eventually(
        [&] { return testing::processes_with(folder.path("killed.jsonl")) == 0; }));
    if (testing::lines_of(folder.path("killed.jsonl")) == steps) break;
  }
  EXPECT_GE(kills, 2);
  const testing::Ended last = train(2, saving);
  EXPECT_EQ(losses_in(folder.path("killed.jsonl")), losses_in(folder.path("whole.jsonl")))
      << last.err;
}

}  // namespace
}  // namespace tessera::training
