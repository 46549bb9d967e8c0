// Recorded steps of ranks on a GPU: spans have the device's times, are in order, and add up.
#include "sharding/profiler/step_recorder.h"

#include <vector>

#include "cuda/device_under_test.h"
#include "sharding/sharding_testing.h"

namespace tessera {
namespace {

using testing::toy_batch;
using testing::toy_options;
using testing::ToyTransformer;

struct RecordedSteps {
  std::vector<double> norms;
  std::vector<StepRecord> records;  // of rank 0; the last one twice
};

RecordedSteps train_recorded(const ShardingOptions& options, bool recorded) {
  RecordedSteps result;
  launch(
      2,
      [&](Context& context) {
        const testing::OneThread one_thread;
        manual_seed(3);
        ToyTransformer net;
        ShardedModel model = fully_shard(net, context, options);
        optim::AdamW optimizer(model.parameters(), {.lr = 1e-2});
        const std::shared_ptr<StepRecorder> recorder = recorded ? model.record() : nullptr;
        for (int step = 1; step <= 4; ++step) {
          if (recorder) recorder->begin_step(step);
          const auto batch = toy_batch(context.rank() + step, 2);
          net.loss(batch.ids.to(context.device()), batch.targets.to(context.device())).backward();
          const double norm = model.clip_grad_norm(0.1);
          optimizer.step();
          optimizer.zero_grad();
          if (recorder) recorder->end_step();
          if (!context.is_main()) continue;
          result.norms.push_back(norm);
          if (recorder) result.records.push_back(recorder->last());
        }
        if (!recorder) return;
        recorder->complete();
        if (context.is_main()) result.records.push_back(recorder->last());
      },
      Device::cuda());
  return result;
}

TEST(DeviceStepRecorder, SpansAddUpToStepsOfTheDevice) {
  const testing::AccessChecking access_checking;
  for (const ShardingOptions& options :
       {toy_options(Strategy::full_shard), toy_options(Strategy::no_shard),
        toy_options(Strategy::hybrid_shard, 1), toy_options(Strategy::shard_grad_op)}) {
    const RecordedSteps steps = train_recorded(options, true);
    ASSERT_EQ(steps.records.size(), 5u);
    std::int64_t before = 0;
    for (std::size_t i = 1; i < steps.records.size(); ++i) {  // a step later
      const StepRecord& record = steps.records[i];
      EXPECT_EQ(record.step, static_cast<std::int64_t>(i));
      EXPECT_GE(record.begin, before);
      std::vector<std::int64_t> ends(lane_count, 0);
      std::int64_t sum = 0;
      for (const Span& span : record.spans) {
        std::int64_t& end = ends[static_cast<std::size_t>(span.lane)];
        EXPECT_GE(span.begin, end) << name_of(span.lane);
        EXPECT_GE(span.end, span.begin);
        end = span.end;
        if (span.lane == Lane::compute && span.begin < record.end) sum += span.end - span.begin;
      }
      EXPECT_EQ(sum, record.end - record.begin) << testing::describe(options);
      EXPECT_GE(record.exposed(), 0);
      EXPECT_LE(record.exposed(), record.seconds());
      EXPECT_GT(record.schedule_seconds, 0);
      EXPECT_FALSE(record.collectives.empty());
      EXPECT_EQ(record.lost, 0u);
      before = record.end;
    }
  }
}

TEST(DeviceStepRecorder, ChangesNoBit) {
  const ShardingOptions options = toy_options(Strategy::full_shard);
  EXPECT_EQ(train_recorded(options, true).norms, train_recorded(options, false).norms);
}

}  // namespace
}  // namespace tessera
