// What a load refuses before it fills anything: loads that take nothing, other groups of an
// optimizer, an optimizer that cannot go on, ranks that ask for different tensors.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "checkpoint/classifier.h"
#include "checkpoint/save/export.h"
#include "checkpoint/sharded_state.h"
#include "checkpoint/support.h"

namespace tessera::checkpoint {
namespace {

using namespace testing;

bool takes_none(const std::string& /*name*/) {
  return false;
}

// Runs `load`, which must throw, and holds what model and optimizer have against what they had.
void expect_untouched(const ShardedModel& model, optim::Optimizer& optimizer,
                      const std::function<void()>& load) {
  const auto values = [&] {
    Whole now;
    now.add(model, &optimizer);
    return std::pair(now.values, now.counts);
  };
  const auto before = values();
  load();
  EXPECT_EQ(values(), before);
}

TEST(LoadChecks, ALoadThatTakesNothingIsRefused) {
  const auto from = pretrained();
  with_new(2, 3, [&](Context& context, Classifier&, ShardedModel& model, auto& optimizer) {
    const std::string nothing = "nothing would be loaded";
    for (const bool strict : {true, false}) {
      const LoadOptions none{.strict = strict, .model = takes_none, .optimizer = takes_none};
      EXPECT_TRUE(has(error_of([&] { (void)load(context, from->step(), model, optimizer, none); }),
                      "take none of its 18 tensors; " + nothing));
      EXPECT_TRUE(has(error_of([&] { (void)load(context, from->step(), model, none); }),
                      "take none of its 6 tensors; " + nothing));
      EXPECT_TRUE(
          has(error_of([&] { (void)load_latest(context, from->dir(), model, optimizer, none); }),
              nothing));
    }
    // Names that leave out everything.
    const LoadOptions nameless{.strict = false,
                               .names = [](const std::string&, bool) { return std::string(); }};
    EXPECT_TRUE(
        has(error_of([&] { (void)load(context, from->step(), model, nameless); }), nothing));
    // One section alone is something.
    (void)load(context, from->step(), model, optimizer, LoadOptions{.model = takes_none});
    (void)load(context, from->step(), model, optimizer, LoadOptions{.optimizer = takes_none});
  });
}

TEST(LoadChecks, ALoadOfWeightsThatTakesNothingIsRefused) {
  const TemporaryFolder folder;
  with_new(2, 3, [&](Context& context, Classifier&, ShardedModel& model, auto&) {
    const std::string path = folder.path() / "weights";
    const State state = state_of(model, nullptr, Direction::save);
    export_model(context.communicator(), path, state.model, {});
    EXPECT_TRUE(
        has(error_of([&] { (void)load(context, path, model, LoadOptions{.model = takes_none}); }),
            "take none of its 6 tensors; nothing would be loaded"));
    (void)load(context, path, model);
  });
}

// ts::load and ts::load_latest: with other groups nothing is filled.
TEST(LoadChecks, GroupsAreComparedBeforeAnythingIsFilled) {
  const auto from = pretrained();
  with_new(2, 3, [&](Context& context, Classifier&, ShardedModel& model, optim::Optimizer&) {
    optim::AdamW grouped(model.parameters(), {.groups = {{"head.*", 10.0, 0.5}}});
    expect_untouched(model, grouped, [&] {
      for (const bool newest : {false, true}) {
        const std::string text = error_of(
            [&] {
              if (newest) {
                (void)load_latest(context, from->dir(), model, grouped);
              } else {
                (void)load(context, from->step(), model, grouped);
              }
            },
            ErrorCode::configuration);
        EXPECT_TRUE(has(text, "the run there has the parameter groups [], this one [{"));
        EXPECT_TRUE(has(text, "step-5"));
      }
    });
  });
}

// Its moments are those of an optimizer with another state. That is not damage either: an older
// step is not taken for it.
TEST(LoadChecks, AnOptimizerThatCannotGoOnIsRefusedBeforeAnythingIsFilled) {
  const auto from = pretrained();
  with_new(2, 3, [&](Context& context, Classifier&, ShardedModel& model, optim::Optimizer&) {
    struct Other : optim::Optimizer {
      explicit Other(std::vector<nn::NamedParameter> parameters)
          : Optimizer(std::move(parameters)) {}
      [[nodiscard]] std::vector<std::string> state_names() const override {
        return {"exp_avg", "slow"};
      }
      void update(const optim::Update&) override {}
    } optimizer(model.parameters());
    expect_untouched(model, optimizer, [&] {
      const LoadOptions partial{.strict = false};
      const std::string what = ".slow'; another optimizer wrote it";
      EXPECT_TRUE(has(
          error_of([&] { (void)load(context, from->step(), model, optimizer, partial); }), what));
      const std::string newest =
          error_of([&] { (void)load_latest(context, from->dir(), model, optimizer, partial); });
      EXPECT_TRUE(has(newest, what));
      EXPECT_FALSE(has(newest, "is intact"));
    });
  });
}

TEST(LoadChecks, RanksThatAskForDifferentTensorsAreNamed) {
  const auto from = pretrained();
  with_new(3, 3, [&](Context& context, Classifier&, ShardedModel& model, auto& optimizer) {
    const bool odd = context.rank() == 2;
    const NameFilter filter = [odd](const std::string& name) {
      return !odd || name != "head.weight";
    };
    const StateNames names = [odd](const std::string& name, bool) {
      return odd && name == "head.weight" ? std::string() : name;
    };
    const std::vector<LoadOptions> differing{
        {.model = filter}, {.optimizer = filter}, {.strict = false, .names = names}};
    expect_untouched(model, optimizer, [&] {
      for (const LoadOptions& options : differing) {
        const std::string expected =
            "a load: ranks 0 and 2 have different names or filters for head.weight";
        EXPECT_TRUE(
            has(error_of([&] { (void)load(context, from->step(), model, optimizer, options); },
                         ErrorCode::configuration),
                expected));
        EXPECT_TRUE(has(
            error_of([&] { (void)load_latest(context, from->dir(), model, optimizer, options); },
                     ErrorCode::configuration),
            expected));
      }
      EXPECT_TRUE(has(
          error_of([&] { (void)load(context, from->step(), model, LoadOptions{.model = filter}); },
                   ErrorCode::configuration),
          "ranks 0 and 2"));
    });
  });
}

TEST(LoadChecks, AFileOfWeightsThatIsMissingIsNamed) {
  with_new(1, 3, [&](Context& context, Classifier&, ShardedModel& model, auto&) {
    EXPECT_TRUE(
        has(error_of([&] { (void)load(context, "none/model.safetensors", model); }),
            "'none/model.safetensors' does not exist; give the path of a .safetensors file, "
            "or of a folder with model.safetensors"));
  });
}

}  // namespace
}  // namespace tessera::checkpoint
