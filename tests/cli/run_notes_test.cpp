// Events of a run as sentences.
#include "cli/run_notes.h"

#include <gtest/gtest.h>

namespace tessera::cli {
namespace {

TEST(RunNotes, SayHowTheRanksPartsChange) {
  StepMetrics metrics;
  metrics.step = 20;
  metrics.rank_samples = {16, 16};
  metrics.rebalanced_to = {21, 11};
  metrics.imbalance = 0.334;
  EXPECT_EQ(note_of_parts(metrics),
            "step 20: the ranks' parts of a batch are 21 and 11 samples from now on, no longer 16 "
            "and 16: in this step the slowest rank computed 33 % longer than the mean");
}

}  // namespace
}  // namespace tessera::cli
