// The access checker: the orders that it accepts, the accesses that it reports, and its size, which
// stays small. It examines only calls, so every schedule of streams gives the same result.
#include <cstdlib>
#include <cstring>

#include "emulator/access/access_history.h"
#include "emulator/cuda/drop_waits.h"
#include "emulator/runtime/checker.h"
#include "emulator/runtime_testing.h"

namespace tessera::emulator {
namespace {

using namespace testing;  // NOLINT: names of this test's own header

class Checker : public ::testing::Test {
 protected:
  void SetUp() override {
    was_enabled_ = checker::enabled();
    checker::set_enabled(true);
    checker::reset();
  }
  void TearDown() override {
    EXPECT_CUDA(cudaDeviceSynchronize());
    checker::reset();
    checker::set_enabled(was_enabled_);
  }

  // Expects one conflict whose report contains these parts.
  static void expect_report(std::initializer_list<const char*> parts) {
    EXPECT_EQ(checker::conflicts(), 1);
    ASSERT_EQ(checker::reports().size(), 1u);
    for (const char* part : parts) {
      EXPECT_NE(checker::reports()[0].find(part), std::string::npos)
          << part << " in: " << checker::reports()[0];
    }
  }

  // Never really accessed at the same time: only the order matters, not the numbers.
  Memory a_;
  Memory b_;
  OwnedStream gather_{"gather"};
  OwnedStream compute_{"compute"};
  OwnedEvent event_;

 private:
  bool was_enabled_ = false;
};

TEST_F(Checker, AcceptsEventsAndHostWaits) {
  EXPECT_CUDA(cudaMemsetAsync(a_.data(), 0, array_bytes, gather_));
  EXPECT_CUDA(cudaEventRecord(event_, gather_));
  EXPECT_CUDA(cudaStreamWaitEvent(compute_, event_, 0));
  EXPECT_CUDA(launch_add(compute_, a_.data(), 1));
  EXPECT_CUDA(cudaStreamSynchronize(compute_));
  EXPECT_CUDA(launch_add(gather_, a_.data(), 1));
  EXPECT_CUDA(cudaEventRecord(event_, gather_));
  EXPECT_CUDA(cudaEventSynchronize(event_));
  EXPECT_CUDA(launch_add(compute_, a_.data(), 1));
  EXPECT_EQ(checker::conflicts(), 0);
}

TEST_F(Checker, AcceptsReadersBesideOneAnother) {
  EXPECT_CUDA(cudaMemsetAsync(a_.data(), 0, array_bytes, gather_));
  EXPECT_CUDA(cudaStreamSynchronize(gather_));
  const OwnedStream third("third");
  const Memory c;
  EXPECT_CUDA(launch_copy(compute_, b_.data(), a_.data()));
  EXPECT_CUDA(launch_copy(third, c.data(), a_.data()));
  EXPECT_EQ(checker::conflicts(), 0);
}

TEST_F(Checker, AcceptsOrderThroughAThirdStream) {
  const OwnedStream third("third");
  const OwnedEvent other;
  EXPECT_CUDA(cudaMemsetAsync(a_.data(), 0, array_bytes, gather_));
  EXPECT_CUDA(cudaEventRecord(event_, gather_));
  EXPECT_CUDA(cudaStreamWaitEvent(third, event_, 0));
  EXPECT_CUDA(cudaEventRecord(other, third));
  EXPECT_CUDA(cudaStreamWaitEvent(compute_, other, 0));
  EXPECT_CUDA(launch_add(compute_, a_.data(), 1));
  EXPECT_EQ(checker::conflicts(), 0);
}

TEST_F(Checker, ReportsAReadThatDoesNotWaitForTheWrite) {
  // The streams write different memory; the declared ranges have one byte in common.
  EXPECT_CUDA(cudaMemsetAsync(a_.data(), 0, array_bytes, gather_));
  EXPECT_CUDA(launch(
      compute_, record_of("late", {{a_.data() + 1, 4, false}}), +[](int) {}, 0));
  expect_report({"late reads on stream compute", "cudaMemsetAsync writes on stream gather"});
}

TEST_F(Checker, ReportsAWriteThatDoesNotWaitForTheRead) {
  EXPECT_CUDA(launch(
      compute_, record_of("reader", {{a_.data(), array_bytes, false}}), +[](int) {}, 0));
  EXPECT_CUDA(cudaMemsetAsync(a_.data(), 0, 16, gather_));
  expect_report({"cudaMemsetAsync writes on stream gather", "reader reads on stream compute"});
}

TEST_F(Checker, ReportsACudaMemsetThatTheStreamDoesNotWaitFor) {
  EXPECT_CUDA(cudaMemset(a_.data(), 0, array_bytes));  // does not wait
  EXPECT_CUDA(launch(
      compute_, record_of("reader", {{a_.data(), array_bytes, false}}), +[](int) {}, 0));
  expect_report({"reader reads on stream compute", "cudaMemset writes on stream default"});
}

TEST_F(Checker, ReportsTheHostOnPinnedMemory) {
  const Pinned pinned;
  std::memset(pinned.data(), 0, array_bytes);
  EXPECT_CUDA(
      cudaMemcpyAsync(a_.data(), pinned.data(), array_bytes, cudaMemcpyHostToDevice, gather_));
  checker::host_access(pinned.data(), array_bytes, false, "host code");  // both read
  EXPECT_EQ(checker::conflicts(), 0);
  checker::host_access(pinned.data(), 4, true, "host code");
  expect_report({"host code writes on the host", "cudaMemcpyAsync reads on stream gather"});
}

TEST_F(Checker, ReportsTheSamePairOnce) {
  for (int i = 0; i < 5; ++i) {
    EXPECT_CUDA(launch(
        gather_, record_of("writer", {{a_.data(), array_bytes, true}}), +[](int) {}, 0));
    EXPECT_CUDA(launch(
        compute_, record_of("reader", {{a_.data(), array_bytes, false}}), +[](int) {}, 0));
  }
  EXPECT_EQ(checker::conflicts(), 9);
  EXPECT_EQ(checker::reports().size(), 2u);
}

TEST_F(Checker, ForgetsFreedMemory) {
  for (int i = 0; i < 20; ++i) {
    void* memory = nullptr;
    cudaStream_t stream = i % 2 == 0 ? gather_ : compute_;
    ASSERT_CUDA(cudaMallocAsync(&memory, array_bytes, stream));
    EXPECT_CUDA(cudaMemsetAsync(memory, 0, array_bytes, stream));
    EXPECT_CUDA(cudaFreeAsync(memory, stream));
  }
  EXPECT_EQ(checker::conflicts(), 0);
}

TEST_F(Checker, ReportsMemoryUsedBeforeItsAllocationInStreamOrder) {
  void* memory = nullptr;
  ASSERT_CUDA(cudaMallocAsync(&memory, array_bytes, gather_));
  EXPECT_CUDA(cudaMemsetAsync(memory, 0, array_bytes, compute_));
  expect_report(
      {"cudaMemsetAsync writes on stream compute", "cudaMallocAsync writes on stream gather"});
  EXPECT_CUDA(cudaFree(memory));
}

TEST_F(Checker, FindsAWaitThatWasDropped) {
  const DropWaits fault("compute", "gather");
  const DropWaits other("gather", "compute");
  EXPECT_CUDA(launch(
      gather_, record_of("writer", {{a_.data(), array_bytes, true}}), +[](int) {}, 0));
  EXPECT_CUDA(cudaEventRecord(event_, gather_));
  EXPECT_CUDA(cudaStreamWaitEvent(compute_, event_, 0));
  EXPECT_CUDA(launch(
      compute_, record_of("reader", {{a_.data(), array_bytes, false}}), +[](int) {}, 0));
  EXPECT_EQ(fault.count(), 1);
  EXPECT_EQ(other.count(), 0);
  expect_report({"reader reads on stream compute"});
}

TEST(AccessHistory, StaysSmallOverRepeatedSteps) {
  AccessHistory history;
  const auto ignore = [](const PastAccess&, AccessHistory::Range) {};
  std::size_t after_first = 0;
  for (std::uint64_t step = 1; step <= 1000; ++step) {
    for (std::uintptr_t part = 0; part < 16; ++part) {
      history.access({part * 100, part * 100 + 100}, {1 + part % 2, step, "part", nullptr, true},
                     ignore);
    }
    history.access({0, 1600}, {3, step, "whole", nullptr, false}, ignore);
    history.access({50, 850}, {4, step, "middle", nullptr, false}, ignore);
    if (step == 1) after_first = history.size();
  }
  EXPECT_EQ(history.size(), after_first);
  history.access({0, 1600}, {1, 1001, "whole", nullptr, true}, ignore);
  EXPECT_EQ(history.size(), 1u);
  history.forget({100, 200});
  EXPECT_EQ(history.size(), 2u);
}

using CheckerDeathTest = Checker;
TEST_F(CheckerDeathTest, EndsTheProgramWhereAskedTo) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  (void)setenv("TESSERA_EMULATOR_CHECK", "halt", 1);
  EXPECT_DEATH(
      {
        (void)cudaMemsetAsync(a_.data(), 0, array_bytes, gather_);
        (void)cudaMemsetAsync(a_.data(), 0, array_bytes, compute_);
      },
      "ended at the first unordered accesses");
  (void)unsetenv("TESSERA_EMULATOR_CHECK");
}

}  // namespace
}  // namespace tessera::emulator
