// Ranks that do different things are named within seconds: an error, never a hang.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <stdexcept>

#include "base/error.h"
#include "sharding/sharding_testing.h"

namespace tessera {
namespace {

class Branches : public nn::Module {
 public:
  Branches() {
    first_ = register_module("first", nn::Linear(8, 8));
    left_ = register_module("left", nn::Linear(8, 8));
    right_ = register_module("right", nn::Linear(8, 8));
  }
  Tensor forward(const Tensor& x, bool left, bool right) const {
    Tensor y = first_(x);
    if (left) y = left_(y);
    if (right) y = right_(y);
    return mean(y);
  }

 private:
  nn::Linear first_, left_, right_;
};

// Ranks that wait for one another in different channels can be detected only by their waiting: sets
// the time limit for that.
class Patience {
 public:
  Patience() { setenv("TESSERA_COMM_TIMEOUT", "3", 1); }
  ~Patience() { unsetenv("TESSERA_COMM_TIMEOUT"); }
  Patience(const Patience&) = delete;
  Patience& operator=(const Patience&) = delete;
};

using Program = std::function<void(Context&, Branches&, ShardedModel&)>;

std::string failure_of_branches(int world, Strategy strategy, const Program& program) {
  const Patience patience;
  std::string message = "no failure";
  try {
    launch(world, [&](Context& context) {
      Branches net;
      ShardedModel model =
          fully_shard(net, context,
                      {.strategy = strategy, .wrap = WrapPolicy::list({"first", "left", "right"})});
      program(context, net, model);
    });
  } catch (const std::exception& error) {
    message = error.what();
  }
  return message;
}

TEST(Divergence, AnotherUnitInTheForward) {
  for (const int world : {2, 3}) {
    const std::string message = failure_of_branches(
        world, Strategy::full_shard, [](Context& context, Branches& net, ShardedModel&) {
          const bool other = context.rank() == 1;
          net.forward(Tensor::full({2, 8}, 1), !other, other).backward();
        });
    EXPECT_NE(message.find("rank"), std::string::npos) << message;
    EXPECT_NE(message.find('1'), std::string::npos) << message;
    EXPECT_NE(message.find("all_gather"), std::string::npos) << message;
  }
}

TEST(Divergence, OneRankReducesOtherUnits) {
  for (const Strategy strategy : {Strategy::no_shard, Strategy::shard_optimizer}) {
    const std::string message =
        failure_of_branches(2, strategy, [](Context& context, Branches& net, ShardedModel&) {
          const bool other = context.rank() == 1;
          net.forward(Tensor::full({2, 8}, 1), !other, other).backward();
        });
    EXPECT_NE(message.find("rank"), std::string::npos) << message;
    EXPECT_NE(message, "no failure");
  }
}

TEST(Divergence, OneRankLeavesAUnitOut) {
  for (const Strategy strategy : {Strategy::full_shard, Strategy::shard_grad_op}) {
    const std::string message =
        failure_of_branches(2, strategy, [](Context& context, Branches& net, ShardedModel&) {
          net.forward(Tensor::full({2, 8}, 1), true, context.is_main()).backward();
        });
    EXPECT_NE(message.find("rank 1"), std::string::npos) << message;
  }
}

TEST(Divergence, OneRankStopsEarly) {
  const std::string message = failure_of_branches(
      3, Strategy::full_shard, [](Context& context, Branches& net, ShardedModel&) {
        for (int step = 0; step < (context.rank() == 2 ? 1 : 3); ++step) {
          net.forward(Tensor::full({2, 8}, 1), true, true).backward();
        }
      });
  EXPECT_NE(message.find("rank 2"), std::string::npos) << message;
}

TEST(Divergence, OneRankThrows) {
  const std::string message = failure_of_branches(
      3, Strategy::full_shard, [](Context& context, Branches& net, ShardedModel&) {
        for (int step = 0; step < 3; ++step) {
          const Tensor loss = net.forward(Tensor::full({2, 8}, 1), true, true);
          if (context.rank() == 1 && step == 1) throw std::runtime_error("rank 1's own trouble");
          loss.backward();
        }
      });
  EXPECT_EQ(message, "rank 1's own trouble");
}

TEST(Divergence, OneRankClips) {
  const std::string message = failure_of_branches(
      2, Strategy::full_shard, [](Context& context, Branches& net, ShardedModel& model) {
        net.forward(Tensor::full({2, 8}, 1), true, true).backward();
        if (context.is_main()) model.clip_grad_norm(1.0);
        net.forward(Tensor::full({2, 8}, 1), true, true).backward();
      });
  EXPECT_NE(message.find("rank 1"), std::string::npos) << message;
}

// With the deadline at its default of minutes, only the standstill can tell.
TEST(Divergence, RanksThatWaitInDifferentChannelsAreToldSo) {
  std::string message = "no failure";
  try {
    comm::run_local(2,
                    [](const std::shared_ptr<comm::Communicator>& communicator) {
                      const int rank = communicator->rank();
                      Context context({.rank = rank, .size = 2}, communicator);
                      Branches net;
                      ShardedModel model = fully_shard(
                          net, context, {.wrap = WrapPolicy::list({"first", "left", "right"})});
                      net.forward(Tensor::full({2, 8}, 1), true, true).backward();
                      if (rank == 0) model.clip_grad_norm(1.0);
                      net.forward(Tensor::full({2, 8}, 1), true, true).backward();
                    },
                    {.standstill_timeout = std::chrono::milliseconds(1000)});
  } catch (const Error& error) {
    message = error.what();
  }
  for (const char* part : {"all ranks wait for one another", "rank 0", "exchange", "'control'",
                           "rank 1", "all_gather of 'parameters'", "'gather'"}) {
    EXPECT_NE(message.find(part), std::string::npos) << part << " is not in: " << message;
  }
}

}  // namespace
}  // namespace tessera
