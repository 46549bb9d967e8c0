// A save that fails, is killed or loses power at any of its system calls: the old checkpoint stays,
// find_latest returns the old or the new one, and the next save works.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "checkpoint/faulty_calls.h"
#include "checkpoint/support.h"

namespace tessera::checkpoint {
namespace {

using namespace testing;

// The existing step 1, and the step that is saved over it or beside it.
struct Scenario {
  const char* name;
  StateDictType type;
  std::int64_t step;  // of the new save, whose contents are version 2
  int keep;
  int world;
  bool no_exchange;
};

struct Outcome {
  std::string error, warnings;
};

void PrintTo(const Scenario& scenario, std::ostream* out) {
  *out << scenario.name;
}

class SaveFaults : public ::testing::TestWithParam<Scenario> {
 protected:
  void SetUp() override {
    save_version(base(), 0);
    save_version(base(), 1);
  }

  // A fresh copy of the folder with steps 0 and 1.
  void reset() {
    fs::remove_all(dir());
    fs::copy(base(), dir(), fs::copy_options::recursive);
  }

  // With `outcomes`, each rank's error, or its warnings joined.
  void save_new(FaultyCalls* calls, std::vector<Outcome>* outcomes = nullptr) {
    const Scenario& scenario = GetParam();
    if (calls != nullptr) calls->no_exchange = scenario.no_exchange;
    comm::run_local(scenario.world, [&](const auto& communicator) {
      std::optional<ScopedSystemCalls> scope;
      if (calls != nullptr) scope.emplace(*calls);
      const int rank = communicator->rank();
      const RankState own = make_state(rank, scenario.world, 2, even_cut(), true);
      const auto attempt = [&] {
        return save(
            *communicator, dir(), scenario.step, own.state,
            {.type = scenario.type, .keep = scenario.keep, .files = {{"config.json", "{}"}}});
      };
      if (outcomes == nullptr) {
        attempt();
        return;
      }
      Outcome& outcome = (*outcomes)[static_cast<std::size_t>(rank)];
      try {
        for (const std::string& warning : attempt().warnings) outcome.warnings += warning + "\n";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::checkpoint);
        outcome.error = error.what();
      }
    });
  }

  int count_calls() {
    reset();
    FaultyCalls calls(Fault::none, 0);
    save_new(&calls);
    return calls.calls();
  }

  // The old or the new step is complete; returns the version found.
  int expect_old_or_new() {
    const auto found = find_latest_alone(dir());
    EXPECT_TRUE(found.has_value());
    if (!found) return -1;
    const int version = static_cast<int>(read_scalars(found->path).get<std::int64_t>("step"));
    EXPECT_TRUE(version == 1 || version == 2) << version;
    expect_version(found->path, version);
    return version;
  }

  void expect_no_leftovers() {
    for (const auto& entry : fs::directory_iterator(dir())) {
      const std::string name = entry.path().filename();
      EXPECT_EQ(name.find(".partial-"), std::string::npos) << name;
      EXPECT_EQ(name.find(".removed-"), std::string::npos) << name;
    }
  }

  [[nodiscard]] fs::path base() const { return folder_.path() / "base"; }
  [[nodiscard]] fs::path dir() const { return folder_.path() / "checkpoints"; }

  TemporaryFolder folder_;
};

TEST_P(SaveFaults, DiesAtEveryCall) {
  const int total = count_calls();
  EXPECT_GT(total, 20);
  for (const Fault fault : {Fault::kill, Fault::power_loss}) {
    die_at_every_call(
        fault, total, [&] { reset(); }, [&](FaultyCalls& calls) { save_new(&calls); },
        [&] {
          expect_old_or_new();
          FaultyCalls none(Fault::none, 0);
          save_new(&none);  // and training continues
          expect_no_leftovers();
          expect_version(dir() / fmt::format("step-{}", GetParam().step), 2);
        });
  }
}

TEST_P(SaveFaults, FailsAtEveryCall) {
  const int total = count_calls();
  for (const int error_number : {EIO, ENOSPC}) {
    for (int k = 1; k <= total; ++k) {
      SCOPED_TRACE(fmt::format("call {} of {}, errno {}", k, total, error_number));
      reset();
      FaultyCalls calls(Fault::error, k, error_number);
      std::vector<Outcome> outcomes(static_cast<std::size_t>(GetParam().world));
      save_new(&calls, &outcomes);
      const auto& [error, warnings] = outcomes[0];
      for (const Outcome& other : outcomes) {
        EXPECT_EQ(other.error, error);
        EXPECT_EQ(other.warnings, warnings);
      }
      EXPECT_TRUE(has(error + warnings, error_number == EIO ? "EIO" : "ENOSPC"));
      const int version = expect_old_or_new();
      // Either there is at most a warning, or the error says that the step is complete, or the step
      // is absent; leftovers that could be removed are gone.
      EXPECT_EQ(version == 2, error.empty() || has(error, "is complete in its place"));
      if (!has(error + warnings, "stays until the next save") && !has(warnings, "is committed; ") &&
          !has(error, "is complete in its place")) {
        expect_no_leftovers();
      }
      if (HasFailure()) return;
      save_new(nullptr);
      expect_no_leftovers();
      if (HasFailure()) return;
    }
  }
}

TEST_P(SaveFaults, AllCallsFailFromOneOn) {
  const int total = count_calls();
  for (int k = 1; k <= total; k += 3) {
    SCOPED_TRACE(fmt::format("call {} of {}", k, total));
    reset();
    FaultyCalls calls(Fault::errors_on, k, EROFS);
    std::vector<Outcome> outcomes(static_cast<std::size_t>(GetParam().world));
    save_new(&calls, &outcomes);
    for (const Outcome& other : outcomes) EXPECT_EQ(other.error, outcomes[0].error);
    EXPECT_TRUE(has(outcomes[0].error + outcomes[0].warnings, "EROFS"));
    expect_old_or_new();
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Scenarios, SaveFaults,
    ::testing::Values(Scenario{"FullBesideOld", StateDictType::full, 2, 0, 1, false},
                      Scenario{"FullWithRetention", StateDictType::full, 2, 1, 1, false},
                      Scenario{"FullOverOld", StateDictType::full, 1, 0, 1, false},
                      Scenario{"FullOverOldWithoutExchange", StateDictType::full, 1, 0, 1, true},
                      Scenario{"ShardedTwoRanks", StateDictType::sharded, 2, 1, 2, false}),
    [](const auto& scenario) { return std::string(scenario.param.name); });

// Writes and reads at most seven bytes per call; a signal interrupts every second call.
class HaltingCalls final : public SystemCalls {
 public:
  int open(const char* path, int flags, mode_t mode) override {
    return interrupted() ? -1 : SystemCalls::open(path, flags, mode);
  }
  ssize_t pread(int fd, void* data, std::size_t bytes, off_t offset) override {
    return interrupted() ? -1
                         : SystemCalls::pread(fd, data, std::min<std::size_t>(bytes, 7), offset);
  }
  ssize_t pwrite(int fd, const void* data, std::size_t bytes, off_t offset) override {
    return interrupted() ? -1
                         : SystemCalls::pwrite(fd, data, std::min<std::size_t>(bytes, 7), offset);
  }
  int ftruncate(int fd, off_t bytes) override {
    return interrupted() ? -1 : SystemCalls::ftruncate(fd, bytes);
  }
  int fsync(int fd) override { return interrupted() ? -1 : SystemCalls::fsync(fd); }
  int flock(int fd, int operation) override {
    return interrupted() ? -1 : SystemCalls::flock(fd, operation);
  }

 private:
  bool interrupted() {
    errno = EINTR;
    return (calls_++ & 1u) == 0;
  }
  std::atomic<unsigned> calls_{0};
};

TEST(Faults, ShortAndInterruptedCallsChangeNothing) {
  TemporaryFolder folder;
  HaltingCalls calls;
  comm::run_local(1, [&](const auto& communicator) {
    const ScopedSystemCalls scope(calls);
    const auto step = save_version(*communicator, folder.path(), 5, {});
    RankState own = make_state(0, 1, 0, whole_cut(), false);
    load(*communicator, step, own.state);
    EXPECT_EQ(wrong_elements(own.state, 5), 0);
  });
  expect_version(folder.path() / "step-5", 5);
}

class SmallDisk final : public SystemCalls {
 public:
  int statvfs(const char* path, struct statvfs* result) override {
    const int status = SystemCalls::statvfs(path, result);
    result->f_bavail = 3;
    result->f_frsize = 512;
    return status;
  }
};

TEST(Faults, AFullDiskIsDetectedBeforeTheFirstByte) {
  TemporaryFolder folder;
  save_version(folder.path(), 1);
  SmallDisk calls;
  comm::run_local(2, [&](const auto& communicator) {
    const ScopedSystemCalls scope(calls);
    const std::string text = error_of([&] { save_version(*communicator, folder.path(), 2, {}); });
    EXPECT_TRUE(has(text, "the checkpoint needs "));
    EXPECT_TRUE(has(text, "has 1536 free"));
  });
  EXPECT_EQ(find_latest_alone(folder.path())->step, 1);
}

TEST(Faults, AReadErrorIsReported) {
  TemporaryFolder folder;
  save_version(folder.path(), 1);
  class Unreadable final : public SystemCalls {
    ssize_t pread(int, void*, std::size_t, off_t) override {
      errno = EIO;
      return -1;
    }
  } calls;
  comm::run_local(1, [&](const auto& communicator) {
    const ScopedSystemCalls scope(calls);
    RankState own = make_state(0, 1, 0, whole_cut(), false);
    const std::string text =
        error_of([&] { load(*communicator, folder.path() / "step-1", own.state); });
    EXPECT_TRUE(has(text, "EIO"));
  });
}

}  // namespace
}  // namespace tessera::checkpoint
