// Message streams run beside a rank's own work: between threads, and between hosts.
#include "comm/message_stream.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "base/error.h"
#include "comm/nodes/nodes_world.h"
#include "comm/world.h"
#include "sharding/sharding_testing.h"
#include "support/expect_parts.h"

namespace tessera::comm {
namespace {

using namespace std::chrono_literals;
using Ranks = std::shared_ptr<Communicator>;
using Numbers = std::vector<std::uint32_t>;

void on_threads_and_hosts(const std::function<void(Communicator&)>& fn) {
  run_local(3, [&](const Ranks& ranks) { fn(*ranks); });
  for (const testing::Hosts& hosts : {testing::Hosts{2, 2}, testing::Hosts{1, 1, 1}}) {
    testing::run_on_hosts(hosts, [&](const World&, const Ranks& ranks) { fn(*ranks); });
  }
}

Numbers numbers_of(int rank, int round) {
  Numbers numbers(250'001);
  std::iota(numbers.begin(), numbers.end(), static_cast<std::uint32_t>(rank * 1000 + round));
  return numbers;
}

std::size_t bytes_of(const Numbers& numbers) {
  return numbers.size() * sizeof(numbers.front());
}

// A ring. All its messages are in flight while the ranks' own threads call collectives.
TEST(MessageStreams, RunBesideTheRanksOwnCalls) {
  on_threads_and_hosts([](Communicator& ranks) {
    MessageStream messages(ranks, "ring");
    const int rank = ranks.rank(), size = ranks.size();
    const int previous = (rank + size - 1) % size;
    std::vector<Numbers> sent, received(3, Numbers(250'001));
    std::vector<Event> events;
    for (std::size_t round = 0; round < 3; ++round) {
      sent.push_back(numbers_of(rank, static_cast<int>(round)));
      events.push_back(messages.receive(received[round].data(), bytes_of(received[round]), previous,
                                        {.step = round}));
    }
    // No rank has sent yet: a receive that blocked here would wait forever.
    ranks.barrier();
    for (std::size_t round = 0; round < 3; ++round) {
      events.push_back(messages.send(sent[round].data(), bytes_of(sent[round]), (rank + 1) % size,
                                     {.step = round}));
    }
    EXPECT_EQ(ranks.exchange("meanwhile").size(), static_cast<std::size_t>(size));
    for (const Event& event : events) messages.join(event);
    for (int round = 0; round < 3; ++round) {
      EXPECT_EQ(received[static_cast<std::size_t>(round)], numbers_of(previous, round));
    }
  });
}

// Each rank first sends to the other, more than may be in flight, and then receives.
TEST(MessageStreams, RanksSwapInAnyOrderOfCalls) {
  on_threads_and_hosts([](Communicator& ranks) {
    MessageStream messages(ranks, "swap");
    const int rank = ranks.rank(), other = rank ^ 1;
    if (other >= ranks.size()) return;
    const Numbers mine = numbers_of(rank, 0);
    Numbers theirs(mine.size());
    std::vector<Event> events;
    for (int round = 0; round < 2; ++round) {
      events.push_back(messages.send(mine.data(), bytes_of(mine), other));
    }
    for (int round = 0; round < 2; ++round) {
      events.push_back(messages.receive(theirs.data(), bytes_of(theirs), other));
    }
    for (const Event& event : events) messages.join(event);
    EXPECT_EQ(theirs, numbers_of(other, 0));
  });
}

// Data received on one stream are sent on another.
TEST(MessageStreams, WaitForOneAnother) {
  on_threads_and_hosts([](Communicator& ranks) {
    MessageStream first(ranks, "first"), second(ranks, "second");
    const int rank = ranks.rank(), last = ranks.size() - 1;
    Numbers numbers = numbers_of(rank == 0 ? 7 : 0, 1), back(numbers.size());
    Event come;
    if (rank == 0) come = first.send(numbers.data(), bytes_of(numbers), last);
    if (rank == last) come = first.receive(numbers.data(), bytes_of(numbers), 0);
    second.wait(come);
    if (rank == last) come = second.send(numbers.data(), bytes_of(numbers), 0);
    if (rank == 0) come = second.receive(back.data(), bytes_of(back), last);
    second.join(come);
    if (rank == 0 || rank == last) {
      EXPECT_EQ(rank == 0 ? back : numbers, numbers_of(7, 1));
    }
    for (int root = 0; root < ranks.size(); ++root) {
      if (rank == root) numbers = numbers_of(root, 2);
      first.join(first.broadcast(numbers.data(), bytes_of(numbers), root));
      EXPECT_EQ(numbers, numbers_of(root, 2));
    }
  });
}

TEST(MessageStreams, RanksInADeadlockGetAnError) {
  const auto wait_for_nothing = [](Communicator& ranks) {
    MessageStream in(ranks, "in");
    std::byte byte{};
    in.join(in.receive(&byte, 1, 1 - ranks.rank(), {.step = 7}));
  };
  const std::string text = testing::message_of<Error>([&] {
    run_local(2, [&](const Ranks& ranks) { wait_for_nothing(*ranks); },
              {.standstill_timeout = 400ms});
  });
  testing::expect_parts(text,
                        {"all ranks wait for one another", "'in, to higher ranks'", "step 7"});
}

// Every later call throws the first error and does nothing.
TEST(MessageStreams, ErrorsAreThrownToTheWaitingCaller) {
  run_local(2, [](const Ranks& ranks) {
    MessageStream out(*ranks, "out");
    std::byte byte{};
    const Event none = out.send(&byte, 1, 5);
    const Event later = out.broadcast(&byte, 1, 0);
    EXPECT_THROW(out.join(none), std::logic_error);
    EXPECT_THROW(out.join(later), std::logic_error);
    ranks->barrier();
  });
}

}  // namespace
}  // namespace tessera::comm
