// A process that a rank made by fork() may start another program or end. An operation that would
// wait for a thread of the parent fails at once, and nothing that the child does affects the
// parent.
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include "base/parallel.h"
#include "comm/nodes/nodes_world.h"
#include "comm/shared/process_world.h"
#include "engine/device/stream.h"
#include "sharding/context/context.h"
#include "sharding/sharding_testing.h"
#include "tests/support/processes.h"
#include "tests/support/sanitizers.h"

namespace tessera {
namespace {

using namespace std::chrono_literals;
using testing::Outcome;
using testing::Processes;
using testing::toy_batch;
using testing::toy_options;
using testing::ToyTransformer;

Outcome in_child(const std::function<void()>& body) {
  Processes child(1, [&](int, std::atomic<int>&) { body(); });
  return child.wait(20s).front();
}

void expect_refused(const std::function<void()>& body, const std::string& what) {
  const Outcome outcome = in_child(body);
  EXPECT_FALSE(outcome.timed_out) << what << " hangs after fork()";
  EXPECT_EQ(outcome.exit_code, Outcome::other_exception) << what;
  EXPECT_NE(outcome.message.find("after fork()"), std::string::npos) << outcome.message;
  EXPECT_NE(outcome.message.find(what), std::string::npos) << outcome.message;
}

void expect_good(const std::function<void()>& body) {
  const Outcome outcome = in_child(body);
  EXPECT_FALSE(outcome.timed_out);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.message;
}

class TwoThreads {
 public:
  TwoThreads() : before_(compute_threads()) { set_compute_threads(2); }
  ~TwoThreads() { set_compute_threads(before_); }
  TwoThreads(const TwoThreads&) = delete;
  TwoThreads& operator=(const TwoThreads&) = delete;

 private:
  int before_;
};

// The test's own child starts each of these, so that the pool of the test program is not touched.
void use_pool() {
  const Tensor x = Tensor::full({1 << 20}, 1.0);
  EXPECT_EQ(sum(x).item(), 1 << 20);
}

void multiply() {
  const Tensor x = Tensor::full({256, 256}, 1.0);
  EXPECT_EQ(sum(matmul(x, x)).item(), 256.0 * 256 * 256);
}

TEST(Fork, ComputingInTheChildIsRefusedOnceThePoolHasStarted) {
  if (testing::thread_sanitizer) GTEST_SKIP() << "no OpenMP in this build";
  expect_good([] {
    const TwoThreads two;
    use_pool();
    multiply();
    expect_refused(use_pool, "computing");
    expect_refused(multiply, "computing");
    use_pool();  // the parent still computes
    multiply();
  });
}

TEST(Fork, ComputingMayBeginInTheChild) {
  expect_good([] {
    const TwoThreads two;
    expect_good([] {
      use_pool();
      multiply();
    });
    use_pool();
  });
}

TEST(Fork, AStreamOfTheParentIsRefused) {
  expect_good([] {
    std::optional<Stream> stream("side");
    stream->run([] {});
    expect_refused([&] { stream->run([] {}); }, "work on a stream");
    expect_refused([&] { stream->enqueue([] {}, [] {}); }, "work on a stream");
    expect_refused(
        [&] {
          const Event never = stream->enqueue([] {});
          never.wait();
        },
        "work on a stream");
    expect_good([&] { stream.reset(); });
    std::atomic<bool> may_end{false};
    const Event event = stream->enqueue([&] {
      while (!may_end.load()) usleep(1000);
    });
    expect_refused([&] { event.wait(); }, "waiting for a stream");
    may_end.store(true);
    event.wait();
  });
}

// Two processes are ranks. Each forks, and the child calls `what` with its copies.
struct Copies {
  std::optional<Context> context;
  std::optional<ShardedModel> model;
  std::unique_ptr<ToyTransformer> net;
};

using WorldOfRank = std::function<comm::World(int rank)>;

comm::World on_one_host(int rank) {
  return testing::world_of_process(rank, 2);
}

void train_beside_children(const std::function<void(Copies&)>& during,
                           const WorldOfRank& world_of = on_one_host) {
  Processes ranks(2, [&](int rank, std::atomic<int>&) {
    set_compute_threads(1);
    const comm::World world = world_of(rank);
    Copies copies;
    copies.context.emplace(world, comm::connect(world));
    manual_seed(3);
    copies.net = std::make_unique<ToyTransformer>();
    copies.model.emplace(
        fully_shard(*copies.net, *copies.context, toy_options(Strategy::full_shard)));
    optim::AdamW optimizer(copies.model->parameters(), {.lr = 1e-2});
    for (int step = 0; step < 3; ++step) {
      const auto batch = toy_batch(step * 2 + rank, 2);
      const Tensor loss = copies.net->loss(batch.ids, batch.targets);
      if (step == 1) during(copies);
      loss.backward();
      copies.model->clip_grad_norm(0.5);
      optimizer.step();
      optimizer.zero_grad();
    }
    copies.context->barrier();
  });
  for (const Outcome& outcome : ranks.wait(60s)) {
    EXPECT_FALSE(outcome.timed_out);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.message;
  }
}

TEST(Fork, AForwardInTheChildOfARankIsRefused) {
  train_beside_children([](Copies& copies) {
    expect_refused(
        [&] {
          const auto batch = toy_batch(0, 2);
          (void)copies.net->loss(batch.ids, batch.targets);
        },
        "after fork()");
  });
}

TEST(Fork, ACollectiveInTheChildOfARankIsRefused) {
  train_beside_children([](Copies& copies) {
    expect_refused([&] { copies.context->barrier(); }, "barrier");
    expect_refused([&] { (void)copies.context->sum(1.0); }, "exchange");
    expect_refused([&] { (void)copies.context->all_gather(Tensor::full({2}, 1.0)); }, "after fork");
  });
}

TEST(Fork, TheChildDestroysItsCopiesAndTheRankContinues) {
  train_beside_children([](Copies& copies) {
    expect_good([&] {
      copies.model.reset();
      copies.net.reset();
      copies.context.reset();
    });
  });
}

// Over TCP each rank has threads for the control plane, and rank 0 has those of the hub.
TEST(Fork, RanksOfSeveralHostsBehaveLikeThoseOfOne) {
  const int port = testing::job_port();
  const auto each_on_its_host = [port](int rank) {
    return testing::world_on_hosts({1, 1}, rank, port);
  };
  train_beside_children(
      [](Copies& copies) {
        expect_refused([&] { copies.context->barrier(); }, "barrier");
        expect_good([&] {
          copies.model.reset();
          copies.context.reset();
        });
      },
      each_on_its_host);
}

TEST(Fork, TheChildStartsAProgramOrEnds) {
  train_beside_children([](Copies&) {
    expect_good([] {});
    expect_good([] {
      execl("/bin/true", "true", nullptr);
      _exit(1);
    });
  });
}

// The child would meet the other ranks in its parent's name.
TEST(Fork, ARankCannotBeginInTheChildOfOne) {
  train_beside_children([](Copies&) { expect_refused([] { (void)init(); }, "ts::init()"); });
  expect_good([] {
    const Context context = init();
    expect_refused([] { (void)init(); }, "ts::init()");
    context.barrier();
  });
}

TEST(Fork, ARankBeginsInTheChildOfAProcessThatHasNotUsedTheLibrary) {
  expect_good([] {
    expect_good([] {
      const Context context = init();
      EXPECT_EQ(context.sum(2.0), 2.0);
    });
  });
}

}  // namespace
}  // namespace tessera
