// The communicator for plans: it checks the protocol of buffers, counts calls, and needs no peers.
#include "comm/record/communicator.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "base/error.h"
#include "comm/world.h"

namespace tessera::comm {
namespace {

constexpr Tag in_forward{1, 2, Phase::forward};

TEST(RecordComm, CountsTheBytesThatReachTheRank) {
  const auto recorder = std::make_shared<Recorder>();
  const auto world = connect_record({.rank = 0, .size = 4}, recorder);
  const auto parameters = world->allocate("parameters", 4096, Sharing::one_copy);
  const auto gradients = world->allocate("gradients", 4096, Sharing::per_rank);
  EXPECT_EQ(world->held_bytes(), 4096u / 4 + 4096u);
  world->acquire(*parameters);
  world->all_gather(*parameters, 4096, in_forward);
  parameters->release();
  world->acquire(*gradients);
  std::byte out{};
  world->reduce_scatter(*gradients, {{0, 256, &out}}, {}, {1, 2, Phase::reduce});
  world->acquire(*gradients);
  world->all_reduce(*gradients, 1024, &out, {}, {1, 2, Phase::reduce});
  const auto& calls = recorder->calls();
  world->acquire(*parameters);
  world->all_gather(*parameters, {{0, 1024}, {2048, 512}}, {1, 3, Phase::forward});
  ASSERT_EQ(calls.size(), 4u);
  EXPECT_EQ(calls.at({Phase::forward, Op::all_gather, 3, 4}).bytes, 1536u * 3 / 4);
  EXPECT_EQ(calls.at({Phase::forward, Op::all_gather, 2, 4}).bytes, 3072u);
  EXPECT_EQ(calls.at({Phase::reduce, Op::reduce_scatter, 2, 4}).bytes, 3u * 1024);
  EXPECT_EQ(calls.at({Phase::reduce, Op::all_reduce, 2, 4}).bytes, 2u * 4096 * 3 / 4);
}

TEST(RecordComm, CountsMessagesWhereTheyArrive) {
  const auto recorder = std::make_shared<Recorder>();
  const auto world = connect_record({.rank = 1, .size = 4}, recorder);
  std::byte memory{};
  world->send(&memory, 100, 0, in_forward);
  world->receive(&memory, 200, 2, in_forward);
  world->broadcast(&memory, 400, 1, in_forward);
  world->broadcast(&memory, 800, 3, in_forward);
  // A broadcast of memory is a message from the root to each of the others.
  EXPECT_EQ(recorder->calls().at({Phase::forward, Op::send, 2, 4}).bytes, 200u + 800u);
  EXPECT_THROW(world->send(&memory, 1, 1), std::logic_error);
}

TEST(RecordComm, CountsThePiecesOfOthers) {
  const auto recorder = std::make_shared<Recorder>();
  const auto world = connect_record({.size = 4}, recorder);
  const auto buffer = world->allocate("pieces", 4000, Sharing::per_rank);
  std::byte out{};
  for (int i = 0; i < 2; ++i) {  // it is released
    world->acquire(*buffer);
    world->all_to_all(*buffer, 700, &out, in_forward);
  }
  EXPECT_EQ(recorder->calls().at({Phase::forward, Op::all_to_all, 2, 4}).bytes, 2u * 3 * 700);
}

TEST(RecordComm, HoldsTheBytesOfItsBuffers) {
  const auto recorder = std::make_shared<Recorder>();
  const auto own = connect_record({.size = 8, .one_memory = false}, recorder);
  const auto other = own->duplicate("other");
  {
    const auto buffer = own->allocate("whole", 8000, Sharing::one_copy);
    EXPECT_EQ(own->held_bytes(), 8000u);
    EXPECT_EQ(other->held_bytes(), 8000u);  // bytes of the rank
    std::byte out{};
    const auto gradients = own->allocate("gradients", 8000, Sharing::per_rank);
    own->acquire(*gradients);
    own->reduce_scatter(*gradients, {{0, 250, &out}}, {}, {});
    EXPECT_EQ(own->held_bytes(), 16000u + 1024u);  // and scratch for the sums
  }
  EXPECT_EQ(own->held_bytes(), 1024u);
}

TEST(RecordComm, SplitsByArithmetic) {
  const auto world = connect_record({.rank = 5, .size = 12}, std::make_shared<Recorder>());
  const auto block = world->split_blocks(4, "block");
  EXPECT_EQ(block->size(), 4);
  EXPECT_EQ(block->rank(), 1);
  const auto across = world->split_across_blocks(4, "across");
  EXPECT_EQ(across->size(), 3);
  EXPECT_EQ(across->rank(), 1);
  EXPECT_THROW((void)world->split(0, 0, "who knows"), std::logic_error);
  EXPECT_THROW((void)world->split_blocks(5, "uneven"), std::logic_error);
}

TEST(RecordComm, KeepsTheProtocolOfBuffers) {
  const auto world = connect_record({.size = 2}, std::make_shared<Recorder>());
  const auto buffer = world->allocate("b", 64, Sharing::one_copy);
  EXPECT_THROW(world->all_gather(*buffer, 64, {}), std::logic_error);  // not acquired
  world->acquire(*buffer);
  EXPECT_THROW(world->all_gather(*buffer, 65, {}), std::logic_error);
  world->all_gather(*buffer, 64, {});
  EXPECT_THROW(world->acquire(*buffer), std::logic_error);  // not released
  buffer->release();
  EXPECT_THROW(buffer->release(), std::logic_error);
}

TEST(RecordComm, ReturnsOneRanksAnswerForAll) {
  const auto world = connect_record({.size = 3}, std::make_shared<Recorder>());
  EXPECT_EQ(world->exchange("hello"), (std::vector<std::string>(3, "hello")));
  EXPECT_EQ(world->broadcast("all", 2), "all");
  world->barrier();
}

TEST(RecordComm, IsReturnedByConnectOnAPlannedDevice) {
  const World world{.rank = 3, .size = 1000, .local_rank = 0, .local_size = 8};
  const auto communicator = connect(world, {.device = Device::planned(DeviceType::cuda)});
  EXPECT_EQ(communicator->backend(), "record");
  EXPECT_EQ(communicator->rank(), 3);
  EXPECT_EQ(communicator->size(), 1000);
  const auto buffer = communicator->allocate("whole", 1000, Sharing::one_copy);
  EXPECT_EQ(communicator->held_bytes(), 1000u);  // one GPU per rank
}

}  // namespace
}  // namespace tessera::comm
