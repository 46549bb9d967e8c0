// Recorded steps: their lanes add up, their waits are those that are counted, their bytes are those
// of the plan, and recording changes nothing.
#include "sharding/profiler/step_recorder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <tuple>

#include "base/error.h"
#include "sharding/plan/plan.h"
#include "sharding/profiler/recording.h"
#include "sharding/profiler/span_queue.h"
#include "sharding/profiler/trace.h"
#include "sharding/sharding_testing.h"
#include "support/sanitizers.h"

namespace tessera {
namespace {

using testing::all_strategies;
using testing::describe;
using testing::on_ranks;
using testing::toy_batch;
using testing::toy_options;
using testing::ToyTransformer;
using testing::train_once;

// One step as in a user's program, recorded as number `step`.
void take_step(const Context& context, ToyTransformer& net, ShardedModel& model,
               optim::Optimizer& optimizer, std::int64_t step, int micro_batches = 1) {
  const std::shared_ptr<StepRecorder> recorder = model.record();
  recorder->begin_step(step);
  for (int micro = 0; micro < micro_batches; ++micro) train_once(context, net);
  (void)model.clip_grad_norm(1.0);
  {
    const ComputeScope scope(recorder.get(), SpanKind::optimizer);
    optimizer.step();
    optimizer.zero_grad();
  }
  recorder->end_step();
}

std::vector<Span> of_lane(const StepRecord& step, Lane lane) {
  std::vector<Span> spans;
  for (const Span& span : step.spans) {
    if (span.lane == lane) spans.push_back(span);
  }
  return spans;
}

// Every moment of the step is in one span of the compute lane.
TEST(StepRecorder, TheComputeLaneAddsUpToTheStep) {
  for (const ShardingOptions& options : all_strategies(4)) {
    on_ranks(4, options, [&](Context& context, ToyTransformer& net, ShardedModel& model) {
      optim::Sgd optimizer(model.parameters(), {.lr = 0.1});
      for (int step = 1; step <= 3; ++step) {
        const auto begin = std::chrono::steady_clock::now();
        take_step(context, net, model, optimizer, step, 2);
        const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
        const StepRecord& record = model.record()->last();
        ASSERT_EQ(record.step, step);
        std::int64_t at = record.begin, sum = 0;
        for (const Span& span : of_lane(record, Lane::compute)) {
          ASSERT_EQ(span.begin, at) << describe(options);
          at = span.end;
          sum += span.end - span.begin;
        }
        EXPECT_EQ(at, record.end);
        EXPECT_EQ(sum, record.end - record.begin);
        EXPECT_LE(record.seconds(), taken.count());
        EXPECT_EQ(record.lost, 0u);
      }
    });
  }
}

// Spans of a lane do not overlap: a viewer draws them side by side.
TEST(StepRecorder, SpansOfALaneFollowOneAnother) {
  for (const ShardingOptions& options : all_strategies(4)) {
    on_ranks(4, options, [&](Context& context, ToyTransformer& net, ShardedModel& model) {
      optim::Sgd optimizer(model.parameters(), {.lr = 0.1});
      for (int step = 1; step <= 2; ++step) take_step(context, net, model, optimizer, step);
      for (int lane = 0; lane < lane_count; ++lane) {
        std::int64_t at = 0;
        for (const Span& span : of_lane(model.record()->last(), static_cast<Lane>(lane))) {
          EXPECT_GE(span.begin, at) << name_of(span.lane) << " " << describe(options);
          EXPECT_GE(span.end, span.begin);
          at = span.end;
        }
      }
    });
  }
}

TEST(StepRecorder, ExposedByPurposeAddsUpToWhatIsCounted) {
  for (const ShardingOptions& options : all_strategies(4)) {
    on_ranks(4, options, [&](Context& context, ToyTransformer& net, ShardedModel& model) {
      optim::Sgd optimizer(model.parameters(), {.lr = 0.1});
      double counted = 0, recorded = 0;
      for (int step = 1; step <= 5; ++step) {
        const double before = model.communication().exposed_seconds;
        take_step(context, net, model, optimizer, step);
        counted += model.communication().exposed_seconds - before;
        const StepRecord& record = model.record()->last();
        recorded += record.exposed();
        for (const double seconds : record.exposed_seconds) EXPECT_GE(seconds, -1e-12);
        EXPECT_LE(record.exposed(), record.seconds());
      }
      // A recorded wait begins before the counted one and ends after it, and other processes may
      // run in between.
      const double others = testing::thread_sanitizer ? 0.1 : 0.005;
      EXPECT_GE(recorded, counted - 1e-9) << describe(options);
      EXPECT_LE(recorded, 1.02 * counted + others) << describe(options);
    });
  }
}

using Traffic =
    std::map<std::tuple<std::string, std::string>, std::pair<std::uint64_t, std::uint64_t>>;

// Calls and bytes by phase and collective.
TEST(StepRecorder, CallsAndBytesAreThoseOfThePlan) {
  for (const ShardingOptions& options : all_strategies(4)) {
    ToyTransformer planned_net;
    const auto batch = toy_batch(0, 2);
    const MemoryPlan planned =
        plan(planned_net, {.ranks = 4},
             {.sharding = options,
              .loss =
                  [&](Device device) {
                    return planned_net.loss(batch.ids.to(device), batch.targets.to(device));
                  },
              .optimizer =
                  [](std::vector<nn::NamedParameter> parameters) {
                    return std::make_unique<optim::Sgd>(std::move(parameters),
                                                        optim::SgdOptions{.lr = 0.1});
                  }});
    Traffic expected;
    for (const PlannedCollective& collective : planned.collectives) {
      auto& sum = expected[{std::string(collective.phase), std::string(collective.op)}];
      sum.first += collective.calls;
      sum.second += collective.bytes;
    }
    on_ranks(4, options, [&](Context& context, ToyTransformer& net, ShardedModel& model) {
      optim::Sgd optimizer(model.parameters(), {.lr = 0.1});
      for (int step = 1; step <= 2; ++step) take_step(context, net, model, optimizer, step);
      const std::uint64_t before = model.communication().bytes;
      take_step(context, net, model, optimizer, 3);
      Traffic recorded;
      std::uint64_t bytes = 0;
      for (const CollectiveTotal& total : model.record()->last().collectives) {
        recorded[{std::string(name_of(total.phase)), std::string(name_of(total.kind))}] = {
            total.calls, total.bytes};
        bytes += total.bytes;
      }
      EXPECT_EQ(recorded, expected) << describe(options);
      EXPECT_EQ(bytes, model.communication().bytes - before) << describe(options);
    });
  }
}

// Each unit, also the root, has its forward and its backward, and a gather with its name.
TEST(StepRecorder, UnitsAreNamed) {
  on_ranks(2, toy_options(Strategy::full_shard),
           [&](Context& context, ToyTransformer& net, ShardedModel& model) {
             optim::Sgd optimizer(model.parameters(), {.lr = 0.1});
             for (int step = 1; step <= 2; ++step) take_step(context, net, model, optimizer, step);
             const StepRecorder& recorder = *model.record();
             EXPECT_EQ(recorder.units(),
                       (std::vector<std::string>{"(root)", "blocks.0", "blocks.1", "blocks.2"}));
             std::map<SpanKind, std::set<int>> seen;
             for (const Span& span : recorder.last().spans) seen[span.kind].insert(span.unit);
             const std::set<int> all = {0, 1, 2, 3};
             EXPECT_EQ(seen[SpanKind::forward], all);
             EXPECT_EQ(seen[SpanKind::backward], all);
             EXPECT_EQ(seen[SpanKind::all_gather], all);
             EXPECT_EQ(seen[SpanKind::reduce_scatter], all);
             EXPECT_EQ(seen[SpanKind::copy], all);
             EXPECT_TRUE(seen.contains(SpanKind::optimizer));
             EXPECT_TRUE(seen.contains(SpanKind::exchange));
             EXPECT_EQ(recorder.last().unit_passes, 2 * 3 + 2);
             EXPECT_GT(recorder.last().schedule_seconds, 0);
             EXPECT_LT(recorder.last().schedule_seconds, recorder.last().busy());
           });
}

// Gradients in a file: a lane for the reductions, and a lane for writing the file.
TEST(StepRecorder, WritingToAFileHasItsOwnLane) {
  ShardingOptions options = toy_options(Strategy::full_shard);
  options.offload.gradients = Placement::file;
  options.offload.folder = ::testing::TempDir();
  on_ranks(2, options, [&](Context& context, ToyTransformer& net, ShardedModel& model) {
    optim::Sgd optimizer(model.parameters(), {.lr = 0.1});
    for (int step = 1; step <= 2; ++step) take_step(context, net, model, optimizer, step);
    const StepRecord& record = model.record()->last();
    EXPECT_EQ(of_lane(record, Lane::reduce).size(), 4u);
    const std::vector<Span> back = of_lane(record, Lane::copy_back);
    EXPECT_EQ(back.size(), 4u);
    for (const Span& span : back) EXPECT_GT(span.bytes, 0u);
  });
}

// The other rank waits for a late rank, and this time is not counted as the schedule's.
TEST(StepRecorder, WaitingForALateRankIsExposedButNotTheSchedules) {
  std::atomic<bool> begun = false;
  on_ranks(2, toy_options(Strategy::full_shard),
           [&](Context& context, ToyTransformer& net, ShardedModel& model) {
             optim::Sgd optimizer(model.parameters(), {.lr = 0.1});
             take_step(context, net, model, optimizer, 1);
             if (context.rank() == 0) begun = true;
             if (context.rank() == 1) {
               while (!begun) std::this_thread::yield();
               std::this_thread::sleep_for(std::chrono::milliseconds(400));
             }
             take_step(context, net, model, optimizer, 2);
             const StepRecord& record = model.record()->last();
             if (context.rank() == 1) return;
             EXPECT_GT(record.exposed(), 0.1);
             EXPECT_LT(record.schedule_seconds, record.exposed());
             EXPECT_LT(record.busy(), record.seconds() - 0.1);
           });
}

// Work between steps, such as a save or an evaluation, is in the record after complete(), but not
// in a sum.
TEST(StepRecorder, WorkAfterAStepIsAddedOnlyToItsSpans) {
  on_ranks(2, toy_options(Strategy::full_shard),
           [&](Context& context, ToyTransformer& net, ShardedModel& model) {
             optim::Sgd optimizer(model.parameters(), {.lr = 0.1});
             take_step(context, net, model, optimizer, 1);
             const std::shared_ptr<StepRecorder> recorder = model.record();
             const StepRecord before = recorder->last();
             {
               const NoGradGuard no_grad;
               const auto batch = toy_batch(7, 2);
               (void)net.loss(batch.ids, batch.targets).item();
             }
             const std::int64_t now = recorder->last().end;
             recorder->add({SpanKind::save, Lane::save, comm::Phase::checkpoint, Exposed::other, 0,
                            17, now, now + 1000});
             recorder->complete();
             const StepRecord& after = recorder->last();
             EXPECT_EQ(after.step, 1);
             EXPECT_EQ(after.end, before.end);
             EXPECT_GT(after.spans.size(), before.spans.size() + 1);
             EXPECT_EQ(of_lane(after, Lane::save).size(), 1u);
             EXPECT_EQ(after.exposed(), before.exposed());
             EXPECT_EQ(after.schedule_seconds, before.schedule_seconds);
             EXPECT_EQ(after.collectives.front().calls, before.collectives.front().calls);
             take_step(context, net, model, optimizer, 2);
             EXPECT_TRUE(of_lane(recorder->last(), Lane::save).empty());
           });
}

// After a failed backward the next step can use the lane.
TEST(StepRecorder, AFailedPassLeavesNothingOpen) {
  on_ranks(1, toy_options(Strategy::full_shard),
           [&](Context& context, ToyTransformer& net, ShardedModel& model) {
             optim::Sgd optimizer(model.parameters(), {.lr = 0.1});
             const std::shared_ptr<StepRecorder> recorder = model.record();
             recorder->begin_step(1);
             const auto batch = toy_batch(context.rank(), 2);
             const Tensor hidden = net.embed(batch.ids);
             const Tensor out = hidden.detach();
             autograd::record(Op::affine, {hidden}, {out},
                              [](std::vector<Tensor>&, autograd::GradientSink&) {
                                throw Error(ErrorCode::runtime, "planted");
                              });
             EXPECT_THROW(cross_entropy(net.head(out), batch.targets).backward(), Error);
             recorder->end_step();
             take_step(context, net, model, optimizer, 2);
             const std::vector<Span> spans = of_lane(recorder->last(), Lane::compute);
             EXPECT_EQ(recorder->last().unit_passes, 2 * 3 + 2);
             EXPECT_EQ(spans.front().kind, SpanKind::other);
             EXPECT_EQ(spans.back().kind, SpanKind::other);
           });
}

struct Steps {
  std::vector<double> norms;
  std::map<std::string, std::vector<double>> parameters;
  bool operator==(const Steps&) const = default;
};

TEST(StepRecorder, ChangesNoBitAndAllocatesNothingOfThePools) {
  for (const ShardingOptions& options : all_strategies(3)) {
    Steps results[2];
    for (const bool recorded : {false, true}) {
      testing::Collected collected;
      std::mutex mutex;
      on_ranks(3, options, [&](Context& context, ToyTransformer& net, ShardedModel& model) {
        optim::AdamW optimizer(model.parameters(), {.lr = 1e-2});
        testing::Allocations trained;
        for (int step = 1; step <= 4; ++step) {
          if (recorded) model.record()->begin_step(step);
          train_once(context, net);
          const double norm = model.clip_grad_norm(0.1);
          optimizer.step();
          optimizer.zero_grad();
          if (recorded) model.record()->end_step();
          const testing::Allocations now = testing::Allocations::of(context, model);
          if (step <= 2) trained = now;
          EXPECT_EQ(now, trained) << describe(options) << " step " << step;
          const std::lock_guard lock(mutex);
          if (context.is_main()) results[recorded].norms.push_back(norm);
        }
        collected.add(model);
      });
      results[recorded].parameters = collected.values();
    }
    EXPECT_EQ(results[0], results[1]) << describe(options);
  }
}

// The memory for spans does not grow after the first steps.
TEST(StepRecorder, LaterStepsTakeNoMoreMemoryForSpans) {
  on_ranks(2, toy_options(Strategy::full_shard),
           [&](Context& context, ToyTransformer& net, ShardedModel& model) {
             optim::Sgd optimizer(model.parameters(), {.lr = 0.1});
             std::size_t capacity = 0;
             for (int step = 1; step <= 20; ++step) {
               take_step(context, net, model, optimizer, step);
               if (step <= 3) capacity = model.record()->last().spans.capacity();
             }
             EXPECT_LE(model.record()->last().spans.capacity(), 2 * capacity);
           });
}

// For example a long evaluation.
TEST(StepRecorder, SpansAfterAStepAreBounded) {
  StepRecorder recorder({"", "block"}, Device::cpu());
  recorder.begin_step(1);
  recorder.end_step();
  constexpr int many = 100'000;
  for (int i = 0; i < many; ++i) recorder.add({SpanKind::save, Lane::save});
  recorder.complete();
  EXPECT_LT(recorder.last().spans.size(), 20'000u);
  EXPECT_EQ(recorder.last().spans.size() - 1 + recorder.last().lost + recorder.last().lost_behind,
            static_cast<std::size_t>(many) + 1);
}

// An evaluation takes no spans from its step or the next, and a save after it has room.
TEST(StepRecorder, AnEvaluationTakesNothingFromStepsAndSaves) {
  StepRecorder recorder({"", "block"}, Device::cpu());
  recorder.begin_step(1);
  recorder.end_step();
  Span span;
  span.kind = SpanKind::all_gather;
  span.lane = Lane::gather;
  span.begin = span.end = recorder.last().end;
  for (int i = 0; i < 100'000; ++i) recorder.add(span);
  span.kind = SpanKind::save;
  span.lane = Lane::save;
  recorder.add(span);
  recorder.complete();
  EXPECT_EQ(recorder.last().lost, 0u);
  EXPECT_GT(recorder.last().lost_behind, 0u);
  EXPECT_EQ(of_lane(recorder.last(), Lane::save).size(), 1u);
  recorder.begin_step(2);
  recorder.end_step();
  EXPECT_EQ(recorder.last().lost + recorder.last().lost_behind, 0u);
}

TEST(StepRecorder, SpansWithoutRoomAreInTheSums) {
  StepRecorder recorder({"", "block"}, Device::cpu());
  constexpr std::uint64_t many = (std::uint64_t{1} << 20) + 1000;
  recorder.begin_step(1);
  for (std::uint64_t i = 0; i < many; ++i) {
    recorder.add({SpanKind::all_gather, Lane::gather, comm::Phase::forward, Exposed::other, 0, 3});
    recorder.add({SpanKind::data, Lane::copy, comm::Phase::other, Exposed::other, 0, 0, 0, 1000});
  }
  recorder.end_step();
  const StepRecord& record = recorder.last();
  EXPECT_EQ(record.spans.size() + record.lost, 2 * many + 1);
  EXPECT_GE(record.lost, many);
  ASSERT_EQ(record.collectives.size(), 1u);
  EXPECT_EQ(record.collectives[0].calls, many);
  EXPECT_EQ(record.collectives[0].bytes, 3 * many);
  EXPECT_NEAR(record.data_seconds, 1e-6 * static_cast<double>(many), 1e-6);
}

// Longer than one message, and of different lengths.
TEST(StepRecorder, RecordsOfAllRanksAreGathered) {
  on_ranks(3, toy_options(Strategy::full_shard),
           [&](Context& context, ToyTransformer&, ShardedModel&) {
             StepRecord mine;
             mine.step = 7;
             mine.lost = static_cast<std::uint64_t>(context.rank());
             const auto count = static_cast<std::size_t>(context.rank()) * 150'000;
             for (std::size_t i = 0; i < count; ++i) {
               mine.spans.emplace_back().begin = static_cast<std::int64_t>(i);
             }
             const std::vector<StepRecord> all = gather_records(context, mine);
             if (!context.is_main()) {
               EXPECT_TRUE(all.empty());
               return;
             }
             ASSERT_EQ(all.size(), 3u);
             for (std::size_t rank = 0; rank < 3; ++rank) {
               EXPECT_EQ(all[rank].step, 7);
               EXPECT_EQ(all[rank].lost, rank);
               ASSERT_EQ(all[rank].spans.size(), rank * 150'000);
               for (std::size_t i = 0; i < all[rank].spans.size(); ++i)
                 ASSERT_EQ(all[rank].spans[i].begin, static_cast<std::int64_t>(i));
             }
           });
}

TEST(StepRecorder, ATraceIsWrittenCompletelyOrNotAtAll) {
  const std::filesystem::path folder =
      std::filesystem::path(::testing::TempDir()) / "tessera-written-trace";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder / "taken.json");
  on_ranks(2, toy_options(Strategy::full_shard),
           [&](Context& context, ToyTransformer& net, ShardedModel& model) {
             optim::Sgd optimizer(model.parameters(), {.lr = 0.1});
             take_step(context, net, model, optimizer, 1);
             write_trace(context, *model.record(), (folder / "trace.json").string());
             const auto refused = [&](const std::string& file, const char* why) {
               try {
                 write_trace(context, *model.record(), file);
                 EXPECT_FALSE(context.is_main());
               } catch (const Error& error) {
                 EXPECT_NE(std::string(error.what()).find(why), std::string::npos) << error.what();
               }
             };
             refused("/dev/full", "No space left");
             refused((folder / "none/trace.json").string(), "No such file");
             refused((folder / "taken.json").string(), "it is a folder");
           });
  EXPECT_GT(std::filesystem::file_size(folder / "trace.json"), 1000u);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), {}), 2);
  std::filesystem::remove_all(folder);
}

// Like the clock of a GPU that has failed: the stack unwinds normally, and the step is not
// recorded.
TEST(StepRecorder, AClockThatFailsDropsOnlyTheStep) {
  bool fails = false;
  std::int64_t time = 0;
  Recording recording(Device::cpu(), [&] {
    if (fails) throw Error(ErrorCode::runtime, "planted");
    return Recording::Moment{++time, nullptr};
  });
  recording.begin_step(1);
  recording.end_step();
  for (std::int64_t step = 2; step <= 8; step += 2) {
    recording.begin_step(step);
    recording.enter({SpanKind::schedule, Exposed::other, 1});
    recording.open({SpanKind::forward, Exposed::other, 1});
    fails = true;
    if (step == 2) recording.leave();
    if (step == 4) recording.enter({SpanKind::wait, Exposed::reduce, 1});
    if (step == 6) recording.set_base(SpanKind::backward);
    if (step == 8) recording.abandon_backward();
    if (step == 4) recording.leave();
    if (step != 2) recording.leave();
    recording.close(SpanKind::forward, 1);
    EXPECT_FALSE(recording.records());
    fails = false;
    recording.end_step();
    EXPECT_EQ(recording.last().step, step - 1);
    recording.complete();
    recording.begin_step(step + 1);
    recording.end_step();
    EXPECT_EQ(recording.last().step, step + 1);
    ASSERT_EQ(recording.last().spans.size(), 1u);
    EXPECT_EQ(recording.last().spans[0].kind, SpanKind::other);
  }
}

TEST(SpanQueue, FullQueuesDropAndCount) {
  SpanQueue queue(4);
  for (int i = 0; i < 6; ++i) {
    Span span;
    span.unit = i;
    queue.push({span, nullptr, nullptr});
  }
  EXPECT_EQ(queue.lost(), 2u);
  std::vector<int> taken;
  queue.drain([&](RawSpan&& raw) { taken.push_back(raw.span.unit); });
  EXPECT_EQ(taken, (std::vector<int>{0, 1, 2, 3}));
  queue.push({});
  int more = 0;
  queue.drain([&](RawSpan&&) { ++more; });
  EXPECT_EQ(more, 1);
}

TEST(SpanQueue, WriterAndReaderWorkAtOnce) {
  SpanQueue queue(64);
  constexpr int count = 100'000;
  std::thread writer([&] {
    for (int i = 0; i < count; ++i) {
      Span span;
      span.unit = i;
      span.bytes = static_cast<std::uint64_t>(i) * 3;
      queue.push({span, nullptr, nullptr});
    }
  });
  int got = 0, last = -1;
  const auto take = [&](RawSpan&& raw) {
    EXPECT_GT(raw.span.unit, last);
    EXPECT_EQ(raw.span.bytes, static_cast<std::uint64_t>(raw.span.unit) * 3);
    last = raw.span.unit;
    ++got;
  };
  while (last < count - 1 && static_cast<std::uint64_t>(got) + queue.lost() < count) {
    queue.drain(take);
  }
  writer.join();
  queue.drain(take);
  EXPECT_EQ(static_cast<std::uint64_t>(got) + queue.lost(), static_cast<std::uint64_t>(count));
}

TEST(StepRecorder, StepsMustBeBegunAndEndedInTurn) {
  StepRecorder recorder({"", "block"}, Device::cpu());
  EXPECT_THROW(recorder.end_step(), std::logic_error);
  recorder.begin_step(1);
  EXPECT_THROW(recorder.complete(), std::logic_error);
  recorder.begin_step(2);  // discards step 1
  recorder.end_step();
  EXPECT_THROW(recorder.end_step(), std::logic_error);
  EXPECT_EQ(recorder.last().step, 2);
  EXPECT_EQ(recorder.last().spans.size(), 1u);
}

}  // namespace
}  // namespace tessera
