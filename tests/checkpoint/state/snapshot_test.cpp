// The copy of the state with which an asynchronous save begins: every byte, with any number of
// threads, and no byte beyond.
#include "checkpoint/state/snapshot.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/parallel.h"
#include "checkpoint/support.h"

namespace tessera::checkpoint {
namespace {

// Lengths around those of a vector, a cache line and a thread's part.
const std::vector<std::int64_t> lengths = {0,        1, 15, 16, 17, 1000, 1 << 20, (1 << 20) + 3,
                                           3'000'001};

State state_over(std::vector<std::vector<float>>& memory) {
  State state;
  for (std::size_t t = 0; t < lengths.size(); ++t) {
    auto& values =
        memory.emplace_back(static_cast<std::size_t>(lengths[t]) + 1);  // begins at any address
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<float>(i * 7 + t * 1'000'003);
    }
    const LogicalTensor tensor{"t" + std::to_string(t),
                               DType::float32,
                               {lengths[t]},
                               {{0, lengths[t], reinterpret_cast<std::byte*>(values.data() + 1)}}};
    (t % 2 == 0 ? state.model : state.optimizer).push_back(tensor);
  }
  return state;
}

class Threads {
 public:
  explicit Threads(int threads) : before_(compute_threads()) { set_compute_threads(threads); }
  ~Threads() { set_compute_threads(before_); }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

 private:
  int before_;
};

TEST(Snapshot, HasEveryByteWhateverTheNumberOfThreads) {
  std::vector<std::vector<float>> memory;
  const State state = state_over(memory);
  Snapshot snapshot;
  for (const int threads : {1, 2, 3}) {
    const Threads scope(threads);
    const State copy = snapshot.take(state, Device::cpu(), DType::float32);
    for (const auto section : {&State::model, &State::optimizer}) {
      for (std::size_t t = 0; t < (state.*section).size(); ++t) {
        const Piece& from = (state.*section)[t].pieces.at(0);
        const Piece& to = (copy.*section)[t].pieces.at(0);
        ASSERT_EQ(to.count, from.count);
        ASSERT_NE(to.data, from.data);
        const auto bytes = static_cast<std::size_t>(from.count) * sizeof(float);
        EXPECT_TRUE(std::equal(from.data, from.data + bytes, to.data)) << (state.*section)[t].name;
        std::fill_n(to.data, bytes, std::byte{0});  // the next copy starts from scratch
      }
    }
  }
}

}  // namespace
}  // namespace tessera::checkpoint
