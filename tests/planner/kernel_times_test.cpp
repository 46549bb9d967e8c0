// Compares the kernels that a plan logs with those that a run launches: the same kernels, with the
// same work.
#include "planner/kernel_times.h"

#include <gtest/gtest.h>

#include <map>

#include "base/parallel.h"
#include "planner/recipe_plan.h"
#include "sharding/plan/plan_time.h"
#include "tests/cli/training_testing.h"
#include "training/recipe_trainer.h"

namespace tessera::planner {
namespace {

using namespace training;
using testing::TrainingFolder;

struct WorkOfKernel {
  int calls = 0;
  double operations = 0, bytes = 0;
  friend bool operator==(const WorkOfKernel&, const WorkOfKernel&) = default;
};
using WorkByKernel = std::map<std::string_view, WorkOfKernel>;

void count_work(WorkByKernel& all, const KernelWork& work) {
  WorkOfKernel& one = all[name_of(work.kernel)];
  ++one.calls;
  one.operations += work.operations;
  one.bytes += work.bytes;
}

WorkByKernel launched_work(const Recipe& recipe) {
  WorkByKernel all;
  launch(1, [&](Context& context) {
    Trainer run = make_trainer(recipe, context);
    (void)run.step();
    KernelTimes times;
    (void)run.step();
    for (const TimedKernel& timed : times.times()) {
      EXPECT_GE(timed.seconds, 0);
      count_work(all, timed.work);
    }
  });
  return all;
}

WorkByKernel planned_work(const Recipe& recipe) {
  const MemoryPlan plan = plan_recipe(recipe, {.ranks = 1, .timed = true});
  WorkByKernel all;
  for (const LoggedWork& work : plan.step->log.entries()) {
    const bool own = work.lane == plan.step->compute;  // the rank's thread, which is timed
    if (own && work.kind == LoggedWork::Kind::kernel) count_work(all, work.kernel);
  }
  return all;
}

TEST(KernelTimes, AreOfTheKernelsThatAPlanLogs) {
  const TrainingFolder folder;
  folder.write("corpus.txt", std::string(20'000, 'a'));
  for (const char* const more :
       {"sharding: {mixed_precision: no}", "sharding: {mixed_precision: bf16}",
        "sharding: {activation_checkpointing: true}", "train: {gradient_accumulation_steps: 2}"}) {
    const Recipe recipe = parse_recipe(
        "model: {architecture: gpt2, n_layer: 2, n_head: 2, n_embd: 64, seq_len: 32}\n"
        "data: {train: " +
            folder.path("corpus.txt") + ", tokenizer: bytes, batch_size: 2}\n" + more + "\n",
        "recipe.yaml", {"train.device=cpu"});
    const WorkByKernel planned = planned_work(recipe);
    const WorkByKernel launched = launched_work(recipe);
    EXPECT_GT(planned.size(), 8U) << more;
    for (const auto& [kernel, work] : planned) {
      ASSERT_TRUE(launched.contains(kernel)) << kernel << " with " << more;
      EXPECT_EQ(work.calls, launched.at(kernel).calls) << kernel << " with " << more;
      EXPECT_DOUBLE_EQ(work.operations, launched.at(kernel).operations) << kernel;
      EXPECT_DOUBLE_EQ(work.bytes, launched.at(kernel).bytes) << kernel;
    }
    EXPECT_EQ(planned.size(), launched.size()) << more;
  }
}

}  // namespace
}  // namespace tessera::planner
