// Files that are replaced atomically: what is kept of the old file, links, full disks.
#include "engine/storage/output_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "base/error.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

class OutputFile : public ::testing::Test {
 protected:
  OutputFile() : folder_(fs::path(::testing::TempDir()) / "tessera-output-file") {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  ~OutputFile() override { fs::remove_all(folder_); }

  [[nodiscard]] fs::path at(const char* name) const { return folder_ / name; }
  static void put(const fs::path& path, const std::string& text) { std::ofstream(path) << text; }
  static std::string contents(const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  static mode_t mode_of(const fs::path& path) {
    struct stat status {};
    EXPECT_EQ(::stat(path.c_str(), &status), 0);
    return status.st_mode & 07777;
  }
  [[nodiscard]] std::ptrdiff_t names() const {
    return std::distance(fs::directory_iterator(folder_), {});
  }
  static std::string refusal(const fs::path& path, ErrorCode code) {
    try {
      write_output("--json x", path, std::string(10'000, 'a'));
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code) << error.what();
      return error.what();
    }
    return {};
  }

  fs::path folder_;
};

TEST_F(OutputFile, KeepsTheModeOfTheOldFile) {
  for (const mode_t mode : {0600, 0640, 0755}) {
    put(at("out"), "old");
    ASSERT_EQ(::chmod(at("out").c_str(), mode), 0);
    write_output("--json out", at("out"), "new");
    EXPECT_EQ(contents(at("out")), "new");
    EXPECT_EQ(mode_of(at("out")), mode);
  }
  const mode_t mask = ::umask(027);
  write_output("--json fresh", at("fresh"), "new");
  ::umask(mask);
  EXPECT_EQ(mode_of(at("fresh")), 0640u);
  EXPECT_EQ(names(), 2);
}

TEST_F(OutputFile, ALinkStaysALink) {
  fs::create_directory(at("elsewhere"));
  put(at("elsewhere/out"), "old");
  fs::create_symlink("elsewhere/out", at("near"));
  fs::create_symlink(at("near"), at("link"));
  fs::create_symlink("elsewhere/absent", at("dangling"));
  for (const char* name : {"link", "dangling"}) {
    write_output("--json x", at(name), name);
    EXPECT_TRUE(fs::is_symlink(at(name))) << name;
    EXPECT_EQ(contents(at(name)), name);
  }
  EXPECT_EQ(contents(at("elsewhere/out")), "link");
  EXPECT_EQ(contents(at("elsewhere/absent")), "dangling");
  fs::create_symlink("round", at("round"));
  EXPECT_NE(refusal(at("round"), ErrorCode::configuration).find("ELOOP"), std::string::npos);
}

// `(echo first; tessera ... --json /dev/stdout; echo last) > out`: nothing is written over.
TEST_F(OutputFile, ADescriptorOfTheCallerKeepsItsPlace) {
  const int file = ::open(at("out").c_str(), O_WRONLY | O_CREAT, 0666);
  ASSERT_GE(file, 0);
  const std::string number = std::to_string(file);
  ASSERT_EQ(::write(file, "first ", 6), 6);
  write_output("--json x", "/dev/fd/" + number, "text ");
  ASSERT_EQ(::write(file, "second ", 7), 7);
  write_output("--json x", "/proc/self/fd/" + number, "more ");
  ASSERT_EQ(::write(file, "last", 4), 4);
  EXPECT_EQ(::fcntl(file, F_GETFL) & O_APPEND, 0);
  ::close(file);
  EXPECT_EQ(contents(at("out")), "first text second more last");
  EXPECT_NE(refusal("/dev/fd/" + number, ErrorCode::configuration).find("EBADF"),
            std::string::npos);
}

// In a folder that others can write, a link could name any file of this user's.
TEST_F(OutputFile, ALinkOfAnotherUserIsNotFollowed) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can make a link of another user's";
  put(at("precious"), "old");
  fs::create_symlink("precious", at("theirs"));
  fs::create_symlink("theirs", at("ours"));
  ASSERT_EQ(::lchown(at("theirs").c_str(), 65534, 65534), 0);
  for (const char* name : {"theirs", "ours"}) {
    const std::string message = refusal(at(name), ErrorCode::configuration);
    EXPECT_NE(message.find("theirs is a symbolic link of another user (uid 65534)"),
              std::string::npos)
        << message;
    EXPECT_THROW((void)open_output(at(name), O_WRONLY | O_TRUNC), Error);
  }
  EXPECT_EQ(contents(at("precious")), "old");
  fs::remove(at("theirs"));
  fs::create_symlink("precious", at("theirs"));
  write_output("--json x", at("ours"), "new");
  EXPECT_EQ(contents(at("precious")), "new");
}

// Somebody who guesses the name of the partial file keeps neither it nor its owner.
TEST_F(OutputFile, AFileInPlaceOfThePartialOneIsNotUsed) {
  const std::string partial = "out.partial-" + std::to_string(::getpid());
  put(at(partial.c_str()), "theirs");
  fs::create_hard_link(at(partial.c_str()), at("kept"));
  write_output("--json x", at("out"), "new");
  EXPECT_EQ(contents(at("out")), "new");
  EXPECT_EQ(contents(at("kept")), "theirs");
}

TEST_F(OutputFile, AFullDiskKeepsTheOldFile) {
  put(at("out"), "old");
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  const auto handler = ::signal(SIGXFSZ, SIG_IGN);
  rlimit limit = before;
  limit.rlim_cur = 1000;
  ::setrlimit(RLIMIT_FSIZE, &limit);
  const std::string message = refusal(at("out"), ErrorCode::checkpoint);
  ::setrlimit(RLIMIT_FSIZE, &before);
  ::signal(SIGXFSZ, handler);
  EXPECT_EQ(message.find("--json x: cannot be written: write failed: "), 0u) << message;
  EXPECT_EQ(contents(at("out")), "old");
  EXPECT_EQ(names(), 1);
}

TEST_F(OutputFile, PathsThatCannotBeFilesAreReported) {
  EXPECT_NE(refusal(folder_, ErrorCode::configuration).find("it is a folder"), std::string::npos);
  EXPECT_NE(refusal(at("none/out"), ErrorCode::configuration).find("No such file or directory"),
            std::string::npos);
  check_output("--json x", at("new"));
  EXPECT_EQ(names(), 0);
  EXPECT_TRUE(is_stream("/dev/null"));
  write_output("--json /dev/null", "/dev/null", "text");
}

}  // namespace
}  // namespace tessera
