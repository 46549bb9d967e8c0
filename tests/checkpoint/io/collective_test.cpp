// When a joint operation of the ranks fails, it fails on all of them in the same way, and the error
// keeps its kind.
#include "checkpoint/io/collective.h"

#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <functional>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/error.h"
#include "checkpoint/io/file.h"
#include "checkpoint/support.h"
#include "comm/world.h"

namespace tessera::checkpoint {
namespace {

namespace fs = std::filesystem;

// The kind and the text of the error on each of two ranks, for work that fails on rank 1.
std::vector<std::string> failures_of(const std::function<void()>& throws) {
  std::vector<std::string> seen(2);
  comm::run_local(2, [&](const auto& communicator) {
    std::string& mine = seen[static_cast<std::size_t>(communicator->rank())];
    try {
      (void)run_on_all_ranks(*communicator, "saving", [&] {
        if (communicator->rank() == 1) throws();
        return std::string("done");
      });
      mine = "no error";
    } catch (const Error& error) {
      mine = std::to_string(static_cast<int>(error.code())) + ": " + error.what();
    } catch (const std::logic_error& error) {
      mine = std::string("misuse: ") + error.what();
    }
  });
  return seen;
}

std::vector<std::string> twice(const std::string& text) {
  return {text, text};
}

TEST(Together, FailuresKeepTheirKind) {
  EXPECT_EQ(failures_of([] { throw std::bad_alloc(); }), twice("6: saving: rank 1: out of memory"));
  EXPECT_EQ(failures_of([] { fail(ErrorCode::out_of_memory, "9 bytes asked for"); }),
            twice("6: saving: rank 1: 9 bytes asked for"));
  EXPECT_EQ(failures_of([] { misuse("a hook that returns nothing"); }),
            twice("misuse: saving: rank 1: a hook that returns nothing"));
  EXPECT_EQ(failures_of([] { fail(ErrorCode::runtime, "write: EIO"); }),
            twice("5: saving: rank 1: write: EIO"));
  EXPECT_EQ(failures_of([] { throw std::runtime_error("unknown"); }),
            twice("5: saving: rank 1: unknown"));
}

TEST(Together, ReportsHowManyOtherRanksFailed) {
  comm::run_local(3, [&](const auto& communicator) {
    try {
      (void)run_on_all_ranks(*communicator, "saving", [&]() -> std::string {
        if (communicator->rank() > 0) fail(ErrorCode::runtime, "no room");
        return {};
      });
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      // The other rank may arrive a moment later; it is then ended and not counted.
      const std::string text = error.what();
      EXPECT_TRUE(text == "saving: rank 1: no room (and 1 more rank failed)" ||
                  text == "saving: rank 1: no room" || text == "saving: rank 2: no room")
          << text;
    }
  });
}

// A disk that throws at the first write of rank 1.
template <class Failure>
class Throwing final : public SystemCalls {
 public:
  ssize_t pwrite(int fd, const void* data, std::size_t bytes, off_t offset) override {
    if (!thrown_.exchange(true)) throw Failure();
    return SystemCalls::pwrite(fd, data, bytes, offset);
  }

 private:
  std::atomic<bool> thrown_{false};
};

struct Misuse : std::logic_error {
  Misuse() : std::logic_error("misuse") {}
};

template <class Failure>
void expect_nothing_left(const std::string& what) {
  const testing::TemporaryFolder folder;
  Throwing<Failure> disk;
  comm::run_local(2, [&](const auto& communicator) {
    std::optional<ScopedSystemCalls> scope;
    if (communicator->rank() == 1) scope.emplace(disk);
    try {
      testing::save_version(*communicator, folder.path(), 1, {});
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::out_of_memory) << error.what();
      EXPECT_TRUE(testing::has(error.what(), what));
    } catch (const std::logic_error& error) {
      EXPECT_TRUE(testing::has(error.what(), what));
    }
  });
  for (const auto& entry : fs::directory_iterator(folder.path())) {
    EXPECT_FALSE(entry.path().filename().string().starts_with("step-")) << entry.path();
  }
}

TEST(Together, ASaveThatFailsThisWayLeavesNothing) {
  expect_nothing_left<std::bad_alloc>("rank 1: out of memory");
  expect_nothing_left<Misuse>("rank 1: misuse");
}

}  // namespace
}  // namespace tessera::checkpoint
