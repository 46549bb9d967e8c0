// Failures beside a save are reported and do not end it: leftovers, retention, a file system
// without flock, a process killed between two renames.
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "checkpoint/steps/commit.h"
#include "checkpoint/support.h"

namespace tessera::checkpoint {
namespace {

using namespace testing;

Saved save_and_tell(const fs::path& dir, int step, const SaveOptions& options = {},
                    SystemCalls* calls = nullptr) {
  Saved saved;
  comm::run_local(1, [&](const auto& communicator) {
    std::optional<ScopedSystemCalls> scope;
    if (calls != nullptr) scope.emplace(*calls);
    const RankState own = make_state(0, 1, step, whole_cut(), true);
    saved = save(*communicator, dir.string(), step, own.state, options);
  });
  return saved;
}

// A folder on NFS in which another host reads: a file that is open elsewhere stays under a name
// .nfsXXXX, and so does its folder.
class ReaderElsewhere final : public SystemCalls {
 public:
  explicit ReaderElsewhere(int number) : number_(number) {}
  int unlinkat(int folder, const char* name, int flags) override {
    if (flags != AT_REMOVEDIR) return SystemCalls::unlinkat(folder, name, flags);
    errno = number_;
    return -1;
  }

 private:
  int number_;
};

TEST(Housekeeping, AReaderOfAnOldStepDoesNotStopTraining) {
  for (const int number : {ENOTEMPTY, EBUSY}) {
    TemporaryFolder folder;
    ReaderElsewhere calls(number);
    for (const int step : {1, 2, 3}) {
      const Saved saved = save_and_tell(folder.path(), step, {.keep = 1}, &calls);
      EXPECT_EQ(saved.warnings.empty(), step == 1);
      expect_version(folder.path() / fmt::format("step-{}", step), step);
    }
    // The reader has finished.
    EXPECT_TRUE(save_and_tell(folder.path(), 4, {.keep = 1}).warnings.empty());
    int folders = 0;
    for (const auto& entry : fs::directory_iterator(folder.path())) folders += entry.is_directory();
    EXPECT_EQ(folders, 1);
  }
}

class NoLatest final : public SystemCalls {
 public:
  int rename(const char* from, const char* to) override {
    if (!std::string(to).ends_with("/latest")) return SystemCalls::rename(from, to);
    errno = EDQUOT;
    return -1;
  }
};

TEST(Housekeeping, AFailureOfTheHintDoesNotStopTraining) {
  TemporaryFolder folder;
  NoLatest calls;
  const Saved saved = save_and_tell(folder.path(), 1, {}, &calls);
  ASSERT_EQ(saved.warnings.size(), 1u);
  EXPECT_TRUE(has(saved.warnings[0], "step-1 is committed; "));
  EXPECT_TRUE(has(saved.warnings[0], "EDQUOT"));
}

TEST(Recovery, ACompleteStepBetweenTwoRenamesIsRestored) {
  for (const char* kind : {".partial-", ".removed-"}) {
    const std::string name = std::string("step-5") + kind + "0123456789abcdef";
    for (const bool by_reader : {true, false}) {
      TemporaryFolder folder;
      save_version(folder.path(), 5);
      fs::rename(folder.path() / "step-5", folder.path() / name);
      if (!by_reader) save_version(folder.path(), 6, {.keep = 2});
      const auto found = find_latest_alone(folder.path());
      ASSERT_TRUE(found.has_value());
      EXPECT_EQ(found->step, by_reader ? 5 : 6);
      expect_version(folder.path() / "step-5", 5);
    }
  }
}

TEST(Recovery, TheNewerOfTwoWins) {
  TemporaryFolder folder;
  save_version(folder.path(), 5);
  const fs::path old = folder.path() / "step-5.removed-0123456789abcdef";
  fs::rename(folder.path() / "step-5", old);
  comm::run_local(1, [&](const auto& communicator) {
    const RankState own = make_state(0, 1, 6, whole_cut(), true);
    save(*communicator, (folder.path() / "other").string(), 5, own.state, {});
  });
  fs::rename(folder.path() / "other/step-5", folder.path() / "step-5.partial-00000000000000ff");
  fs::remove_all(folder.path() / "other");
  find_latest_alone(folder.path());
  expect_version(folder.path() / "step-5", 6);
  EXPECT_TRUE(fs::exists(old));  // a reader deletes nothing
  save_version(folder.path(), 7);
  EXPECT_FALSE(fs::exists(old));
}

TEST(Recovery, AnIncompleteStepIsNotRestored) {
  TemporaryFolder folder;
  const fs::path partial = folder.path() / "step-5.partial-0123456789abcdef";
  save_version(folder.path(), 5);
  fs::rename(folder.path() / "step-5", partial);
  fs::resize_file(partial / "model.safetensors", 100);
  EXPECT_FALSE(find_latest_alone(folder.path()).has_value());
  save_version(folder.path(), 1);
  EXPECT_FALSE(fs::exists(partial));
  EXPECT_FALSE(fs::exists(folder.path() / "step-5"));
}

// As on Lustre without -o flock, and on some FUSE file systems.
class NoFlock final : public SystemCalls {
 public:
  explicit NoFlock(int number) : number_(number) {}
  int flock(int, int) override {
    errno = number_;
    return -1;
  }

 private:
  int number_;
};

fs::path owner_file(const fs::path& dir) {
  return dir / ".lock-owner";
}

TEST(LockWithoutFlock, SavesWithAWarning) {
  for (const int number : {ENOLCK, ENOSYS, EOPNOTSUPP}) {
    TemporaryFolder folder;
    NoFlock calls(number);
    const Saved saved = save_and_tell(folder.path(), 1, {}, &calls);
    ASSERT_EQ(saved.warnings.size(), 1u);
    EXPECT_TRUE(has(saved.warnings[0], "has no flock"));
    EXPECT_FALSE(fs::exists(owner_file(folder.path())));
  }
}

TEST(LockWithoutFlock, ASecondSaveIsRefusedByName) {
  TemporaryFolder folder;
  NoFlock calls(ENOLCK);
  const ScopedSystemCalls scope(calls);
  const PendingStep pending(folder.path(), 2, "0123456789abcdef", 1);
  const std::string text = error_of([&] { save_and_tell(folder.path(), 3, {}, &calls); });
  EXPECT_TRUE(has(text, fmt::format("process {} on ", ::getpid())));
}

TEST(LockWithoutFlock, OnlyALockOfACertainlyDeadOwnerIsTakenOver) {
  TemporaryFolder folder;
  NoFlock calls(ENOLCK);
  const pid_t child = ::fork();
  ASSERT_NE(child, -1);
  if (child == 0) {
    const ScopedSystemCalls scope(calls);
    const PendingStep pending(folder.path(), 2, "0123456789abcdef", 1);
    ::kill(::getpid(), SIGKILL);
  }
  ::waitpid(child, nullptr, 0);
  const std::string left = read_all(owner_file(folder.path()));
  ASSERT_TRUE(has(left, fmt::format("pid {}\n", child)));
  EXPECT_EQ(save_and_tell(folder.path(), 3, {}, &calls).warnings.size(), 1u);
  // The state of an owner on another host is unknown, and so is that of a file that does not name
  // an owner.
  for (const std::string& text : {"host elsewhere\n" + left.substr(left.find("pid")),
                                  std::string("garbage"), std::string()}) {
    write_all(owner_file(folder.path()), text);
    const std::string refusal = error_of([&] { save_and_tell(folder.path(), 4, {}, &calls); });
    EXPECT_TRUE(has(refusal, "remove that file if this process no longer runs"));
    EXPECT_EQ(read_all(owner_file(folder.path())), text);
  }
  // After a restart of the host the process id belongs to another process, or to none.
  std::string restarted = left.substr(0, left.find("boot")) + "boot other\nstart 1\n";
  restarted.replace(restarted.find("pid"), restarted.find("boot") - restarted.find("pid"),
                    fmt::format("pid {}\n", ::getpid()));
  write_all(owner_file(folder.path()), restarted);
  save_and_tell(folder.path(), 5, {}, &calls);
}

// Another run takes over from a dead one just before this run does.
class OvertakenAtTheOwnerFile final : public SystemCalls {
 public:
  OvertakenAtTheOwnerFile(fs::path dir, std::string theirs)
      : dir_(std::move(dir)), theirs_(std::move(theirs)) {}
  int flock(int, int) override {
    errno = ENOLCK;
    return -1;
  }
  int unlinkat(int folder, const char* name, int flags) override {
    overtake(dir_ / name);
    return SystemCalls::unlinkat(folder, name, flags);
  }
  int rename(const char* from, const char* to) override {
    overtake(from);
    return SystemCalls::rename(from, to);
  }

 private:
  void overtake(const fs::path& path) {
    if (path.filename() == ".lock-owner" && !std::exchange(done_, true)) write_all(path, theirs_);
  }
  fs::path dir_;
  std::string theirs_;
  bool done_ = false;
};

TEST(LockWithoutFlock, OneOfTwoTakesOver) {
  TemporaryFolder folder;
  save_version(folder.path(), 1);
  write_all(owner_file(folder.path()), "host elsewhere\npid 1\nboot b\nstart 1\n");
  NoFlock calls(ENOLCK);
  // An owner on this host that has ended.
  std::string here;
  {
    const ScopedSystemCalls scope(calls);
    fs::remove(owner_file(folder.path()));
    const PendingStep pending(folder.path(), 2, "0123456789abcdef", 1);
    here = read_all(owner_file(folder.path()));
  }
  write_all(owner_file(folder.path()), here.substr(0, here.find("boot")) + "boot other\nstart 1\n");
  OvertakenAtTheOwnerFile overtaken(folder.path(), here);
  const std::string text = error_of([&] { save_and_tell(folder.path(), 3, {}, &overtaken); });
  EXPECT_TRUE(has(text, "another run is saving into"));
  EXPECT_EQ(read_all(owner_file(folder.path())), here);
}

TEST(Links, AreNotWrittenThrough) {
  TemporaryFolder folder;
  write_all(folder.path() / "precious", "thesis");
  fs::create_directory(folder.path() / "out");
  fs::create_symlink(folder.path() / "precious", folder.path() / "out/.lock");
  EXPECT_TRUE(has(error_of([&] { save_and_tell(folder.path() / "out", 1); }), "ELOOP"));
  EXPECT_EQ(read_all(folder.path() / "precious"), "thesis");
}

class NoSpace final : public SystemCalls {
 public:
  int fallocate(int, off_t) override {
    errno = ENOSPC;
    return -1;
  }
  ssize_t pwrite(int fd, const void* data, std::size_t bytes, off_t offset) override {
    ++writes;
    return SystemCalls::pwrite(fd, data, bytes, offset);
  }
  int writes = 0;
};

TEST(Space, IsTakenBeforeTheFirstByte) {
  TemporaryFolder folder;
  NoSpace calls;
  EXPECT_TRUE(has(error_of([&] { save_and_tell(folder.path(), 1, {}, &calls); }), "ENOSPC"));
  EXPECT_EQ(calls.writes, 0);
}

}  // namespace
}  // namespace tessera::checkpoint
