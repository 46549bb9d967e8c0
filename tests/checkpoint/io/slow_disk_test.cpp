// A slow disk does not end a save, however long no rank reaches a collective. A disk that hangs
// ends the save with an error that names the call, and the earlier checkpoint stays.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "checkpoint/io/file.h"
#include "checkpoint/support.h"

namespace tessera::checkpoint {
namespace {

using namespace testing;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// Each write, and each fsync, of the given rank takes this long.
class SlowDisk final : public SystemCalls {
 public:
  milliseconds of_write{0};
  milliseconds of_fsync{0};
  ssize_t pwrite(int fd, const void* data, std::size_t bytes, off_t offset) override {
    std::this_thread::sleep_for(of_write);
    return SystemCalls::pwrite(fd, data, bytes, offset);
  }
  int fsync(int fd) override {
    ++hanging;
    std::this_thread::sleep_for(of_fsync);
    while (held) std::this_thread::sleep_for(milliseconds(5));
    const int result = SystemCalls::fsync(fd);
    --hanging;
    return result;
  }
  std::atomic<bool> held{false};  // no call of fsync comes back
  std::atomic<int> hanging{0};
};

// Two ranks whose collectives wait for at most 300 ms, as does the deadlock detection; the disk is
// slow for rank 1.
std::vector<std::string> save_on(SlowDisk& disk, const fs::path& dir, const SaveOptions& options) {
  std::vector<std::string> errors(2);
  comm::run_local(
      2,
      [&](const auto& communicator) {
        std::optional<ScopedSystemCalls> scope;
        const int rank = communicator->rank();
        if (rank == 1) scope.emplace(disk);
        try {
          save_version(*communicator, dir, 2, options);
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), ErrorCode::checkpoint);
          errors[static_cast<std::size_t>(rank)] = error.what();
        }
      },
      {.collective_timeout = milliseconds(300), .standstill_timeout = milliseconds(300)});
  return errors;
}

TEST(SlowDisk, MayTakeTenTimesTheCollectiveTimeoutInManyCalls) {
  const TemporaryFolder folder;
  SlowDisk disk;
  disk.of_write = milliseconds(1600);  // two files per rank: 3.2 s
  const auto begin = Clock::now();
  const auto errors = save_on(
      disk, folder.path(), {.type = StateDictType::sharded, .stall_timeout = milliseconds(20'000)});
  EXPECT_EQ(errors, std::vector<std::string>(2));
  EXPECT_GT(Clock::now() - begin, milliseconds(3000));
  expect_version(folder.path() / "step-2", 2);
}

TEST(SlowDisk, MayTakeTenTimesTheCollectiveTimeoutInOneCall) {
  const TemporaryFolder folder;
  SlowDisk disk;
  disk.of_fsync = milliseconds(3000);
  const auto errors = save_on(disk, folder.path(),
                              {.type = StateDictType::full, .stall_timeout = milliseconds(20'000)});
  EXPECT_EQ(errors, std::vector<std::string>(2));
  expect_version(folder.path() / "step-2", 2);
}

TEST(SlowDisk, ThatHangsIsNamed) {
  const TemporaryFolder folder;
  save_version(folder.path(), 1);
  static SlowDisk disk;  // a call that hangs outlives the save
  disk.held = true;
  const auto errors = save_on(disk, folder.path(),
                              {.type = StateDictType::sharded, .stall_timeout = milliseconds(400)});
  EXPECT_GT(disk.hanging, 0);  // the save has not waited for it
  EXPECT_EQ(errors[0], errors[1]);
  EXPECT_TRUE(has(errors[0], "rank 1: the disk does not respond: fsync of '"));
  EXPECT_TRUE(has(errors[0],
                  "-rank-00001-of-00002.safetensors' has not returned for 0.4 s "
                  "(checkpoint.stall_timeout)"));
  EXPECT_EQ(find_latest_alone(folder.path())->step, 1);
  // It comes back at last: what was under way ends, and the next save works.
  disk.held = false;
  while (disk.hanging > 0) std::this_thread::sleep_for(milliseconds(20));
  std::this_thread::sleep_for(milliseconds(200));
  save_version(folder.path(), 2);
  expect_version(folder.path() / "step-2", 2);
}

}  // namespace
}  // namespace tessera::checkpoint
