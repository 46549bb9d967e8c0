// The order of a forward's calls: how it is learnt, and the next expected calls.
#include "sharding/runtime/call_order.h"

#include <gtest/gtest.h>

namespace tessera {
namespace {

using Units = std::vector<int>;

class Calls {
 public:
  // A forward that may have a backward; returns its calls.
  std::vector<CallOrder::Call> forward(const Units& units) {
    std::vector<CallOrder::Call> calls;
    for (const int unit : units) {
      order.begin_call(unit, ++number_, true);
      calls.push_back({unit, number_});
    }
    return calls;
  }
  void evaluate(const Units& units) {
    for (const int unit : units) order.begin_call(unit, ++number_, false);
  }
  [[nodiscard]] Units expected() const { return {order.next(), order.end()}; }

  CallOrder order;

 private:
  std::uint64_t number_ = 0;
};

TEST(CallOrder, IsThatOfTheLastForwardWithABackward) {
  Calls calls;
  EXPECT_FALSE(calls.order.is_known());
  calls.order.end_backward(calls.forward({1, 2, 3}));
  EXPECT_EQ(calls.expected(), (Units{1, 2, 3}));
  (void)calls.forward({1});
  EXPECT_EQ(calls.expected(), (Units{2, 3}));
  (void)calls.forward({2, 3});
  EXPECT_EQ(calls.expected(), Units{});
  (void)calls.forward({1, 2});  // another forward before the backward
  EXPECT_EQ(calls.expected(), Units{3});
}

TEST(CallOrder, AUnitThatIsCalledTwiceHasTwoPlaces) {
  Calls calls;
  calls.order.end_backward(calls.forward({1, 2, 1, 3}));
  for (int step = 0; step < 3; ++step) {
    const auto reached = calls.forward({1, 2, 1});
    EXPECT_EQ(calls.expected(), Units{3});
    (void)calls.forward({3});
    calls.order.end_backward(reached);  // the last call needed no gradient
  }
}

TEST(CallOrder, ForgetsForwardsWithoutABackward) {
  Calls calls;
  calls.order.end_backward(calls.forward({1, 2, 3}));
  (void)calls.forward({1, 2, 3});  // dropped
  (void)calls.forward({1, 2});     // ended by an exception
  calls.order.abandon();
  EXPECT_EQ(calls.expected(), (Units{1, 2, 3}));
  calls.order.end_backward(calls.forward({1, 2, 3}));
  EXPECT_EQ(calls.expected(), (Units{1, 2, 3}));
}

// The backward does not reach frozen units, but they belong to the forward; so does the root, which
// has no calls.
TEST(CallOrder, KnowsUnitsThatNoBackwardReaches) {
  Calls calls;
  (void)calls.forward({5, 1, 2});  // dropped
  (void)calls.forward({5});
  calls.order.begin_call(0, 0, true);
  const auto reached = calls.forward({1, 2});
  (void)calls.forward({6, 5});
  calls.order.end_backward(reached);
  EXPECT_EQ(calls.expected(), (Units{5, 0, 1, 2, 6}));
}

TEST(CallOrder, SkipsOmittedUnitsAndIgnoresUnknownOnes) {
  Calls calls;
  calls.order.end_backward(calls.forward({1, 2, 3, 4}));
  (void)calls.forward({1, 3});
  EXPECT_EQ(calls.expected(), Units{4});
  (void)calls.forward({9});
  EXPECT_EQ(calls.expected(), Units{4});
  (void)calls.forward({2});  // back to an earlier place
  EXPECT_EQ(calls.expected(), (Units{3, 4}));
}

TEST(CallOrder, IsLearntByEvaluationAlone) {
  Calls calls;
  calls.evaluate({1, 2, 3});
  EXPECT_FALSE(calls.order.is_known());
  calls.evaluate({1});
  EXPECT_EQ(calls.expected(), (Units{2, 3}));
  calls.evaluate({2, 3, 1});
  EXPECT_EQ(calls.expected(), (Units{2, 3}));
}

TEST(CallOrder, TwoForwardsOfOneBackwardAreOneOrder) {
  Calls calls;
  auto reached = calls.forward({1, 2});
  for (const auto& call : calls.forward({1, 2})) reached.push_back(call);
  calls.order.end_backward(reached);
  EXPECT_EQ(calls.expected(), (Units{1, 2, 1, 2}));
}

}  // namespace
}  // namespace tessera
