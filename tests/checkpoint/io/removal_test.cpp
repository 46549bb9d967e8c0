// A removal stays in the folder that it was given, whatever other processes put into its place, and
// clean-up leaves the things of other users alone.
#include "checkpoint/io/removal.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "checkpoint/convert/convert.h"
#include "checkpoint/io/failure.h"
#include "checkpoint/io/file.h"
#include "checkpoint/io/folder_lock.h"
#include "checkpoint/save/export.h"
#include "checkpoint/steps/commit.h"
#include "checkpoint/support.h"

namespace tessera::checkpoint {
namespace {

using namespace testing;

constexpr uid_t stranger = 65534;

// Exchanges a folder with a link once: when it is about to be opened, or when the first file is
// gone.
class FolderExchanger final : public SystemCalls {
 public:
  enum class When : std::uint8_t { before_opening, after_a_file };

  FolderExchanger(When when, fs::path folder, fs::path link)
      : when_(when), folder_(std::move(folder)), link_(std::move(link)) {}

  int openat(int folder, const char* name, int flags) override {
    if (when_ == When::before_opening && name == folder_.filename()) exchange_once();
    return SystemCalls::openat(folder, name, flags);
  }
  int unlinkat(int folder, const char* name, int flags) override {
    const int result = SystemCalls::unlinkat(folder, name, flags);
    if (when_ == When::after_a_file && flags == 0) exchange_once();
    return result;
  }
  [[nodiscard]] bool exchanged() const { return done_; }

 private:
  void exchange_once() {
    if (!std::exchange(done_, true)) {
      EXPECT_EQ(SystemCalls::exchange(folder_.c_str(), link_.c_str()), 0);
    }
  }
  When when_;
  fs::path folder_, link_;
  bool done_ = false;
};

// precious/, and a link to it that waits for its moment.
class RemovalTest : public ::testing::Test {
 protected:
  RemovalTest() {
    fill(folder_.path() / "precious");
    fs::create_symlink(folder_.path() / "precious", folder_.path() / "link");
  }

  static void fill(const fs::path& folder) {
    fs::create_directories(folder / "z_keys");
    write_all(folder / "manifest.json", "{}");
    write_all(folder / "a_file", "a");
    write_all(folder / "z_file", "z");
    write_all(folder / "z_keys/id", "secret");
  }
  void expect_precious() const {
    const fs::path precious = folder_.path() / "precious";
    for (const char* name : {"manifest.json", "a_file", "z_file", "z_keys/id"}) {
      EXPECT_TRUE(fs::exists(precious / name)) << name;
    }
  }
  [[nodiscard]] fs::path operator/(const std::string& name) const { return folder_.path() / name; }

  TemporaryFolder folder_;
};

TEST_F(RemovalTest, RemovesFilesFoldersAndLinks) {
  fill(*this / "tree");
  fs::rename(*this / "link", *this / "tree/link");
  remove_tree(*this / "tree/a_file");
  remove_tree(*this / "tree/");
  remove_tree(*this / "tree");
  remove_tree(*this / "none/tree");
  EXPECT_FALSE(fs::exists(*this / "tree"));
  fs::create_symlink(*this / "precious", *this / "link");
  remove_tree(*this / "link");
  EXPECT_FALSE(fs::is_symlink(*this / "link"));
  expect_precious();
}

TEST_F(RemovalTest, TheFirstFileIsTheOneThatIsNamed) {
  class NamesSeen final : public SystemCalls {
   public:
    int unlinkat(int folder, const char* name, int flags) override {
      names.emplace_back(name);
      return SystemCalls::unlinkat(folder, name, flags);
    }
    std::vector<std::string> names;
  } calls;
  const ScopedSystemCalls scope(calls);
  fill(*this / "tree");
  remove_tree(*this / "tree", "manifest.json");
  EXPECT_EQ(calls.names, (std::vector<std::string>{"manifest.json", "a_file", "z_file", "id",
                                                   "z_keys", "tree"}));
}

TEST_F(RemovalTest, AFolderThatIsExchangedForALinkIsNotFollowed) {
  using When = FolderExchanger::When;
  for (const When when : {When::before_opening, When::after_a_file}) {
    for (const char* name : {"tree/d", "tree"}) {
      SCOPED_TRACE(fmt::format("{} {}", name, static_cast<int>(when)));
      fs::remove_all(*this / "tree");
      fs::remove_all(*this / "link");
      fs::create_symlink(*this / "precious", *this / "link");
      fill(*this / "tree/d");
      FolderExchanger calls(when, *this / name, *this / "link");
      const ScopedSystemCalls scope(calls);
      const std::string text = error_of([&] { remove_tree(*this / "tree"); });
      EXPECT_TRUE(calls.exchanged());
      EXPECT_TRUE(has(text, (*this / name).string()));
      EXPECT_TRUE(has(text, "another process put something else in its place, which stays"));
      EXPECT_TRUE(fs::is_symlink(*this / name));
      expect_precious();
    }
  }
}

TEST_F(RemovalTest, RemainsOfAConversionThatAreExchangedAreNotFollowed) {
  const fs::path partial = partial_beside(*this / "dst", "0123456789abcdef");
  fill(partial / "d");
  FolderExchanger calls(FolderExchanger::When::after_a_file, partial / "d", *this / "link");
  const ScopedSystemCalls scope(calls);
  EXPECT_TRUE(has(error_of([&] { clear_partials(*this / "dst"); }), "something else in its place"));
  expect_precious();
}

TEST_F(RemovalTest, ALeftoverOfASaveThatIsExchangedIsNotFollowed) {
  const fs::path partial = *this / ("run/" + partial_name(3, "0123456789abcdef"));
  fill(partial);
  write_all(partial / "manifest.json", "damaged");
  for (const auto when :
       {FolderExchanger::When::before_opening, FolderExchanger::When::after_a_file}) {
    FolderExchanger calls(when, partial, *this / "link");
    const ScopedSystemCalls scope(calls);
    const std::vector<std::string> trouble = settle_leftovers(*this / "run", true);
    ASSERT_EQ(trouble.size(), 1u);
    EXPECT_TRUE(has(trouble[0], "something else in its place"));
    expect_precious();
    fs::remove(partial);
    fs::rename(*this / "link", partial);
    fs::create_symlink(*this / "precious", *this / "link");
  }
}

// Things of another user. Only root can give them away.
class RemovalOfOthers : public RemovalTest {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "only root can give a file to another user";
  }
  static void give_away(const fs::path& path) {
    ASSERT_EQ(::lchown(path.c_str(), stranger, stranger), 0) << path;
  }
  static void expect_named(const std::vector<std::string>& lines, const fs::path& path) {
    ASSERT_EQ(lines.size(), 1u);
    EXPECT_TRUE(has(lines[0], fmt::format("'{}' stays: it belongs to user 65534", path.string())));
  }
};

TEST_F(RemovalOfOthers, RemainsOfAConversionStay) {
  save_version(*this / "run", 1);
  const fs::path theirs = partial_beside(*this / "out", "0123456789abcdef");
  fill(theirs);
  give_away(theirs);
  const auto report = convert(*this / "run/step-1", *this / "out", {.to = "hf"});
  EXPECT_EQ(std::count_if(report.notes.begin(), report.notes.end(),
                          [](const std::string& note) {
                            return note.find("belongs to user 65534") != std::string::npos;
                          }),
            1);
  EXPECT_TRUE(fs::exists(theirs / "z_keys/id"));
}

TEST_F(RemovalOfOthers, SoDoesAnOldTargetThatWasMovedAside) {
  save_version(*this / "run", 1);
  convert(*this / "run/step-1", *this / "out", {.to = "hf"});
  const fs::path theirs = (*this / "out").string() + ".removed-0000000000000000";
  fill(theirs);
  give_away(theirs);
  convert(*this / "run/step-1", *this / "out", {.to = "hf", .force = true});
  EXPECT_TRUE(fs::exists(theirs / "z_keys/id"));
}

TEST_F(RemovalOfOthers, RemainsOfAnExportStayAndAreReported) {
  const fs::path theirs = partial_beside(*this / "out", "0123456789abcdef");
  fill(theirs);
  give_away(theirs);
  std::vector<std::string> lines;
  comm::run_local(1, [&](const auto& communicator) {
    const RankState own = make_state(0, 1, 1, whole_cut(), true);
    lines = export_model(*communicator, *this / "out", own.state.model, {});
  });
  expect_named(lines, theirs);
  EXPECT_TRUE(fs::exists(theirs / "z_keys/id"));
}

TEST_F(RemovalOfOthers, LeftoversOfASaveStay) {
  save_version(*this / "run", 1);
  const fs::path theirs = *this / ("run/" + partial_name(3, "0123456789abcdef"));
  fill(theirs);
  give_away(theirs);
  expect_named(settle_leftovers(*this / "run", true), theirs);
  EXPECT_TRUE(fs::exists(theirs / "manifest.json"));
}

TEST_F(RemovalOfOthers, AThingInAFolderOfOnesOwnStaysWithTheFolder) {
  const fs::path partial = partial_beside(*this / "dst", "0123456789abcdef");
  fill(partial);
  give_away(partial / "z_keys");
  expect_named(clear_partials(*this / "dst"), partial / "z_keys");
  EXPECT_TRUE(fs::exists(partial / "z_keys/id"));
  EXPECT_FALSE(fs::exists(partial / "a_file"));
}

}  // namespace
}  // namespace tessera::checkpoint
